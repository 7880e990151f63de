"""Trainer: a worker with its own dense replica, which it exchanges with other replicas."""

"""Trainer: a worker with its own dense replica, and its exchanges with other replicas."""

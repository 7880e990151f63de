"""A trainer: a worker with a dense replica of its own, and its exchanges with other replicas."""

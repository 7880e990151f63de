"""Switching the mode of a running job: when, to what, and how the dense parameters move."""

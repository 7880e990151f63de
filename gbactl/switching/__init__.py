"""Switching the mode of a running job: schedule, automatic choice, names and messages."""

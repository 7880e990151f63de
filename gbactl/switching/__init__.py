"""Switching the mode of a running job: schedule, automatic choice, and messages to users."""

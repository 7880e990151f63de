"""Advice on the mode: simulate the modes on a user's cluster, load and data, rank them, and say which to run in."""

"""Coordinator of a run: hands out batches, orders steps, and decides what happens when a process fails."""

"""Coordinator of a run: hands out batches, orders steps, and handles failures of processes."""

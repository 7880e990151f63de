"""The coordinator: hands out batches, orders steps, and decides what happens when a process fails."""

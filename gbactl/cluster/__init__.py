"""Coordinator, servers and workers, and the wire between them."""

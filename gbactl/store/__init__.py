"""A server's parameters and their optimizers: embedding rows, dense slice, and the shard that owns both."""

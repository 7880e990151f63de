"""Parameters and their optimizers: the dense block, the rows, and the shard that owns both."""

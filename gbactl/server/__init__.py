"""Parameter server: one shard of the parameters behind a hub, its checkpoints and its recovery."""

"""Checkpoints made by hand, small ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.checkpoint.folder import CheckpointFolder, FileEntry, Manifest, write_manifest
from gbactl.checkpoint.tensor_file_writer import write_tensors
from gbactl.server.checkpoint_writer import RowChooser, ShardSaver
from gbactl.store.dense import DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

POSITION: dict[str, Any] = {
    "step": 3, "round": 0, "label": "day 0", "seconds": 1.5, "ended": False, "unread": [[16, 40], [48, 64]],
    "ledger": {"read": 24, "trained": 16, "decayed": 8, "lost": 0, "effective": 16.0},
    "mode": {"name": "gba", "workers": 2}, "switches": 0, "stopping": None, "results": [], "modes": "gba",
    "phases": [], "curve": [],
    "statistics": {
        "staleness": {"0": 2}, "token_staleness": {}, "samples_behind": 0.0, "gradients": {"applied": 2}, "workers": {},
    },
}  # fmt: skip
SCHEMA = {
    "numeric": 1, "cardinalities": [5, 6], "tables": [], "lists": [], "weighted": False, "fields": ["a", "b"]
}  # fmt: skip


def spec(shard: int, shards: int, rows: int = 11, optimizer: str = "adam", **more: Any) -> ShardSpec:
    """Of a small table, with a dense part."""
    chosen = OptimizerSpec(optimizer, 0.1)
    given = {"row_optimizer": chosen, "dense_optimizer": chosen, "dense": DenseSpec(7, 2)}
    return ShardSpec(shard, shards, rows, 3, seed=5, **{**given, **more})


def unused_saver(shard: Shard) -> ShardSaver:
    """Saver of a server that is told to save nothing."""
    return ShardSaver(shard, Path("nowhere"), RowChooser(shard, None, (), 1.0), 0, lambda saved: None)


def fill(shard: Shard, seed: int = 0) -> None:
    """Values that tell where they belong: the same for any number of shards."""
    rng = np.random.default_rng(seed)
    block = shard.rows
    whole = rng.random((shard.spec.rows, shard.spec.width), np.float32)
    mine = slice(shard.spec.shard, None, shard.spec.shards)
    block.table[:] = whole[mine]
    for number, moment in enumerate(block.moments.values(), 2):
        moment[:] = (whole if moment.ndim == 2 else whole[:, 0])[mine] * number
    if block.counts is not None:
        block.counts[:] = np.arange(shard.spec.rows, dtype=np.uint32)[mine]
    vector = rng.random(9, np.float32)
    state = shard.dense_state()
    low = shard.dense_range[0]
    state["value"] = vector[low : low + len(state["value"])].copy()
    for name in (name for name in state if name.startswith("moment.")):
        state[name] = (vector * 3)[low : low + len(state[name])].copy()
    shard.dense_block().load_state({**state, "step": np.array([4], np.int64)})


def tensors_of(shard: Shard, index: np.ndarray | None = None) -> dict[str, Any]:
    """What a saver would write."""
    chosen: Any = slice(None) if index is None else index
    found: dict[str, Any] = {} if index is None else {"index": index}
    found["rows"] = shard.rows.table[chosen]
    found |= {f"row_moment.{name}": moment[chosen] for name, moment in shard.rows.moments.items()}
    if shard.rows.counts is not None:
        found["row_counts"] = shard.rows.counts[chosen]
    return {**found, **{f"dense.{name}": values for name, values in shard.dense_state().items()}}


def save(
    folder: Path, shards: list[Shard], number: int = 1, step: int = 3, base: list[str] | None = None,
    index: list[np.ndarray] | None = None, **more: Any,
) -> Manifest:  # fmt: skip
    """Write a checkpoint of these shards; only rows `index` of each if given."""
    path = CheckpointFolder(folder).begin(number)
    entries = []
    for shard in shards:
        rows = None if index is None else index[shard.spec.shard]
        tensors = tensors_of(shard, rows)
        written = write_tensors(path / f"S{shard.spec.shard}.safetensors", tensors, {"gbactl": "1"})
        entries.append(FileEntry(f"S{shard.spec.shard}.safetensors", shard.spec.shard, written.bytes,
                                 len(tensors["rows"]),
                             written.sums))  # fmt: skip
    first = shards[0].spec
    made = Manifest(
        number, step, "whole" if index is None else "rest", first.shards, first.rows, first.width, "servers", entries,
        POSITION, {}, SCHEMA, "same", base or [],
    )  # fmt: skip
    made = dataclasses.replace(made, **more)
    write_manifest(path, made)
    return made


def shards_of(count: int, **more: Any) -> list[Shard]:
    """All of a table."""
    return [Shard(spec(shard, count, **more)) for shard in range(count)]

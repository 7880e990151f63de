"""Model file of a replay: one .npz of numpy arrays, no pickle.

`rows` f32[rows, width] and `row_<moment>` by global row id, `row_counts` (Adam), `dense` f32[P + Q], `dense_<moment>`
f32[P], `dense_steps`, `step` (optimizer steps taken), `config` (JSON). Needs the model's memory a second time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.config import RunConfig, to_dict
from gbactl.errors import UsageError
from gbactl.store.shard import Shard


def arrays(shards: Sequence[Shard]) -> dict[str, NDArray[Any]]:
    """Collect the model of all shards as named arrays."""
    found = {"rows": _rows([shard.rows.table for shard in shards])}
    for name in shards[0].rows.moments:
        found[f"row_{name}"] = _rows([shard.rows.moments[name] for shard in shards])
    if shards[0].rows.counts is not None:
        found["row_counts"] = _rows([shard.rows.counts for shard in shards])
    states = [shard.dense_state() for shard in shards]
    for key in states[0]:
        if key != "step":
            name = "dense" if key == "value" else key.replace("moment.", "dense_")
            found[name] = np.concatenate([state[key] for state in states])
    found["dense_steps"] = states[0]["step"]
    return found


def _rows(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Interleave the shards' rows: row r of the whole table is row r // shards of shard r % shards."""
    whole = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    for shard, part in enumerate(parts):
        whole[shard :: len(parts)] = part
    return whole


def write(path: Path, cfg: RunConfig, shards: Sequence[Shard]) -> None:
    """Write the file atomically. Raises UsageError where it cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    more = {"step": np.array(shards[0].version), "config": np.array(json.dumps(to_dict(cfg)))}
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays(shards), **more)  # type: ignore[arg-type]
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); type another --keep PATH.") from error

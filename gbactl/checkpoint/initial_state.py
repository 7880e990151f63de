"""What a shard was before the first step, for one that has no checkpoint yet to come back to.

Rows follow from the seed. The dense slice came from a worker, so a server keeps it in a file: once, some megabytes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from gbactl.checkpoint.tensor_file import write_tensors
from gbactl.errors import CheckpointError
from gbactl.store.dense import DenseSpec
from gbactl.store.spec import ShardSpec

NAME = "beginning"
log = logging.getLogger(__name__)


def _path(run_dir: Path, shard: int) -> Path:
    return run_dir / NAME / f"S{shard}.safetensors"


def keep(run_dir: Path, spec: ShardSpec) -> None:
    """Write a shard's first dense slice down; where that cannot be, nobody can take this server's place."""
    if spec.dense is None or spec.dense_init is None:
        return
    path, sizes = _path(run_dir, spec.shard), np.array([spec.dense.params, spec.dense.buffers], np.int64)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"sizes": sizes, "dense": spec.dense_init}, {"gbactl": "1"})
    except OSError as error:
        log.warning("%s could not be written (%s): if S%d is lost, the run ends", path, error.strerror, spec.shard)


def again(run_dir: Path, spec: ShardSpec, momentum: float) -> ShardSpec:
    """The shard as it was installed at first. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    path = _path(run_dir, spec.shard)
    try:
        with safe_open(path, framework="numpy") as file:
            sizes, values = file.get_tensor("sizes"), file.get_tensor("dense")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
    return replace(spec, dense=DenseSpec(int(sizes[0]), int(sizes[1]), momentum), dense_init=values)

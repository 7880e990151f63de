"""Loading of a shard or of a worker's dense parameters from a checkpoint, also with another number of servers.

Files are read in pieces of 4 MiB, which is all the memory beside the shard's own. Loading takes as long as reading the
files (1 GB/s); where the number of servers differs, every server reads all of them. A shard without a checkpoint
restarts as it was before the first step: its rows follow from the seed. Its initial dense slice came from a worker, so
the server keeps it in a file of some megabytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint.folder import CheckpointChain, CheckpointFolder, FileEntry, Manifest
from gbactl.checkpoint.publishing import DENSE
from gbactl.checkpoint.tensor_file_writer import HALVED, PIECE, from_bf16, write_tensors
from gbactl.errors import CheckpointError
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.shard import Shard, ShardSpec

Arrays = dict[str, NDArray[Any]]
BEGINNING = -1  # step of the initial state, which has no checkpoint
INITIAL_FOLDER = "beginning"
log = logging.getLogger(__name__)


def chain_at(path: Path) -> CheckpointChain:
    """Read the checkpoint in folder `path` and the checkpoints that it builds on. Raises CheckpointError."""
    return CheckpointFolder(path.parent).chain(path.name)


def load_shard(shard: Shard, chain: CheckpointChain, with_dense: bool = True) -> None:
    """Load a shard's rows, their optimizer state and, if wanted, its dense slice.

    Its version becomes the checkpoint's step. Rows that no file has keep their initial values. Raises CheckpointError
    where the checkpoint does not fit."""
    last, spec = chain.last, shard.spec
    if (last.table_rows, last.width) != (spec.rows, spec.width):
        table = f"a table of {last.table_rows} rows of {last.width} values"
        own = f"this run has {spec.rows} rows of {spec.width}"
        raise CheckpointError(f"{chain.folder / last.name} has {table}, but {own}.")
    for manifest in chain.manifests:
        load_rows(shard.rows.arrays, chain.folder, manifest, spec.shard, spec.shards)
    if with_dense and shard.dense is not None:
        load_dense(shard.dense, dense_state(chain))
    shard.version = last.step


def load_rows(into: Arrays, folder: Path, manifest: Manifest, shard: int, shards: int) -> None:
    """Copy one checkpoint's rows of shard `shard` of `shards` into the arrays `into`, by local row."""
    for entry in manifest.files:
        if entry.shard < 0 or (manifest.shards == shards and entry.shard != shard):
            continue
        path = folder / manifest.name / entry.name
        with _open(path) as file:
            names = {name for name in file.keys() if name.startswith("row")}  # noqa: SIM118
            if names != set(into):
                raise CheckpointError(f"{path} holds {', '.join(sorted(names))}, not {', '.join(sorted(into))}.")
            for local, low, high in _pieces(file, entry, into["rows"].shape[1]):
                rows = local * manifest.shards + entry.shard
                own = np.flatnonzero(rows % shards == shard)
                if len(own):
                    _copy(file, path, into, (low, high), own, rows[own] // shards)


def _copy(file: Any, path: Path, into: Arrays, piece: tuple[int, int], own: Any, target: Any) -> None:
    for name, array in into.items():
        values = file.get_slice(name)[piece[0] : piece[1]]
        if values.dtype == HALVED and array.dtype == np.float32:
            values = from_bf16(values)
        if values.dtype != array.dtype or values.shape[1:] != array.shape[1:] or int(target.max()) >= len(array):
            raise CheckpointError(f"{path}: {name} does not fit this run's table or optimizer.")
        array[target] = values[own]


def _pieces(file: Any, entry: FileEntry, width: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Iterate over pieces of a file as (local rows, low, high): positions [low, high) contain those rows."""
    many = max(1, PIECE // (4 * width))
    index = file.get_slice("index") if "index" in file.keys() else None  # noqa: SIM118
    for low in range(0, entry.rows, many):
        high = min(entry.rows, low + many)
        yield (np.arange(low, high) if index is None else index[low:high].astype(np.int64)), low, high


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error


def dense_state(chain: CheckpointChain) -> Arrays:
    """Read the whole dense vector with its optimizer state from a checkpoint.

    value f32[P + Q], moment.* f32[P], step int64[1]. With an EASGD centre the servers' files have the values, and the
    trainers' file has the optimizer's state. Raises CheckpointError where there is none."""
    manifest = chain.last
    names = [entry.name for entry in sorted(manifest.files, key=lambda entry: entry.shard)]
    files = [DENSE] if manifest.home == "workers" else [name for name in names if name != DENSE]
    states = [_dense_of(chain.folder / manifest.name / name) for name in files]
    whole = {name: np.concatenate([state[name] for state in states]) for name in states[0] if name != "step"}
    whole["step"] = states[0]["step"]
    if manifest.home != "workers" and DENSE in names:
        whole |= _dense_of(chain.folder / manifest.name / DENSE, ("step",))
    return whole


def _dense_of(path: Path, needed: tuple[str, ...] = ("value", "step")) -> Arrays:
    with _open(path) as file:
        found = {name[6:]: file.get_tensor(name) for name in file.keys() if name.startswith("dense.")}  # noqa: SIM118
    if not set(needed) <= set(found):
        raise CheckpointError(f"{path} holds no dense part.")
    return found


def load_dense(block: DenseBlock, whole: Arrays) -> None:
    """Load a dense block's slice from the whole dense vector. Raises CheckpointError if it does not fit."""
    low, params = block.lo, block.params
    state = {"value": whole["value"][low : low + len(block.value)], "step": whole["step"]}
    state |= {name: values[low : low + params] for name, values in whole.items() if name.startswith("moment.")}
    _fit(block, state)


def _fit(block: DenseBlock, state: Arrays) -> None:
    try:
        block.load_state({name: np.ascontiguousarray(values) for name, values in state.items()})
    except ValueError as error:
        raise CheckpointError(f"The checkpoint's dense part does not fit: {error}") from error


def take_over(shard: Shard, other: Shard, with_dense: bool = True) -> None:
    """Copy another shard's rows, their optimizer state and, if wanted, its dense slice into a shard.

    The version stays."""
    source = other.rows.arrays
    for name, array in shard.rows.arrays.items():
        np.copyto(array, source[name])
    if with_dense and shard.dense is not None:
        shard.dense_block().load_state(other.dense_state())


def load_newest(shard: Shard, folder: CheckpointFolder, refused: Callable[[str], None]) -> Manifest | None:
    """Load the newest valid checkpoint of a run into a new shard; returns its manifest, or None if there is none.

    Reads that shard's files, and the dense file where workers held the parameters. A checkpoint of another number of
    servers, which the run may have resumed from, is read whole. `refused` is called for each that is invalid."""
    try:
        chain = folder.newest(refused, (shard.spec.shard, shard.spec.shards))
    except CheckpointError:
        return None
    load_shard(shard, chain, with_dense=False)
    if shard.dense is not None:
        _load_own(shard.dense, chain, shard.spec)
    return chain.last


def _load_own(block: DenseBlock, chain: CheckpointChain, spec: ShardSpec) -> None:
    """Load a shard's dense slice from its own checkpoint file or, if that has no slice, from the whole dense vector."""
    same = chain.last.home == "servers" and chain.last.shards == spec.shards
    own = _dense_of(chain.files(spec.shard)[-1]) if same else None
    if own is not None and len(own["value"]) == len(block.value):
        _fit(block, own)
    else:  # the workers held the dense vector at that time, or the number of servers differed
        load_dense(block, dense_state(chain))


def _initial_path(run_dir: Path, shard: int) -> Path:
    return run_dir / INITIAL_FOLDER / f"S{shard}.safetensors"


def keep_initial(run_dir: Path, spec: ShardSpec) -> None:
    """Save a shard's initial dense slice, without which the server cannot be replaced.

    An error is only logged."""
    if spec.dense is None or spec.dense_init is None:
        return
    path, sizes = _initial_path(run_dir, spec.shard), np.array([spec.dense.params, spec.dense.buffers], np.int64)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"sizes": sizes, "dense": spec.dense_init}, {"gbactl": "1"})
    except OSError as error:
        log.warning("%s could not be written (%s): if S%d is lost, the run ends", path, error.strerror, spec.shard)


def load_initial(run_dir: Path, spec: ShardSpec, momentum: float) -> ShardSpec:
    """Load a shard's initial dense slice; returns its specification with that slice. Raises CheckpointError."""
    with _open(_initial_path(run_dir, spec.shard)) as file:
        sizes, values = file.get_tensor("sizes"), file.get_tensor("dense")
    return replace(spec, dense=DenseSpec(int(sizes[0]), int(sizes[1]), momentum), dense_init=values)

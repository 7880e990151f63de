"""Memory that a run needs, by process: rows and the dense part, without the batches that are under way."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.config import RunConfig
from gbactl.config.shards import shard_spec
from gbactl.data.dataset import Dataset
from gbactl.models import dense_size, row_width
from gbactl.store.optim import MOMENTS, OptimizerSpec

BESIDE = 1.03  # a server's memory over that of its rows and moments (README, Speed)
STEPS_BYTES = 4  # Adam's count of a row's steps
FLOAT = 4
OF_MODEL = 4  # vectors: its values, what they began with, the gradient as it is computed and as it is handed on


def shard_bytes(cfg: RunConfig, dataset: Dataset, shard: int) -> int:
    """Bytes of a shard's rows with their optimizer state."""
    return int(BESIDE * shard_spec(cfg, dataset, shard).local_rows * row_bytes(cfg))


def row_bytes(cfg: RunConfig) -> int:
    """Bytes of a row with its optimizer state."""
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    return row_width(cfg.model) * FLOAT * (1 + moments) + (STEPS_BYTES if name in ("adam", "rowwise_adagrad") else 0)


def vector_bytes(cfg: RunConfig, dataset: Dataset) -> int:
    """Bytes of one copy of the dense vector."""
    return FLOAT * dense_size(cfg.model, dataset.schema.numeric, dataset.schema.fields)


def served_vectors(cfg: RunConfig) -> int:
    """How many vectors of the dense part's size the servers hold together: values and the optimizer's state."""
    return 1 + len(MOMENTS[OptimizerSpec(cfg.optim.name).for_dense().name])


def worker_vectors(cfg: RunConfig) -> int:
    """How many a worker holds at least: what belongs to the model, and to the optimizer where workers hold the dense
    part or are trainers, who step a replica of their own."""
    replica = served_vectors(cfg)
    return OF_MODEL + (replica - 1) * ("workers" in cfg.homes) + replica * ("replicas" in cfg.homes)


def vectors(cfg: RunConfig) -> int:
    """How many all processes of a run on this machine hold. A virtual cluster's workers compute with one model."""
    served = served_vectors(cfg)
    if cfg.place.real:
        return served + cfg.processes * worker_vectors(cfg)
    trainers = cfg.processes * ("replicas" in cfg.homes)
    return OF_MODEL + served * (1 + trainers) + (served - 1) * ("workers" in cfg.homes)


def bytes_on(cfg: RunConfig, dataset: Dataset, placed: Mapping[str, str]) -> dict[str, int]:
    """Host -> bytes of all its shards and workers."""
    found: dict[str, int] = {}
    for process, host in placed.items():
        if process[0] in "SW":
            found[host] = found.get(host, 0) + _process_bytes(cfg, dataset, process)
    return found


def _process_bytes(cfg: RunConfig, dataset: Dataset, process: str) -> int:
    vector, index = vector_bytes(cfg, dataset), int(process[1:])
    if process[0] == "W":
        return vector * worker_vectors(cfg)
    holders = cfg.cluster.dense_holders
    dense = vector * served_vectors(cfg) // holders if index < holders else 0
    return shard_bytes(cfg, dataset, index) + dense

"""Estimate of the memory of a run's processes: rows and dense parameters, without the batches in flight."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.config import RunConfig
from gbactl.config.shards import shard_spec
from gbactl.data.dataset import Dataset
from gbactl.models import dense_size, row_width
from gbactl.store.optimizers import MOMENTS, OptimizerSpec

BESIDE = 1.03  # ratio of a server's memory to that of its rows and moments (README, Speed)
STEPS_BYTES = 4  # Adam's count of a row's steps
FLOAT = 4
OF_MODEL = 4  # vectors: its values, their initial values, the gradient as computed and as sent


def shard_bytes(cfg: RunConfig, dataset: Dataset, shard: int) -> int:
    """Return the bytes of a shard's rows with their optimizer state."""
    return int(BESIDE * shard_spec(cfg, dataset, shard).local_rows * row_bytes(cfg))


def row_bytes(cfg: RunConfig) -> int:
    """Return the bytes of a row with its optimizer state."""
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    return row_width(cfg.model) * FLOAT * (1 + moments) + (STEPS_BYTES if name in ("adam", "rowwise_adagrad") else 0)


def vector_bytes(cfg: RunConfig, dataset: Dataset) -> int:
    """Return the bytes of one copy of the dense vector."""
    return FLOAT * dense_size(cfg.model, dataset.schema.numeric, dataset.schema.fields)


def served_vectors(cfg: RunConfig) -> int:
    """Count the dense-sized vectors that the servers hold together: values and optimizer state."""
    return 1 + len(MOMENTS[OptimizerSpec(cfg.optim.name).for_dense().name])


def worker_vectors(cfg: RunConfig) -> int:
    """Count the dense-sized vectors that a worker holds at least.

    These are the model's, and the optimizer's where workers hold the dense parameters or are trainers with a replica
    each."""
    replica = served_vectors(cfg)
    return OF_MODEL + (replica - 1) * ("workers" in cfg.homes) + replica * ("replicas" in cfg.homes)


def vectors(cfg: RunConfig) -> int:
    """Count the dense-sized vectors of all processes on this machine. A virtual cluster's workers share one model."""
    served = served_vectors(cfg)
    if cfg.place.real:
        return served + cfg.processes * worker_vectors(cfg)
    trainers = cfg.processes * ("replicas" in cfg.homes)
    return OF_MODEL + served * (1 + trainers) + (served - 1) * ("workers" in cfg.homes)


def bytes_on(cfg: RunConfig, dataset: Dataset, placed: Mapping[str, str]) -> dict[str, int]:
    """Return host -> bytes of all its shards and workers."""
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

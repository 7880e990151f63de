"""Checks before any process starts: a run's all-reduce and memory on this machine, and its batch against its data."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.collective import check_here
from gbactl.config import RunConfig
from gbactl.data.dataset import Dataset
from gbactl.engine.host_info import free_memory
from gbactl.engine.memory_needs import FLOAT, row_bytes, shard_bytes, vector_bytes, vectors
from gbactl.errors import ConfigError

GIBI = 1 << 30


def check_collective(cfg: RunConfig) -> None:
    """Raise ConfigError where the run's all-reduce cannot work on this machine.

    With several hosts, preflight checks them."""
    if cfg.place.here and cfg.collects:
        check_here(cfg.collective.name)


def check_memory(cfg: RunConfig, dataset: Dataset) -> None:
    """Raise ConfigError where servers and workers on this machine need more memory than is free.

    With several hosts, preflight checks them."""
    if cfg.place.one_host and (why := too_large(cfg, dataset, free_memory())):
        raise ConfigError(why)


def too_large(cfg: RunConfig, dataset: Dataset, free: int) -> str:
    """Describe why rows and dense parameters exceed `free` bytes (0: unknown), and what to type; "" where they fit."""
    rows = sum(shard_bytes(cfg, dataset, shard) for shard in range(cfg.cluster.servers))
    vector = vector_bytes(cfg, dataset)
    dense = vector * vectors(cfg)
    if not free or rows + dense <= free:
        return ""
    there = f"{free / GIBI:,.1f} GiB of memory are free"
    if rows > free:
        return (
            f"The table's {dataset.schema.rows:,} rows of {row_bytes(cfg)} bytes (values and {cfg.optim.name}'s state) "
            f"need {rows / GIBI:,.1f} GiB, and {there}; use data with fewer ids, a smaller model.dim or "
            "optim=rowwise_adagrad, or spread the servers over machines with cluster=hosts."
        )
    return (
        f"The dense part's {vector // FLOAT:,} values of {FLOAT} bytes, {vectors(cfg)} times (values, gradients and "
        f"{cfg.optim.name}'s state of {cfg.processes} workers and the servers), need at least {dense / GIBI:,.1f} GiB "
        f"beside the table's {rows / GIBI:,.1f}, and {there}; use a smaller model.hidden or fewer cluster.workers, or "
        "spread them over machines with cluster=hosts."
    )


def too_few(cfg: RunConfig, rows: Mapping[str, int]) -> str:
    """Describe a global batch that is larger than a day or an epoch, with `rows` by its name; else ""."""
    name, least = min(rows.items(), key=lambda item: item[1])
    batch = cfg.train.global_batch
    if batch <= least:
        return ""
    return (
        f"train.global_batch={batch} is more than the {least} samples of {name}: a mode that waits for a whole batch "
        f"takes one step there, of a smaller one; type train.global_batch={max(1, least // 10)} or so."
    )

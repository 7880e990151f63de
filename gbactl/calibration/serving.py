"""A server's kernels: seconds a row pulled and applied, a dense float copied, summed and stepped.

Measured on one real shard with the rows of real batches, in time of this thread on a core. Takes `seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from gbactl.calibration.alone import Alone
from gbactl.config import RunConfig
from gbactl.config.shards import shard_spec
from gbactl.data.dataset import Dataset
from gbactl.kernels.base import Ints
from gbactl.kernels.library import flushed
from gbactl.store.gradient_slice import Order, Part
from gbactl.store.shard import Shard

LEAST = 5
PARTS = 4  # gradients of the larger dense step


class Serving:
    """Shard 0 of a run, as it would be with the dense vector on the servers."""

    def __init__(self, alone: Alone, cfg: RunConfig, dataset: Dataset) -> None:
        flat, (low, high) = alone.compute.flat, alone.compute.cuts[0]
        spec = replace(shard_spec(cfg, dataset, 0), row_staleness="token")
        spec = replace(spec, dense=flat.dense_spec, dense_init=flat.initial()[low:high])
        self.alone, self.shard, self.batch = alone, Shard(spec), cfg.local_batch
        self.gradient = np.full(high - low, 1e-3, np.float32)
        self.out = np.empty(high - low, np.float32)
        self._number = 0

    def index(self) -> Ints:
        """The rows of this shard in another batch."""
        self._number += 1
        item = self.alone.item(self._number, min(self.batch, self.alone.dataset.splits[0].rows))
        _, low, high = next(item.unique.shares())
        return item.unique.index[low:high]

    def pull(self) -> float:
        """Seconds for a row."""
        index = self.index()
        out = np.empty((len(index), self.shard.spec.width), np.float32)
        return _timed(lambda: self.shard.pull_rows(index, out)) / max(1, len(index))

    def dense_pull(self) -> float:
        """Seconds for a float."""
        return _timed(lambda: self.shard.pull_dense(self.out)) / len(self.out)

    def apply(self) -> float:
        """Seconds for a row of a step of one gradient without a dense part."""
        index = self.index()
        gradient = np.full((len(index), self.shard.spec.width), 1e-3, np.float32)
        return self._step([Part(index, gradient)]) / max(1, len(index))

    def dense_step(self, parts: int) -> float:
        """Seconds for a float of a step of so many gradients."""
        none = np.empty((0, self.shard.spec.width), np.float32)
        return self._step([Part(np.empty(0, np.int32), none, self.gradient) for _ in range(parts)]) / len(self.out)

    def _step(self, parts: list[Part]) -> float:
        batches = [self._number * PARTS + n for n in range(len(parts))]
        self.shard.begin_phase()

        def run() -> None:
            for batch, part in zip(batches, parts, strict=True):
                self.shard.stage(batch, part)
            members = tuple((batch, 1.0) for batch in batches)
            self.shard.apply(Order(self.shard.version, members, 1.0 * len(parts), 1.0 * len(parts)))

        return _timed(run)


def _timed(job: Callable[[], object]) -> float:
    began = time.thread_time()
    job()
    return time.thread_time() - began


def measure(cfg: RunConfig, dataset: Dataset, seconds: float) -> dict[str, float]:
    """The cost model's server keys, but for what a message costs."""
    serving = Serving(Alone(cfg, dataset), cfg, dataset)
    jobs: dict[str, Callable[[], float]] = {
        "row_pull_ns": serving.pull, "row_apply_ns": serving.apply, "dense_pull_ns": serving.dense_pull,
        "one": lambda: serving.dense_step(1), "many": lambda: serving.dense_step(PARTS),
    }  # fmt: skip
    with flushed():
        found = _medians(jobs, seconds)
    each = max(0.0, found["many"] - found["one"]) / (PARTS - 1)
    told = {key: found[key] for key in ("row_pull_ns", "row_apply_ns", "dense_pull_ns")}
    times = {**told, "dense_apply_ns": each, "dense_step_ns": max(0.0, found["one"] - each)}
    return {key: 1e9 * value for key, value in times.items()}


def _medians(jobs: dict[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in jobs}
    until, rounds = time.monotonic() + seconds, 0
    while rounds <= LEAST or time.monotonic() < until:
        for name, job in jobs.items():
            found[name].append(job())
        rounds += 1
    return {name: median(times[1:]) for name, times in found.items()}

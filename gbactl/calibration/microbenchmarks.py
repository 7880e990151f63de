"""Measurement of one worker and of one server in a single process, in CPU seconds.

Of a worker it measures the cost of a gradient, by batch size, of its part after the backward pass, and of a prediction.
Of a server it measures the cost of a row pulled and applied, and of a dense float copied, summed and stepped, on one
real shard with the rows of real batches. Only this thread's CPU time is counted, so a busy machine disturbs little.
Each measurement takes `seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from gbactl.config import RunConfig
from gbactl.data.dataset import Dataset
from gbactl.kernels.base import Ints
from gbactl.kernels.native import flushed
from gbactl.simulation.gradient_compute import SharedCompute, set_answer
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import MappedBatchSource
from gbactl.worker.worker_core import BatchInProgress

LEAST = 5  # measurements of each job
Key = TypeVar("Key")
PARTS = 4  # gradients of the larger dense step


class SingleProcess:
    """Worker without a cluster, which computes batches of the first split of the data."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.dataset, self.compute = dataset, SharedCompute(cfg, dataset)
        self.source = MappedBatchSource(replace(cfg, train=replace(cfg.train, shuffle=False)), dataset)
        self.phase = BeginPhase(1, True, cfg.mode.name, 0, 0, dataset.splits[0].rows, 1, 0, True, False)
        self.source.begin(self.phase)
        self._dense = np.empty(self.compute.flat.size, np.float32)
        self._random = np.random.default_rng(cfg.seed)
        self._scale = cfg.model.init_scale

    def item(self, number: int, samples: int) -> BatchInProgress:
        """Make a batch, find its distinct rows, and fill in random values for them, as if pulled."""
        start = number * samples % max(1, self.dataset.splits[0].rows - samples)
        grant = Granted(1, number, 0, start, samples, 0, 0.0, 0.0)
        item = BatchInProgress(grant, self.phase, *self.source.prepare(grant))
        for shard, low, high in item.unique.shares():
            rows = self._random.uniform(-self._scale, self._scale, (high - low, self.compute.width))
            set_answer(item, shard, rows.astype(np.float32))
        return item

    def gradient(self, samples: int, number: int) -> float:
        """Measure a training batch in CPU seconds: find distinct rows, forward, backward, copy gradients out."""
        return self._train(samples, number)[0]

    def push(self, samples: int, number: int) -> float:
        """Measure the part of a training batch after the backward pass, in CPU seconds."""
        return self._train(samples, number)[1]

    def _train(self, samples: int, number: int) -> tuple[float, float]:
        item, marks = self.item(number, samples), [time.thread_time()]
        self.source.prepare(item.grant)
        self.compute.gradient(item, computed=lambda: marks.append(time.thread_time()))
        self.compute.flat.gradient_into(self._dense)
        began, computed, ended = *marks, time.thread_time()
        return ended - began, ended - computed

    def predict(self, samples: int, number: int) -> float:
        """Measure an evaluation batch in CPU seconds."""
        item = self.item(number, samples)
        began = time.thread_time()
        self.source.prepare(item.grant)
        self.compute.predict(item)
        return time.thread_time() - began


def sizes(cfg: RunConfig, dataset: Dataset) -> list[int]:
    """Choose the batch sizes to measure, around the configured one."""
    wanted = {max(1, round(cfg.local_batch * share)) for share in (0.25, 0.5, 1.0, 2.0)}
    return sorted(min(size, dataset.splits[0].rows) for size in wanted)


def line(points: dict[int, float]) -> tuple[float, float]:
    """Fit a line from batch size to seconds with least relative errors; return non-negative (base, per sample)."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    counts, seconds = np.array(list(points), float), np.array(list(points.values()))
    (base, each), _ = nnls(np.stack([1 / seconds, counts / seconds], axis=1), np.ones(len(counts)))
    return float(base), float(each)


def measure_worker(cfg: RunConfig, dataset: Dataset, seconds: float) -> dict[str, float]:
    """Measure the cost model's worker keys: batch_us, sample_us, push_us and predict_us."""
    import torch

    torch.set_num_threads(1)
    alone = SingleProcess(cfg, dataset)
    with flushed():
        taken = _medians({size: partial(alone.gradient, size) for size in sizes(cfg, dataset)}, 0.8 * seconds)
        batch, evaluation = (min(size, dataset.splits[0].rows) for size in (cfg.local_batch, cfg.train.eval_batch))
        others = {"push": partial(alone.push, batch), "predict": partial(alone.predict, evaluation)}
        found = _medians(others, 0.2 * seconds)
    base, each = line(taken)
    times = {"batch_us": base, "sample_us": each, "push_us": found["push"], "predict_us": found["predict"] / evaluation}
    return {key: 1e6 * value for key, value in times.items()}


def _medians(jobs: Mapping[Key, Callable[[int], float]], seconds: float) -> dict[Key, float]:
    """Measure the median seconds of each job, alternating between jobs until `seconds` are over.

    The first pass warms up."""
    found: dict[Key, list[float]] = {name: [] for name in jobs}
    until, number = time.monotonic() + seconds, 0
    while number <= LEAST or time.monotonic() < until:
        for name, job in jobs.items():
            found[name].append(job(number))
        number += 1
    return {name: median(times[1:]) for name, times in found.items()}


class SingleShard:
    """Shard 0 of a run, with its slice of the dense vector."""

    def __init__(self, alone: SingleProcess, cfg: RunConfig) -> None:
        low, high = alone.compute.cuts[0]
        spec = replace(alone.compute.shard_spec(cfg, 0), row_staleness="token")
        self.alone, self.shard, self.batch = alone, Shard(spec), cfg.local_batch
        self.gradient = np.full(high - low, 1e-3, np.float32)
        self.out = np.empty(high - low, np.float32)
        self._number = 0

    def index(self) -> Ints:
        """Prepare the next batch and return the indexes of its rows in the shard's table, int32[n]."""
        self._number += 1
        item = self.alone.item(self._number, min(self.batch, self.alone.dataset.splits[0].rows))
        _, low, high = next(item.unique.shares())
        return item.unique.index[low:high]

    def pull(self) -> float:
        """Measure the pull of rows, in CPU seconds per row."""
        index = self.index()
        out = np.empty((len(index), self.shard.spec.width), np.float32)
        return _timed(lambda: self.shard.pull_rows(index, out)) / max(1, len(index))

    def dense_pull(self) -> float:
        """Measure the pull of the dense slice, in CPU seconds per float."""
        return _timed(lambda: self.shard.pull_dense(self.out)) / len(self.out)

    def apply(self) -> float:
        """Measure a step from one gradient without dense values, in CPU seconds per row."""
        index = self.index()
        gradient = np.full((len(index), self.shard.spec.width), 1e-3, np.float32)
        return self._step([GradientSlice(index, gradient)]) / max(1, len(index))

    def dense_step(self, parts: int) -> float:
        """Measure a step from the dense slices of `parts` gradients, in CPU seconds per float."""
        none = np.empty((0, self.shard.spec.width), np.float32)
        return self._step([GradientSlice(np.empty(0, np.int32), none, self.gradient) for _ in range(parts)]) / len(
            self.out
        )

    def _step(self, parts: list[GradientSlice]) -> float:
        batches = [self._number * PARTS + n for n in range(len(parts))]
        self.shard.begin_phase()

        def run() -> None:
            for batch, part in zip(batches, parts, strict=True):
                self.shard.stage(batch, part)
            members = tuple((batch, 1.0) for batch in batches)
            self.shard.apply(StepOrder(self.shard.version, members, 1.0 * len(parts), 1.0 * len(parts)))

        return _timed(run)


def _timed(job: Callable[[], object]) -> float:
    began = time.thread_time()
    job()
    return time.thread_time() - began


def measure_server(cfg: RunConfig, dataset: Dataset, seconds: float) -> dict[str, float]:
    """Measure the server keys of the cost model, except the cost of a message."""
    serving = SingleShard(SingleProcess(cfg, dataset), cfg)
    jobs: dict[str, Callable[[int], float]] = {
        "row_pull_ns": lambda _: serving.pull(), "row_apply_ns": lambda _: serving.apply(),
        "dense_pull_ns": lambda _: serving.dense_pull(),
        "one": lambda _: serving.dense_step(1), "many": lambda _: serving.dense_step(PARTS),
    }  # fmt: skip
    with flushed():
        found = _medians(jobs, seconds)
    each = max(0.0, found["many"] - found["one"]) / (PARTS - 1)
    measured = {key: found[key] for key in ("row_pull_ns", "row_apply_ns", "dense_pull_ns")}
    times = {**measured, "dense_apply_ns": each, "dense_step_ns": max(0.0, found["one"] - each)}
    return {key: 1e9 * value for key, value in times.items()}

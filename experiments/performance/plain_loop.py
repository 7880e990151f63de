"""Parts of a training that the peers share with gbactl (configuration, data, model, optimizers), and the plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gbactl.config import RunConfig
from gbactl.config.shard_specs import optimizer, shard_spec
from gbactl.data.dataset import Batch, Dataset, open_dataset
from gbactl.kernels import Kernels, load
from gbactl.kernels.base import DistinctRows, aligned_zeros
from gbactl.launch.hydra_config import compose
from gbactl.models import build
from gbactl.models.gradient_computer import GradientComputer
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import RowBlock

WARM_UP = 10


def prepared(overrides: list[str]) -> str:
    """Path of the prepared data named by the overrides, built if it does not exist."""
    from gbactl.data.cache import prepare

    return str(prepare(compose(overrides).data, None))


def samples_per_second(
    step: Callable[[int], object], batch: int, seconds: float, ready: Callable[[], object] = lambda: None
) -> float:
    """Measure a step that takes its number, after a warm-up; `ready` waits for other processes before that begins."""
    for i in range(WARM_UP):
        step(i)
    ready()
    began, i = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step(i)
        i += 1
    return i * batch / (time.perf_counter() - began)


@dataclass
class Feed:
    """Batches of one process from day 0: starts at its share, advances by one batch a step, wraps around."""

    dataset: Dataset
    batch: int
    rank: int
    size: int

    def __call__(self, step: int) -> Batch:
        """Return a batch as views of the mapped data, as a gbactl worker gets them."""
        split = self.dataset.splits[0]
        low = (self.rank * split.rows // self.size + step * self.batch) % (split.rows - self.batch + 1)
        return split.slice(low, low + self.batch)


class Trainee:
    """State of one process that computes gradients the way a gbactl worker does."""

    def __init__(self, path: str, overrides: list[str], rank: int, size: int) -> None:
        torch.set_num_threads(1)
        self.cfg: RunConfig = compose(overrides)
        self.dataset = open_dataset(Path(path))
        self.kernels: Kernels = load()
        schema = self.dataset.schema
        model = build(self.cfg.model, schema.numeric, schema.fields, self.cfg.seed)
        self.computer = GradientComputer(model, precision=self.cfg.precision)
        self.flat = self.computer.flat
        self.width = shard_spec(self.cfg, self.dataset.schema.rows, 0).width
        self.batch = self.cfg.local_batch
        self.feed = Feed(self.dataset, self.batch, rank, size)
        self.emb = np.empty((self.batch * schema.fields, self.width), np.float32)

    def unique(self, data: Batch) -> DistinctRows:
        """Distinct rows of the batch."""
        return self.kernels.dedupe(data.ids, self.dataset.schema.offsets, 1)

    def gradient(self, data: Batch, key: int) -> Any:
        """Compute the gradient float32[B * F, W] of the rows in `emb`; the dense one stays in `flat`."""
        emb = self.emb.reshape(self.batch, -1, self.width)
        return self.computer.gradient(data.numeric, data.labels, emb, key)[1]

    @property
    def dense_optimizer(self) -> OptimizerSpec:
        """Optimizer of the dense block."""
        return optimizer(self.cfg, self.cfg.optim.lr, self.cfg.optim.weight_decay)

    def table(self) -> RowBlock:
        """Make the whole embedding table with its optimizer, initialised."""
        spec = shard_spec(self.cfg, self.dataset.schema.rows, 0)
        rows = RowBlock(aligned_zeros((self.dataset.schema.rows, spec.width)), spec.row_optimizer, self.kernels)
        rows.initialise(self.cfg.seed, 0, 1, self.cfg.model.init_scale)
        return rows


class PlainLoop:
    """Single-process training without communication, an intended upper bound.

    Rows are read and written in the table in place; the dense step takes each gradient where autograd left it.
    """

    def __init__(self, me: Trainee) -> None:
        if me.flat.buffers:
            raise SystemExit("The plain loop has no batch norm.")
        self.me, self.rows = me, me.table()
        self.blocks = [
            DenseBlock(me.flat._numpy[low:high], DenseSpec(high - low), me.dense_optimizer)
            for low, high in me.flat._spans
        ]
        self.places = np.empty(len(me.emb), np.int32)
        self.sums = np.empty_like(me.emb)

    def step(self, i: int) -> None:
        """Train on batch number i."""
        me = self.me
        data = me.feed(i)
        unique = me.unique(data)
        np.take(unique.index, unique.inverse, out=self.places, mode="clip")
        me.kernels.gather(self.rows.table, self.places, me.emb)
        of_rows, total = me.gradient(data, i), self.sums[: len(unique.index)]
        me.kernels.segment_sum(of_rows, unique.inverse, total)
        self.rows.apply([(unique.index, total, 1.0)], 1.0, 1.0)
        for block, gradient in zip(self.blocks, me.flat._gradients, strict=True):
            block.apply(gradient.numpy().reshape(-1), 1.0)

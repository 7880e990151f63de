"""Computation of all workers by one model: pulled parameters in, real gradients and predictions out.

A gradient depends only on the pulled parameters and the batch, so it may be computed at any moment between
the pull and the push. Costs what a worker's gradient costs; a dense vector is copied only if it changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gbactl.config import RunConfig
from gbactl.config.job_layout import dense_cuts
from gbactl.data.dataset import Schema
from gbactl.kernels import load
from gbactl.kernels.base import Floats, Kernels
from gbactl.models import build, row_width
from gbactl.models.gradient_computer import GradientComputer
from gbactl.simulation.server import PullAnswer
from gbactl.store.dense import Cut, held
from gbactl.wire.channel import NO_BYTES
from gbactl.wire.messages import Rows
from gbactl.worker.loop import dropout_key
from gbactl.worker.worker_core import BatchInProgress


def answer_of(item: BatchInProgress, shard: int) -> PullAnswer:
    """Shard's answer to the pull of a batch."""
    frame = item.answers[shard][1]
    assert isinstance(frame, PullAnswer)
    return frame


def set_answer(item: BatchInProgress, shard: int, rows: Floats | None = None) -> None:
    """Give a batch a shard's rows float32[n, width] without a message, and no dense slice yet."""
    item.answers[shard] = (Rows(0, 0, 0, 0), PullAnswer(0, b"", NO_BYTES, None, None, rows))


class SharedCompute:
    """Model that computes for all workers of a virtual cluster.

    `width` floats a row; `cuts` are the servers' slices of the dense vector, loaded where the servers hold it."""

    def __init__(self, computer: GradientComputer, kernels: Kernels, width: int, cuts: list[Cut], seed: int) -> None:
        self.computer, self.flat = computer, computer.flat
        self.kernels, self.width, self.servers, self.seed = kernels, width, len(cuts), seed
        self.cuts, self.held = cuts, held(cuts)
        self._loaded: list[Any] = [None] * self.servers
        self._rows = np.empty((0, width), np.float32)
        self._emb = np.empty((0, width), np.float32)

    @classmethod
    def of(cls, cfg: RunConfig, schema: Schema) -> SharedCompute:
        """Build a run's model with its initial parameters."""
        computer = GradientComputer(build(cfg.model, schema.numeric, schema.fields, cfg.seed), precision=cfg.precision)
        return cls(computer, load(), row_width(cfg.model), dense_cuts(cfg, computer.flat.size), cfg.seed)

    def load(self, item: BatchInProgress) -> None:
        """Load the dense vector that was pulled for a batch into the model."""
        for shard in item.answers:
            values = answer_of(item, shard).dense
            if values is None or values is self._loaded[shard]:
                continue
            self._loaded[shard] = values
            if len(values) < self.flat.size:
                self.flat.load_slice(self.cuts[shard][0], values)
            elif self.flat.buffers:  # a forward pass writes a batch's statistics into the vector
                self.flat.load(values)
            else:
                self.flat.use(values)

    def come_home(self) -> None:
        """Make the model compute with its own memory again, and forget the dense slices loaded for a batch."""
        self.flat.come_home()
        self._loaded = [None] * self.servers

    def gradient(self, item: BatchInProgress, out: Floats | None = None) -> Floats:
        """Compute the gradient of the batch's distinct rows, float32[U, W] (into `out`, if given).

        The dense gradient stays in `flat`. Sets `item.loss`, and releases the pulled parameters."""
        batch, phase = item.batch, item.phase
        emb = self._embed(item)
        item.answers.clear()
        key = dropout_key(self.seed, phase, item.grant.batch)
        item.loss, gradient = self.computer.gradient(batch.numeric, batch.labels, emb, key)
        item.ranked = self.computer.ranked
        sums = np.empty((len(item.unique.index), self.width), np.float32) if out is None else out
        self.kernels.segment_sum(gradient, item.unique.inverse, sums)
        return sums

    def predict(self, item: BatchInProgress) -> Floats:
        """Compute a batch's click probabilities float32[B]; releases the pulled parameters."""
        emb = self._embed(item)
        item.answers.clear()
        return self.computer.predict(item.batch.numeric, emb)

    def _embed(self, item: BatchInProgress) -> Floats:
        """Gather the embedding rows of every id of the batch, float32[B, F, W]."""
        count, fields = item.batch.ids.shape
        if len(self._emb) < count * fields:
            self._emb = np.empty((count * fields, self.width), np.float32)
        emb = self._emb[: count * fields]
        self.kernels.gather(self._gathered(item), item.unique.inverse, emb)
        return emb.reshape(count, fields, self.width)

    def _gathered(self, item: BatchInProgress) -> Floats:
        """Concatenate the shards' rows in the order of the batch's distinct ids, float32[U, W]."""
        parts = [answer_of(item, shard).rows for shard in range(self.servers)]
        if len(parts) == 1:
            assert parts[0] is not None
            return parts[0]
        rows = len(item.unique.index)
        if len(self._rows) < rows:
            self._rows = np.empty((rows, self.width), np.float32)
        return np.concatenate(parts, out=self._rows[:rows])  # type: ignore[arg-type]

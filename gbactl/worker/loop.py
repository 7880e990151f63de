"""Compute loop of a worker: request a batch, compute its gradient, push it. The loop does not depend on the mode.

The cost of a batch beside its forward and backward pass is about 5 % at 512 samples.
"""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from gbactl.checkpoint.remaining_samples import Ranges, decode_ranges, ranges_within
from gbactl.config import RunConfig
from gbactl.cpu import CoreSlots, UnsharedCore, ask_for_long_slices, settle_garbage
from gbactl.data.dataset import Batch, Dataset, Split, permuted
from gbactl.faults.slowdown_waits import WorkerSlowdown
from gbactl.hashes_and_random_numbers import training_key
from gbactl.kernels import load
from gbactl.kernels.base import DistinctRows, Floats
from gbactl.models import row_width
from gbactl.models.gradient_computer import GradientComputer
from gbactl.models.pooling import ListPooling, RawField, distinct_rows
from gbactl.wire.messages import (
    BeginPhase,
    DenseMoved,
    DenseSaved,
    Granted,
    Inspect,
    Inspected,
    MoveDense,
    PrefetchHint,
    SaveDense,
)
from gbactl.wire.node_measurements import TURN
from gbactl.worker.client import LATER, WorkerClient
from gbactl.worker.dense_placement import DensePlacement, Placements
from gbactl.worker.worker_core import BatchInProgress, Question

SLICE_MS = 20.0  # about one batch


def dropout_key(seed: int, phase: BeginPhase, batch: int) -> int:
    """Compute the dropout key of a batch from its number within the day, wherever in the day its phase began."""
    start = batch * phase.local_batch
    where = ranges_within(decode_ranges(phase.first_sample, phase.samples, phase.ranges), start, 1)
    position = where[0][0] if where else phase.first_sample + start
    return training_key(seed, phase.epoch, phase.split, position // phase.local_batch)


class MappedBatchSource:
    """Source of batches from mapped data, shuffled by (seed, epoch, split) if configured; deduplicates ids."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.cfg, self.dataset, self.kernels = cfg, dataset, load()
        self.phase: BeginPhase | None = None
        self.split: Split | None = None
        self._ranges: Ranges = ()

    def begin(self, phase: BeginPhase) -> None:
        self.phase, self.split = phase, self.dataset.splits[phase.split]
        self._ranges = decode_ranges(phase.first_sample, phase.samples, phase.ranges)

    def prepare(self, grant: Granted | PrefetchHint) -> tuple[Batch, DistinctRows]:
        assert self.phase is not None and self.split is not None
        where = ranges_within(self._ranges, grant.start, grant.samples) or [(0, 0)]
        if self.cfg.train.shuffle and self.phase.training:
            key = training_key(self.cfg.seed, self.phase.epoch, self.phase.split)
            found = [permuted(low, high, self.split.rows, key) for low, high in where]
            batch = self.split.take(found[0] if len(found) == 1 else np.concatenate(found))
        elif len(where) == 1:
            batch = self.split.slice(*where[0])
        else:
            batch = self.split.take(np.concatenate([np.arange(low, high) for low, high in where]))
        return batch, distinct_rows(self.kernels, batch, self.dataset.schema, self.cfg.cluster.servers)


class BatchComputer:
    """Run's model with its initial parameters, which computes gradients and predictions of batches.

    It takes the rows of `width` floats that were pulled for a batch from each server."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.computer = GradientComputer.of(cfg.model, dataset, cfg.seed, cfg.precision)
        self.flat, self.schema, self.kernels = self.computer.flat, dataset.schema, load()
        self.width, self.servers, self.seed = row_width(cfg.model), cfg.cluster.servers, cfg.seed
        self._rows = np.empty((0, self.width), np.float32)
        self._emb = np.empty((0, self.width), np.float32)
        self._lists: ListPooling | None = None  # of the batch whose rows were gathered last
        self._raw: list[RawField] = []  # of this batch

    def gradient(
        self, item: BatchInProgress, out: Floats | None = None, computed: Callable[[], None] = lambda: None
    ) -> Floats:
        """Compute the gradient of the batch's distinct rows, float32[U, W] (into `out`, if given).

        The dense gradient stays in `flat`. Sets `item.loss`, and releases the pulled rows. `computed` is called after
        the backward pass, before the sums of the rows."""
        batch, emb = item.batch, self._embed(item)
        item.release()
        key = dropout_key(self.seed, item.phase, item.grant.batch)
        item.loss, gradient = self.computer.gradient(batch.numeric, batch.labels, emb, key, self._raw)
        item.ranked = self.computer.ranked
        computed()
        sums = np.empty((len(item.unique.index), self.width), np.float32) if out is None else out
        self.kernels.segment_sum(self._of_ids(gradient), item.unique.inverse, sums)
        return sums

    def predict(self, item: BatchInProgress) -> Floats:
        """Compute a batch's click probabilities float32[B]; releases the pulled rows."""
        emb = self._embed(item)
        item.release()
        return self.computer.predict(item.batch.numeric, emb, self._raw)

    def rows_of(self, item: BatchInProgress, shard: int) -> Floats:
        """Return the rows float32[n, W] that a shard sent for a batch."""
        rows, frame = item.answers[shard]
        values: Floats = frame.payload.view(np.float32)[rows.dense : rows.dense + rows.rows * self.width]
        return values.reshape(rows.rows, self.width)

    def _embed(self, item: BatchInProgress) -> Floats:
        """Gather the embedding row of every id of the batch, and pool the rows of lists, float32[B, fields, W]."""
        ids, jagged = item.batch.ids, item.batch.jagged
        total = len(item.unique.inverse)
        self._emb = with_room(self._emb, total)
        emb = self._emb[:total]
        self.kernels.gather(self._gathered(item), item.unique.inverse, emb)
        if jagged is None:
            return emb.reshape(*ids.shape, self.width)
        self._lists = ListPooling(self.kernels, self.schema, jagged)
        pooled = self._lists.pool(emb[ids.size :])
        self._raw = self._lists.pad(emb[ids.size :], self.computer.raw_fields)
        return np.concatenate([emb[: ids.size].reshape(*ids.shape, self.width), pooled], 1)

    def _of_ids(self, gradient: Floats) -> Floats:
        """Expand the gradient of the model's fields to row gradients, one for every id of the batch."""
        if self._lists is None:
            return gradient
        columns = self.schema.columns
        of_fields = gradient.reshape(-1, self.schema.fields, self.width)
        size = len(of_fields) * columns
        emb = self._emb[: size + len(self._lists.of_value)]
        emb[:size].reshape(len(of_fields), columns, self.width)[:] = of_fields[:, :columns]
        self._lists.unpool(of_fields[:, columns:], emb[size:], self.computer.of_raw)
        return emb

    def _gathered(self, item: BatchInProgress) -> Floats:
        """Concatenate the shards' rows in the order of the batch's distinct rows, float32[U, W]."""
        parts = [self.rows_of(item, shard) for shard in range(self.servers)]
        if len(parts) == 1:
            return parts[0]
        self._rows = with_room(self._rows, len(item.unique.index))
        return np.concatenate(parts, out=self._rows[: len(item.unique.index)])


def with_room(array: Floats, rows: int) -> Floats:
    """Return `array` if it has at least `rows` rows, else a new array of the required size."""
    return array if len(array) >= rows else np.empty((rows, array.shape[1]), np.float32)


class WorkerLoop:
    """Compute loop of one worker."""

    def __init__(
        self, client: WorkerClient, compute: BatchComputer, placements: Placements,
        core_slots: CoreSlots | UnsharedCore, delay: WorkerSlowdown | None,
    ) -> None:  # fmt: skip
        self.core_slots, self.delay = core_slots, delay
        self.client, self.compute, self.placements = client, compute, placements
        self._sums = np.empty((0, compute.width), np.float32)

    def run(self, ahead: int) -> None:
        """Compute batches until the coordinator stops the run; `ahead`: batches requested in advance."""
        settle_garbage()
        self.client.start(ahead)
        ask_for_long_slices(SLICE_MS)  # only this thread: those that wake it must not wait for it
        self.core_slots.pin_thread()
        while (item := self.client.next(self._answer)) is not None:
            if item.phase.training:
                self._train(item)
            else:
                self._evaluate(item)

    def assist(self, thread: int) -> None:
        """Compute training batches in a further thread until the run is over."""
        self.core_slots.pin_thread()
        while (item := self.client.next(self._answer, thread)) is not None:
            self._train(item)

    @property
    def dense(self) -> DensePlacement:
        """Current placement of the dense parameters."""
        return self.placements.now

    def _answer(self, question: Question) -> Any:
        """Make the answer to a question of the coordinator.

        It is a message, (message, payload), LATER, or None where there is nothing to send."""
        if isinstance(question, SaveDense):
            found = self.dense.packed(question.step)
            return LATER if found is None else (DenseSaved(question.number, *found[:2]), found[2].view(np.uint8))
        if isinstance(question, MoveDense):
            self.placements.move(question.home, question.giver == self.client.index, question.request)
            return DenseMoved(self.client.index, question.request)
        return self._inspect() if isinstance(question, Inspect) else self.placements.trainer.handle(question)

    def _inspect(self) -> Inspected:
        memory = {"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        checksum, total = self.dense.checksum()
        hub = self.client.hub
        counts = {**getattr(hub, "counts", {}), **hub.traffic.counters()}  # see wire/reliable.py
        return Inspected(f"W{self.client.index}", checksum, total, memory, counts, dict(hub.refused))

    def _train(self, item: BatchInProgress) -> None:
        if item.grant.samples == 0:
            self.dense.load(item)
            item.release()
            self.dense.finish(item, None)
            return
        with ExitStack() as slot:
            with self.client.waits.activity(TURN):
                slot.enter_context(self.core_slots.time_slot())
            self.dense.load(item)
            began = time.perf_counter()
            sums = self._compute(item)
        if self.delay is not None:
            item.seconds, item.slowdown = self.delay.slow_down(item.seconds, item.grant.usual)
        if (trace := self.client.waits.trace) is not None:
            trace.add_interval("compute", began, time.perf_counter())
            trace.step(max(item.row_versions.values(), default=0))
        self.dense.finish(item, sums)

    def _compute(self, item: BatchInProgress) -> Any:
        """Compute the gradient of a batch's distinct rows, and leave the dense gradient in the model.

        The row gradient is float32[distinct rows, row width]."""
        began = time.perf_counter()
        count = len(item.unique.index)
        self._sums = with_room(self._sums, count)
        sums = self.compute.gradient(item, self._sums[:count], functools.partial(self._computed, item))
        item.seconds = time.perf_counter() - began
        return sums

    def _computed(self, item: BatchInProgress) -> None:
        """Pull the next batch's rows after the backward pass, so that the remaining work overlaps with the pull."""
        if self.delay is None and item.phase.served_dense:
            self.client.pull_ahead()

    def _evaluate(self, item: BatchInProgress) -> None:
        self.client.waits.take()  # only the waits of training count
        self.dense.load(item)
        self.client.predictions(item, self.compute.predict(item))
        self.client.take(item)

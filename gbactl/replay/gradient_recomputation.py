"""Recomputation of a run's gradients for its replay, from the parameter versions that the workers pulled.

The workers' all-reduce adds the gradients in batch order, so a sum here has the same bits. The copy of the workers'
dense parameters takes a dense vector with its moments, and one more vector for each gradient of a step.

A first pass over the log tells the versions that each gradient pulled. A shard's values are thus copied, before the
shard takes a step, only for gradients that pulled that version and are announced later. The versions take 4 + 8 x
shards bytes a gradient. Gradients that pulled the same version share one copy of its dense slices.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gbactl.collective.base import sum_in_rank_order
from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_block
from gbactl.coordinator.event_log import AnnounceRecord
from gbactl.data.dataset import Dataset
from gbactl.kernels import codec_of
from gbactl.kernels.base import Floats, Ints
from gbactl.kernels.half_precision import round_here, rounded
from gbactl.policies.policy import Step
from gbactl.simulation.gradient_compute import SharedCompute, answer_of, set_answer
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import MappedBatchSource
from gbactl.worker.worker_core import BatchInProgress, scale_by_weight


class GradientRecomputer:
    """Computation of the same gradients as the run's workers computed."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.cfg, self.dataset, self.model = cfg, dataset, SharedCompute(cfg, dataset)
        self.flat, self.width, self.held = self.model.flat, self.model.width, self.model.held
        self.source = MappedBatchSource(cfg, dataset)
        self.codec = codec_of(cfg.transport.wire_dtype)

    def shards(self) -> list[Shard]:
        """Make the shards of all servers in their state before the first step."""
        return [Shard(self.model.shard_spec(self.cfg, shard)) for shard in range(self.model.servers)]

    def begin(self, phase: BeginPhase) -> None:
        """Begin a training phase: its data and shuffling."""
        self.phase = phase
        self.source.begin(phase)

    def prepare(self, batch: int) -> BatchInProgress:
        """Prepare a batch's data and distinct rows, with no values pulled yet."""
        size, phase = self.phase.local_batch, self.phase
        start = batch * size
        samples = min(size, phase.samples - start)
        grant = Granted(phase.number, batch, 0, start, samples, 0, 0.0, 0.0)
        item = BatchInProgress(grant, phase, *self.source.prepare(grant))
        for shard in range(self.model.servers):
            set_answer(item, shard)
        return item

    def arrived(self, values: Floats) -> Floats:
        """Round pulled values as the wire between server and worker does."""
        return rounded(self.codec, values)

    def compute(self, item: BatchInProgress) -> list[GradientSlice]:
        """Compute a batch's gradient slices, one per shard, each with its own memory."""
        self.model.load(item)
        sums, dense = self.arrived(self.model.gradient(item)), np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(dense)
        if self.phase.served_dense:
            dense = self.arrived(dense)
        index = item.unique.index
        return [
            GradientSlice(
                index[low:high], sums[low:high], dense[slice(*self.held[shard])] if shard in self.held else None
            )
            for shard, low, high in item.unique.shares()
        ]


def index_of(item: BatchInProgress, shard: int) -> Ints:
    """Return a shard's part of a batch's distinct rows, as local row numbers int32[n]."""
    return next(item.unique.index[low:high] for s, low, high in item.unique.shares() if s == shard)


class ReplayedReplica:
    """Dense parameters in phases where every worker holds a copy: one copy, stepped like the workers' copies.

    `home`: current holder of the dense parameters.
    """

    def __init__(self, gradients: GradientRecomputer, shards: list[Shard]) -> None:
        cfg, flat = gradients.cfg, gradients.flat
        self.block = dense_block(cfg, flat.initial(), flat.dense_spec)
        self.shards, self.cuts, self.home = shards, gradients.held, cfg.home
        self.codec = gradients.codec
        self._gradients: dict[int, Floats] = {}

    def move(self, home: str) -> None:
        """Move the dense parameters to the placement `home`, as a mode switch does."""
        if home == self.home:
            return
        self.home = home
        for shard, cut in self.cuts.items():
            slice_ = self.shards[shard].dense_block()
            if home == "servers":
                slice_.unpack(*cut, self.block.packed(*cut), self.block.step)
            else:
                self.block.unpack(*cut, slice_.packed(*cut), slice_.step)

    def take(self, batch: int, parts: list[GradientSlice]) -> None:
        """Keep the dense part of a batch's gradient until its step, and remove it from the shards' slices."""
        self._gradients[batch] = np.concatenate([part.dense for part in parts if part.dense is not None])
        for part in parts:
            part.dense = None

    def step(self, step: Step, lr_scale: float, ranks: int) -> None:
        """Sum a step's gradients as the all-reduce of `ranks` workers does, and apply the sum."""
        gradients = []
        for member in sorted(step.members, key=lambda member: member.batch):
            gradient = self._gradients.pop(member.batch)
            scale_by_weight(gradient, member.weight)
            round_here(self.codec, gradient)
            gradients.append(gradient)
        total = sum_in_rank_order(gradients)
        if len(step.members) < ranks:
            total += np.float32(0.0)  # workers without a gradient add 0.0: -0.0 becomes 0.0
        round_here(self.codec, total)
        self.block.apply(total, step.divisor, lr_scale)

    def model_sum(self, dense_alone: bool) -> int | None:
        """Compute the shard-independent checksum of the model; None if tables are too large."""
        served = self.home == "servers"
        if dense_alone:
            shards: list[int | None] = [shard.dense_block().model_sum() if served else 0 for shard in self.shards]
        else:
            shards = [shard.model_sum(served) for shard in self.shards]
        known = [total for total in shards if total is not None]
        return sum(known) + (0 if served else self.block.model_sum()) if len(known) == len(shards) else None


class PulledVersions:
    """Shard versions from which a phase's gradients were computed: recorded by `add`, iterated over by `pulls_at`."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._batches = array("I")
        self._versions = array("i")
        self._dropped: set[int] = set()
        self._order: list[NDArray[np.int64]] = []
        self._sorted: list[NDArray[np.int32]] = []

    def add(self, record: AnnounceRecord) -> None:
        """Record the versions that a gradient was computed from.

        A dense version of -1 (the worker had the slice from an earlier pull) means the rows' version."""
        self._batches.append(record.batch)
        self._versions.extend(record.row_versions)
        pairs = zip(record.dense_versions, record.row_versions, strict=True)
        self._versions.extend(dense if dense >= 0 else row for dense, row in pairs)

    def drop(self, batch: int) -> None:
        """Record that a gradient was discarded, so that no pulled values need to be kept for it."""
        self._dropped.add(batch)

    def repeated(self) -> int | None:
        """Return a batch that was announced twice; None if there is none."""
        values, counts = np.unique(np.asarray(self._batches, np.int64), return_counts=True)
        twice = values[counts > 1]
        return int(twice[0]) if len(twice) else None

    def pulls_at(self, version: int) -> Iterator[tuple[int, bool, int]]:
        """Iterate over the pulls made at `version`, (shard, whether dense, batch): rows first, in announced order."""
        if not self._sorted:
            self._sort()
        for unit, (order, versions) in enumerate(zip(self._order, self._sorted, strict=True)):
            low, high = np.searchsorted(versions, (version, version + 1))
            for position in order[low:high].tolist():
                batch = self._batches[position]
                if batch not in self._dropped:
                    yield unit % self.shards, unit >= self.shards, batch

    def _sort(self) -> None:
        table = np.asarray(self._versions, np.int32).reshape(-1, 2 * self.shards)
        for unit in range(2 * self.shards):
            order = np.argsort(table[:, unit], kind="stable")
            self._order.append(order)
            self._sorted.append(table[order, unit])


class CapturedValues:
    """Parameters that a phase's gradients were computed from, copied when the replayed shards reach that version."""

    def __init__(
        self, gradients: GradientRecomputer, shards: list[Shard], pulls: PulledVersions, replica: Floats | None
    ) -> None:
        """Capture rows from `shards`, and dense values from `replica` if given, since the shards then hold none."""
        self.gradients, self.shards, self.pulls, self.replica = gradients, shards, pulls, replica
        self._held: dict[int, BatchInProgress] = {}
        self._dense: dict[int, Floats] = {}
        self._computed: set[int] = set()  # batches computed at the current version

    def leave(self) -> None:
        """Before the shards take a step, copy the current values from which gradients are still to be computed."""
        for shard, dense, batch in self.pulls.pulls_at(self.shards[0].version):
            if batch not in self._computed:
                self._take(self._pulled(batch), shard, dense)
        self._dense.clear()
        self._computed.clear()

    def gradient(self, record: AnnounceRecord) -> list[GradientSlice]:
        """Compute an announced batch's gradient slices from its pulled values."""
        pulled = self._pulled(record.batch)
        for shard in range(len(self.shards)):
            answer = answer_of(pulled, shard)
            if answer.rows is None:
                self._take(pulled, shard, False)
            if answer.dense is None:
                self._take(pulled, shard, True)
        del self._held[record.batch]
        self._computed.add(record.batch)
        return self.gradients.compute(pulled)

    def forget(self, batch: int) -> None:
        """Drop the copied values of a batch whose gradient is never computed."""
        self._held.pop(batch, None)

    def _pulled(self, batch: int) -> BatchInProgress:
        if batch not in self._held:
            self._held[batch] = self.gradients.prepare(batch)
        return self._held[batch]

    def _take(self, pulled: BatchInProgress, shard: int, dense: bool) -> None:
        if dense:
            answer_of(pulled, shard).dense = self._slice(shard)
            return
        index = index_of(pulled, shard)
        rows = np.empty((len(index), self.gradients.width), np.float32)
        self.shards[shard].pull_rows(index, rows)
        self.shards[shard].note_pull(pulled.grant.batch, index)
        answer_of(pulled, shard).rows = self.gradients.arrived(rows)

    def _slice(self, shard: int) -> Floats:
        if shard not in self._dense:
            low, high = self.shards[shard].dense_range
            self._dense[shard] = np.empty(high - low, np.float32)
            if self.replica is None:
                self.shards[shard].pull_dense(self._dense[shard])
                self._dense[shard] = self.gradients.arrived(self._dense[shard])
            else:
                np.copyto(self._dense[shard], self.replica[low:high])
        return self._dense[shard]

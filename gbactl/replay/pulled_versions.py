"""Versions of the shards from which each gradient was computed, and copies of the values pulled at them.

A first pass over the log tells the versions. A shard's values are thus copied, before the shard takes a step, only for
gradients that pulled that version and are announced later. Memory: 4 + 8 x shards bytes a gradient. Gradients that
pulled the same version share one copy of its dense slices.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gbactl.coordinator.event_log import AnnounceRecord
from gbactl.kernels.base import Floats
from gbactl.replay.gradient_recomputation import GradientRecomputer, index_of
from gbactl.simulation.gradient_compute import answer_of
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.shard import Shard
from gbactl.worker.worker_core import BatchInProgress


class PulledVersions:
    """Shard versions that a phase's gradients pulled: collected by `add`, then iterated by version with `leaving`."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._batches = array("I")
        self._versions = array("i")
        self._dropped: set[int] = set()
        self._order: list[NDArray[np.int64]] = []
        self._sorted: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, record: AnnounceRecord) -> None:
        """Record the versions that an announced gradient pulled; a dense version of -1 stands for that of the rows."""
        self._batches.append(record.batch)
        self._versions.extend(record.row_versions)
        self._versions.extend(dense_versions(record))

    def drop(self, batch: int) -> None:
        """Record that a gradient was discarded, so that no pulled values need to be kept for it."""
        self._dropped.add(batch)

    def repeated(self) -> int | None:
        """Return a batch that was announced twice; None if there is none."""
        values, counts = np.unique(np.asarray(self._batches, np.int64), return_counts=True)
        twice = values[counts > 1]
        return int(twice[0]) if len(twice) else None

    def leaving(self, version: int) -> Iterator[tuple[int, bool, int]]:
        """Iterate over the pulls made at `version`: (shard, dense or rows, batch), rows first, in announced order."""
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


def dense_versions(record: AnnounceRecord) -> tuple[int, ...]:
    """Return the version of each shard's dense slice that a gradient was computed from.

    -1 (the worker had it from an earlier pull) is replaced by that of the rows.
    """
    pairs = zip(record.dense_versions, record.row_versions, strict=True)
    return tuple(dense if dense >= 0 else row for dense, row in pairs)


class CapturedValues:
    """Values that a phase's gradients pulled, copied when the replay's shards reach the pulled versions."""

    def __init__(
        self,
        gradients: GradientRecomputer,
        shards: list[Shard],
        pulls: PulledVersions,
        version: int,
        replica: Floats | None = None,
    ) -> None:
        """Capture from `shards`; dense values from `replica`, if given, as the shards then hold none."""
        self.gradients, self.shards, self.pulls, self.replica = gradients, shards, pulls, replica
        self.version = version
        self._held: dict[int, BatchInProgress] = {}
        self._dense: dict[int, Floats] = {}
        self._computed: set[int] = set()  # batches computed at the current version

    def leave(self) -> None:
        """Copy the values that later gradients pulled at the current version; call before the shards take a step."""
        for shard, dense, batch in self.pulls.leaving(self.version):
            if batch not in self._computed:
                self._take(self._pulled(batch), shard, dense)
        self._dense.clear()
        self._computed.clear()
        self.version += 1

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

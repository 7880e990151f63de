"""Which gradients were computed from which version of which shard, and copies of what they pulled.

The versions are known from a first pass over the log, so that a shard's values are copied, when it moves on, for
those alone that pulled them and are not announced before. Memory: 4 + 8 x shards bytes a gradient. Gradients that
pulled one version share one copy of its dense slices.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gbactl.coordinator.event_log import AnnounceRecord
from gbactl.kernels.base import Floats
from gbactl.replay.worker import Gradients, Pulled
from gbactl.store.gradient_slice import Part
from gbactl.store.shard import Shard


class Pulls:
    """Filled with `add`, then walked through with `leaving`, version by version."""

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
        """An announced gradient. A dense version of -1 says: that of the rows."""
        self._batches.append(record.batch)
        self._versions.extend(record.row_versions)
        self._versions.extend(dense_versions(record))

    def drop(self, batch: int) -> None:
        """A gradient that was discarded: nothing need be kept for it."""
        self._dropped.add(batch)

    def repeated(self) -> int | None:
        """A batch that was announced twice, if there is one."""
        values, counts = np.unique(np.asarray(self._batches, np.int64), return_counts=True)
        twice = values[counts > 1]
        return int(twice[0]) if len(twice) else None

    def leaving(self, version: int) -> Iterator[tuple[int, bool, int]]:
        """(shard, dense, batch) of everything pulled at `version`, rows before dense, in announced order."""
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
    """The version of each shard's dense slice; -1 (the worker had it from an earlier pull) is that of the rows."""
    pairs = zip(record.dense_versions, record.row_versions, strict=True)
    return tuple(dense if dense >= 0 else row for dense, row in pairs)


class Captures:
    """The pulls of one phase as they come due."""

    def __init__(
        self, gradients: Gradients, shards: list[Shard], pulls: Pulls, version: int, replica: Floats | None = None
    ) -> None:
        """`replica`: the dense vector where it is not the shards'."""
        self.gradients, self.shards, self.pulls, self.replica = gradients, shards, pulls, replica
        self.version = version
        self._held: dict[int, Pulled] = {}
        self._dense: dict[int, Floats] = {}
        self._computed: set[int] = set()  # at the present version

    def leave(self) -> None:
        """The shards are about to take a step: copy what was pulled now and is wanted later."""
        for shard, dense, batch in self.pulls.leaving(self.version):
            if batch not in self._computed:
                self._take(self._pulled(batch), shard, dense)
        self._dense.clear()
        self._computed.clear()
        self.version += 1

    def gradient(self, record: AnnounceRecord) -> list[Part]:
        """An announced batch's parts; what it pulled at the present version is read now."""
        pulled = self._pulled(record.batch)
        for shard in range(len(self.shards)):
            if pulled.rows[shard] is None:
                self._take(pulled, shard, False)
            if pulled.dense[shard] is None:
                self._take(pulled, shard, True)
        del self._held[record.batch]
        self._computed.add(record.batch)
        return self.gradients.compute(pulled)

    def forget(self, batch: int) -> None:
        """A gradient that is never computed."""
        self._held.pop(batch, None)

    def _pulled(self, batch: int) -> Pulled:
        if batch not in self._held:
            self._held[batch] = self.gradients.prepare(batch)
        return self._held[batch]

    def _take(self, pulled: Pulled, shard: int, dense: bool) -> None:
        if dense:
            pulled.dense[shard] = self._slice(shard)
            return
        index = pulled.index(shard)
        rows = np.empty((len(index), self.gradients.width), np.float32)
        self.shards[shard].pull_rows(index, rows)
        self.shards[shard].note_pull(pulled.number, index)
        pulled.rows[shard] = self.gradients.arrived(rows)

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

"""Which gradients were computed from which version of which shard, in one phase.

Known from a first pass over the log, so that a shard's values are copied for those alone that pulled them and
are not announced before the shard moves on. Memory: 4 + 8 x shards bytes a gradient.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gbactl.coordinator.event_log import AnnounceRecord


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

"""How many updates of rows lost servers have undone (following the idea of CPR). Pure.

An update is one row of one gradient, of weight above 0, applied. Where rows are saved at different times, each is
undone back to its own last save, and a counter a row (4 bytes) knows how many that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class UpdateCounter:
    """Of a whole job, by shard. O(1) a call."""

    def __init__(self, shards: int) -> None:
        self.applied_on, self.lost_on = [0] * shards, [0] * shards
        self._unsaved = [0] * shards

    def told(self) -> list[list[int]]:
        """As plain containers."""
        return [list(self.applied_on), list(self.lost_on), list(self._unsaved)]

    def restore(self, told: list[list[int]]) -> None:
        """As it was when that was told."""
        self.applied_on, self.lost_on, self._unsaved = (list(each) for each in told)

    def applied(self, shard: int, updates: int) -> None:
        """A shard has applied so many."""
        self.applied_on[shard] += updates
        self._unsaved[shard] += updates

    @property
    def unsaved(self) -> list[int]:
        """Of each shard: those that would be undone now."""
        return list(self._unsaved)

    def saved(self, shard: int, updates: int) -> None:
        """So many of those that were not saved before are on the disk now."""
        self._unsaved[shard] = max(0, self._unsaved[shard] - updates)

    def lost(self, shard: int) -> int:
        """A shard went back to what is saved: how many were undone. What was lost is lost once."""
        undone, self._unsaved[shard] = self._unsaved[shard], 0
        self.lost_on[shard] += undone
        return undone

    def again(self) -> None:
        """Every shard went back, and what was not saved, or missed, is done again: it counts once."""
        for shard, undone in enumerate(self._unsaved):
            self.applied_on[shard] -= undone + self.lost_on[shard]
            self._unsaved[shard] = self.lost_on[shard] = 0

    def missed(self, shard: int, updates: int) -> None:
        """So many went to a shard that was lost before it had applied them, and never come."""
        self.applied_on[shard] += updates
        self.lost_on[shard] += updates

    @property
    def total(self) -> int:
        """All that were applied, or would have been."""
        return sum(self.applied_on)

    @property
    def total_lost(self) -> int:
        """Of these, those undone or missed."""
        return sum(self.lost_on)

    @property
    def share(self) -> float:
        """Lost / all; 0 where there were none."""
        return self.total_lost / self.total if self.total else 0.0


class RowUpdates:
    """Updates of each of a shard's `rows` since it was saved: uint32[rows]."""

    def __init__(self, rows: int) -> None:
        self.counts: NDArray[Any] = np.zeros(rows, np.uint32)

    def touched(self, index: NDArray[np.int32]) -> None:
        """A gradient of weight above 0 is applied to rows `index` int32[n], distinct."""
        self.counts[index] += np.uint32(1)

    def saved(self, index: NDArray[np.int32] | Sequence[int] | None = None) -> int:
        """These rows (None: all) are saved as they are now: how many updates are safe with them."""
        which: Any = slice(None) if index is None else index
        safe = int(self.counts[which].sum(dtype=np.uint64))
        self.counts[which] = 0
        return safe

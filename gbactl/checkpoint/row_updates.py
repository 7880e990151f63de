"""How many updates of rows lost servers have undone (following the idea of CPR). Pure.

An update is one row of one gradient, of weight above 0, applied. Where rows are saved at different times, each is
undone back to its own last save, and a counter a row (4 bytes) knows how many that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class UpdateCounter:
    """Of a whole job, by shard; `pending`: not saved yet. O(1) a call."""

    shards: int
    applied_on: list[int] = field(default_factory=list)
    lost_on: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.applied_on = self.applied_on or [0] * self.shards
        self.lost_on = self.lost_on or [0] * self.shards
        self.pending = self.pending or [0] * self.shards

    def applied(self, shard: int, updates: int) -> None:
        """A shard has applied so many."""
        self.applied_on[shard] += updates
        self.pending[shard] += updates

    @property
    def unsaved(self) -> list[int]:
        """Of each shard: those that would be undone now."""
        return list(self.pending)

    def saved(self, shard: int, updates: int) -> None:
        """So many of those that were not saved before are on the disk now."""
        self.pending[shard] = max(0, self.pending[shard] - updates)

    def lost(self, shard: int) -> int:
        """A shard went back to what is saved: how many were undone. What was lost is lost once."""
        undone, self.pending[shard] = self.pending[shard], 0
        self.lost_on[shard] += undone
        return undone

    def again(self) -> None:
        """Every shard went back, and what was not saved, or missed, is done again: it counts once."""
        for shard, undone in enumerate(self.pending):
            self.applied_on[shard] -= undone + self.lost_on[shard]
            self.pending[shard] = self.lost_on[shard] = 0

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

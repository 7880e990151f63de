"""In-memory collective: ranks are threads of one process, sums are in rank order. For tests and virtual clusters.

Costs one copy of each buffer and a condition variable; no sockets, no torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gbactl.collective.base import (
    Vector,
    as_array,
    ring_share,
    sum_in_rank_order,
)
from gbactl.collective.fault_tolerant import FaultTolerantCollective, InterruptedSum
from gbactl.errors import ClusterError

KEPT_ROUNDS = 16  # dealt rounds that are kept: no rank is so far behind


@dataclass
class _Round:
    parts: dict[int, Vector] = field(default_factory=dict)
    total: Vector | None = None
    taken: int = 0


@dataclass(frozen=True)
class _Handle:
    key: tuple[str, int]
    buffer: Vector
    parts: int = 0
    living: bool = False


class MemoryGroup:
    """Shared state of an in-memory group of ranks.

    `member(rank)` is that rank's Collective; `item`: bytes counted for a value."""

    def __init__(self, size: int, timeout: float = 30.0, item: int = 4) -> None:
        self.size, self.item = size, item
        self.timeout = timeout
        self.changed = threading.Condition()
        self.rounds: dict[tuple[str, int], _Round] = {}
        self.lengths: dict[str, int] = {}
        self.gone: set[int] = set()

    def member(self, rank: int) -> MemoryCollective:
        """Return the collective of one rank, to be used from one thread."""
        return MemoryCollective(self, rank)

    def put(self, key: tuple[str, int], rank: int, part: Vector) -> None:
        """Store one rank's summand; the last one to arrive sums all of them in rank order."""
        with self.changed:
            if self.lengths.setdefault(key[0], len(part)) != len(part):
                raise ValueError(f"{key[0]} has {self.lengths[key[0]]} floats in this group, not {len(part)}")
            entry = self.rounds.setdefault(key, _Round())
            entry.parts[rank] = part
            if len(entry.parts) == self.size:
                entry.total = sum_in_rank_order([entry.parts[r] for r in range(self.size)])
                self.changed.notify_all()

    def take(self, key: tuple[str, int], out: Vector) -> None:
        """Wait for all summands and copy the sum out. Raises ClusterError where one is missing."""
        deadline = time.monotonic() + self.timeout
        with self.changed:
            entry = self.rounds[key]
            while entry.total is None:
                left = deadline - time.monotonic()
                missing = sorted(set(range(self.size)) - set(entry.parts))
                if left <= 0 or self.gone & set(missing):
                    raise ClusterError(f"rank {missing[0]} did not take part in all-reduce {key[0]}.")
                self.changed.wait(left)
            out[:] = entry.total
            entry.taken += 1
            if entry.taken == self.size:
                del self.rounds[key]

    def fill(self, key: tuple[str, int], part: int, vector: Vector) -> None:
        """Store a summand of a round, whichever rank computed it."""
        with self.changed:
            self.rounds.setdefault(key, _Round()).parts[part] = vector
            self.changed.notify_all()

    def gather(self, key: tuple[str, int], parts: int, out: Vector, wanted: Callable[[], bool]) -> None:
        """Sum a round's summands into `out` when all are there. Raises InterruptedSum, ClusterError."""
        deadline = time.monotonic() + self.timeout
        with self.changed:
            entry = self.rounds.setdefault(key, _Round())
            while not set(range(parts)) <= set(entry.parts):
                if wanted():
                    raise InterruptedSum
                if time.monotonic() > deadline:
                    raise ClusterError(f"a part of all-reduce {key[0]} never came.")
                self.changed.wait(0.05)
            out[:] = sum_in_rank_order([entry.parts[part] for part in range(parts)])
            self.rounds.pop((key[0], key[1] - KEPT_ROUNDS), None)

    def meet(self, key: tuple[str, int], out: Vector, absent: set[int]) -> None:
        """Wait for the live ranks and copy out their sum, with summands that failed ranks had given.

        Raises ClusterError."""
        deadline = time.monotonic() + self.timeout
        with self.changed:
            entry = self.rounds.setdefault(key, _Round())
            while entry.total is None:
                if set(range(self.size)) - self.gone - absent <= set(entry.parts):
                    entry.total = sum_in_rank_order([part for _, part in sorted(entry.parts.items())])
                elif time.monotonic() > deadline:
                    raise ClusterError(f"somebody did not take part in all-reduce {key[0]}.")
                else:
                    self.changed.wait(0.05)
            out[:] = entry.total
            self.rounds.pop((key[0], key[1] - KEPT_ROUNDS), None)

    def back(self, rank: int) -> None:
        """Mark a rank as present again after its replacement has joined."""
        with self.changed:
            self.gone.discard(rank)

    def leave(self, rank: int) -> None:
        """Mark a rank as gone and wake the waiting ranks."""
        with self.changed:
            self.gone.add(rank)
            self.changed.notify_all()


class MemoryCollective(FaultTolerantCollective):
    """One rank of a MemoryGroup. It counts the bytes that a ring of the live ranks would send."""

    def __init__(self, group: MemoryGroup, rank: int) -> None:
        super().__init__(rank, group.size)
        self.group = group
        self._rounds: dict[str, int] = {}
        self._generation = 0

    def on_rank_failed(self, rank: int) -> None:
        """See FaultTolerantCollective.on_rank_failed; no memory is ever overwritten here."""
        self._absent.add(rank)
        self.interrupt()

    def interrupt(self) -> None:
        """See FaultTolerantCollective.interrupt."""
        with self.group.changed:
            self.group.changed.notify_all()

    def renew(self, generation: int) -> None:
        """See FaultTolerantCollective.renew."""
        super().renew(generation)
        self._generation = generation
        self._rounds.clear()
        self.group.back(self.rank)

    def give(self, name: str, buffer: Any) -> _Handle:
        """See FaultTolerantCollective.give."""
        array = as_array(buffer)
        if self._assignment is not None:
            number, part, parts, _ = self._assignment
            key = (f"{self._generation}/{name}", number)
            if part is not None:
                self.group.fill(key, part, array.copy())
            return _Handle(key, array, parts)
        number = self._rounds.get(name, 0)
        self._rounds[name] = number + 1
        key = (f"{self._generation}/{name}" if self._generation else name, number)
        if self._sums_live_ranks:
            self.group.fill(key, self.rank, array.copy())
        else:
            self.group.put(key, self.rank, array.copy())
        return _Handle(key, array, living=self._sums_live_ranks)

    def sum_given(self, handle: _Handle) -> None:
        """See FaultTolerantCollective.sum_given."""
        if handle.parts:
            self.group.gather(handle.key, handle.parts, handle.buffer, self.wanted)
        elif handle.living:
            self.group.meet(handle.key, handle.buffer, self._absent)
        else:
            self.group.take(handle.key, handle.buffer)
        others = [rank for rank in range(self.size) if rank != self.rank and rank not in self._absent]
        place = sum(rank < self.rank for rank in others)
        self.on_bytes_sent(ring_share(len(handle.buffer), len(others) + 1, place, self.group.item), False)

    def confirm_sum(self, handle: _Handle) -> bool:
        """See FaultTolerantCollective.confirm_sum; no ring is used here."""
        return True

    def close(self) -> None:
        """See Collective.close."""
        self.group.leave(self.rank)

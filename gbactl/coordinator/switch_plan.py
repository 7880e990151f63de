"""When a run goes on in which mode: its schedule and what is asked of it from outside. Pure.

Entries are taken in their order; what is asked comes at once and changes nothing of the entries after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gbactl.config import RunConfig
from gbactl.policies import Policy
from gbactl.switching.schedule import Entry, located


@dataclass(frozen=True)
class Position:
    """How far a run is: its round (day or epoch), samples handed out, global step, seconds since its start."""

    round: int
    samples: int
    step: int
    seconds: float


class Plan:
    """`rows`: the samples of each round. Raises ConfigError for an entry that can never come."""

    def __init__(self, cfg: RunConfig, rows: Sequence[int]) -> None:
        self.entries, self.phases = cfg.entries, cfg.phases
        self.points = located(self.entries, rows)
        self.asked: RunConfig | None = None
        self.fresh = False  # whether the optimizer's state begins anew with what was taken last
        self.point = ""  # the scheduled point of what was taken last; empty if it was asked
        self._next = 0

    @property
    def next(self) -> Entry | None:
        """The entry that comes next."""
        return self.entries[self._next] if self._next < len(self.entries) else None

    @property
    def taken(self) -> int:
        """How many entries have come."""
        return self._next

    @taken.setter
    def taken(self, count: int) -> None:
        self._next = count

    @property
    def coming(self) -> str:
        """The mode that comes next."""
        if self.asked is not None:
            return self.asked.mode.name
        return "" if self.next is None else self.next.to

    def take(self, at: Position) -> RunConfig | None:
        """What rules from here on, if anything is due: the last entry, or what was asked."""
        found, self.fresh, self.point = None, False, ""
        while (entry := self.next) is not None and self._due(entry, at):
            self._next, self.point = self._next + 1, entry.point
            found, self.fresh = self.phases[self._next], self.fresh or entry.fresh
        if self.asked is not None:
            found, self.asked, self.point = self.asked, None, ""
        return found

    def _due(self, entry: Entry, at: Position) -> bool:
        if entry.unit in ("day", "epoch"):
            return entry.value <= at.round
        if entry.unit == "step":
            return entry.value <= at.step
        if entry.unit == "seconds":
            return entry.value <= at.seconds
        point = self.points[self._next]
        return point is not None and point <= at.samples

    def called(self, seconds: float) -> bool:
        """Whether a phase has to end now, at no point that was known when it began."""
        entry = self.next
        return self.asked is not None or (entry is not None and entry.unit == "seconds" and entry.value <= seconds)

    def last_batch(self, policy: Policy, at: Position) -> int | None:
        """The batch of a phase that begins at `at` with which the next entry is reached; None if not known."""
        entry, point = self.next, None if self.next is None else self.points[self._next]
        if entry is None or entry.unit in ("day", "epoch"):
            return None
        if entry.unit == "step":
            return policy.batches_of(int(entry.value) - at.step)
        return None if point is None else -(-(point - at.samples) // policy.phase.local_batch)

    def last_step(self) -> int | None:
        """The global step at which the next entry is reached, if that is how it is told."""
        entry = self.next
        return int(entry.value) if entry is not None and entry.unit == "step" else None

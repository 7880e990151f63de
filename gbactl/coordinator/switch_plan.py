"""Plan of a run's modes: its schedule and the requests from outside. Pure.

Entries are taken in order; a request takes effect at once and does not change the entries after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gbactl.config import RunConfig
from gbactl.policies import Policy
from gbactl.switching.mode_switches import ScheduleEntry, located


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run: its round (day or epoch), samples handed out, global step, seconds since its start."""

    round: int
    samples: int
    step: int
    seconds: float


class SwitchPlan:
    """Plan of mode switches. `rows`: samples of each round. Raises ConfigError for an entry that is never reached."""

    def __init__(self, cfg: RunConfig, rows: Sequence[int]) -> None:
        self.entries, self.phases = cfg.entries, cfg.phases
        self.points = located(self.entries, rows)
        self.asked: RunConfig | None = None
        self.fresh = False  # whether the last switch taken resets the optimizer's state
        self.point = ""  # scheduled point of the last switch taken; empty if it was requested
        self._next = 0

    @property
    def next(self) -> ScheduleEntry | None:
        """Entry that comes next; None after the last."""
        return self.entries[self._next] if self._next < len(self.entries) else None

    @property
    def taken(self) -> int:
        """Number of entries taken."""
        return self._next

    @taken.setter
    def taken(self, count: int) -> None:
        self._next = count

    @property
    def coming(self) -> str:
        """Name of the mode that comes next; empty if none."""
        if self.asked is not None:
            return self.asked.mode.name
        return "" if self.next is None else self.next.to

    def take(self, at: RunProgress) -> RunConfig | None:
        """Configuration from here on, if a switch is due: the last due entry, or the request."""
        found, self.fresh, self.point = None, False, ""
        while (entry := self.next) is not None and self._due(entry, at):
            self._next, self.point = self._next + 1, entry.point
            found, self.fresh = self.phases[self._next], self.fresh or entry.fresh
        if self.asked is not None:
            found, self.asked, self.point = self.asked, None, ""
        return found

    def _due(self, entry: ScheduleEntry, at: RunProgress) -> bool:
        if entry.unit in ("day", "epoch"):
            return entry.value <= at.round
        if entry.unit == "step":
            return entry.value <= at.step
        if entry.unit == "seconds":
            return entry.value <= at.seconds
        point = self.points[self._next]
        return point is not None and point <= at.samples

    def called(self, seconds: float) -> bool:
        """Whether a phase has to end now, at a point that was not known when it began."""
        entry = self.next
        return self.asked is not None or (entry is not None and entry.unit == "seconds" and entry.value <= seconds)

    def last_batch(self, policy: Policy, at: RunProgress) -> int | None:
        """Batch before which a phase that begins at `at` reaches the next entry; None if unknown."""
        entry, point = self.next, None if self.next is None else self.points[self._next]
        if entry is None or entry.unit in ("day", "epoch"):
            return None
        if entry.unit == "step":
            return policy.batches_of(int(entry.value) - at.step)
        return None if point is None else -(-(point - at.samples) // policy.phase.local_batch)

    def last_step(self) -> int | None:
        """Global step at which the next entry is reached, if it is given as a step."""
        entry = self.next
        return int(entry.value) if entry is not None and entry.unit == "step" else None

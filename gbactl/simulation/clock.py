"""Event queue and virtual clock: events happen in order of (time, sequence).

Costs about a microsecond an event.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class EventQueue:
    """Event queue. `now`: virtual seconds of work since the start; it moves only in `step` and `wait`.

    `clock` also counts the seconds for which the whole cluster stood still, `stalled` in all."""

    def __init__(self, now: float = 0.0, stalled: float = 0.0) -> None:
        self.now, self.stalled = now, stalled
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call at a time. Raises ValueError for a past or infinite time, or NaN."""
        if not self.now <= time < math.inf:
            raise ValueError(f"an event at {time} was planned at {self.now}")
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call `delay` seconds from now."""
        self.at(self.now + delay, call, *args)

    @property
    def clock(self) -> float:
        """Virtual wall-clock time in seconds."""
        return self.now + self.stalled

    def stall(self, seconds: float) -> None:
        """Stop the whole cluster for `seconds`: all events are delayed by as much. Raises ValueError below 0."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"nobody stands still for {seconds} seconds")
        self.stalled += seconds

    @property
    def next_time(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, call, args = heappop(self._heap)
        call(*args)
        return True

    def wait(self, until: float) -> None:
        """Advance the clock to `until`, with no event before it. Raises ValueError if there is one."""
        if until < self.now or until > self.next_time:
            raise ValueError(f"the clock cannot be moved from {self.now} to {until}")
        self.now = until

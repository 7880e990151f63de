"""Seconds that a thread of a worker or server spends in each of its activities. Costs about a microsecond of CPU each.

A worker measures what it waits for, besides computing; a server how long it handles messages, and of that its kernels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gbactl.wire.messages import WAITS

BATCH, ROWS, TURN, PUSH, ALL_REDUCE = range(len(WAITS))
BUSY, KERNELS = range(2)


class NodeTimes(threading.local):
    """Times of the calling thread since it last took them; each thread sees its own."""

    def __init__(self, activities: int = len(WAITS), clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.seconds = clock, [0.0] * activities

    @contextmanager
    def of(self, activity: int) -> Iterator[None]:
        """Context of one activity, whose duration is added."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[activity] += self.clock() - began

    def next_batch(self, began: float, granted: float) -> None:
        """Add the wait for a batch from `began` until now; from the time at which it was `granted` on, it was for rows.

        A batch that was granted before has 0 or an earlier time."""
        now = self.clock()
        since = min(max(began, granted), now)
        self.seconds[BATCH] += since - began
        self.seconds[ROWS] += now - since

    def take(self) -> list[float]:
        """Return and clear the times, in the order of the activities."""
        taken, self.seconds = self.seconds, [0.0] * len(self.seconds)
        return taken


class ServerTimes(NodeTimes):
    """Times of a server: BUSY with a message, and KERNELS within that; summed up over training."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(2, clock)
        self._since, self._told = clock(), {"idle": 0.0, "kernels": 0.0, "messages": 0.0}

    def total(self, training: bool) -> dict[str, float]:
        """Return the seconds of all training so far by activity; those since the last call count if in `training`."""
        (busy, kernels), began = self.take(), self._since
        self._since = self.clock()
        if training:
            told, parts = self._told, (self._since - began - busy, kernels, busy - kernels)
            self._told = {name: told[name] + max(0.0, part) for name, part in zip(told, parts, strict=True)}
        return self._told

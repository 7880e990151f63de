"""Seconds that a compute thread waits, by what it waits for. Costs about a microsecond of CPU a wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gbactl.wire.messages import WAITS

BATCH, ROWS, TURN, PUSH, ALL_REDUCE = range(len(WAITS))


class WaitTimes(threading.local):
    """Waits of the calling thread since its last push; each thread sees its own."""

    def __init__(self) -> None:
        self.seconds = [0.0] * len(WAITS)

    @contextmanager
    def of(self, wait: int) -> Iterator[None]:
        """Context of one wait, whose duration is added."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[wait] += time.perf_counter() - began

    def next_batch(self, began: float, granted: float) -> None:
        """Add the wait for a batch from `began` until now; from the time at which it was `granted` on, it was for rows.

        A batch that was granted before has 0 or an earlier time."""
        now = time.perf_counter()
        since = min(max(began, granted), now)
        self.seconds[BATCH] += since - began
        self.seconds[ROWS] += now - since

    def take(self) -> list[float]:
        """Return and clear the waits, in the order of WAITS."""
        taken, self.seconds = self.seconds, [0.0] * len(WAITS)
        return taken

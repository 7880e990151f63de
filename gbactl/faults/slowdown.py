"""How a real worker is slowed: it waits after computing, as long as the plan says, and pushes later.

Waiting costs no CPU, so nobody else is slowed. A wait that the busy kernel ends late is made up for by the
next one: over a run the factor is met. It is the factor over what the batch takes others: one that has waited
computes some 5 % slower afterwards (its caches are cold), which is no part of the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gbactl.faults.plan import FaultPlan

MOST_LATE = 0.1  # seconds of lateness that are remembered


class Timed(Protocol):
    """What is stretched: a batch's `seconds`, and the factor it was stretched by."""

    seconds: float
    slowdown: float


class Delay:
    """One worker's share of the plan. `clock` and `sleep` in seconds."""

    def __init__(
        self, plan: FaultPlan, worker: int,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.plan, self.worker, self.clock, self.sleep = plan, worker, clock, sleep
        self._turn = 0
        self._began: float | None = None
        self._late = 0.0

    def stretch(self, item: Timed, usual: float = 0.0) -> None:
        """Call when the gradient is there and `item.seconds` says how long it took: waits the rest.

        `usual`: seconds that it takes those who are not slowed; 0 where nobody knows, then its own stand for them.
        Afterwards `item.seconds` is the whole time and `item.slowdown` the factor that was asked for.
        """
        if not self.plan.slows(self.worker):
            return
        computed, begin = item.seconds, self.clock()
        started = begin - computed
        self._began = started if self._began is None else self._began
        item.slowdown = self.plan.factor(self.worker, self._turn, started - self._began)
        self._turn += 1
        wanted = item.slowdown * (usual or computed) - computed if item.slowdown > 1.0 else 0.0
        if wanted > 0.0:
            self._wait_until(begin + wanted - self._late)
            waited = self.clock() - begin
            self._late = min(MOST_LATE, max(0.0, self._late + waited - wanted))
            item.seconds += waited

    def _wait_until(self, deadline: float) -> None:
        while (left := deadline - self.clock()) > 0.0:
            self.sleep(left)

"""When which process fails: the kills and hangs of a plan in the order in which they come due.

Told how far a run is, it says what is to be done now; it does nothing itself. A function of the plan's seed alone.
Costs a comparison a question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gbactl.faults.draws import key_of, uniform
from gbactl.faults.failures import Failure, Hang
from gbactl.faults.plan import FaultPlan

_FAILURES = 3  # keeps these draws apart from the plan's others


@dataclass(frozen=True)
class Injection:
    """A process (W1, S0, C) is to be hurt now. `seconds`: how long a hang lasts (None: for ever)."""

    kind: str
    process: str
    seconds: float | None = None


class _Due:
    """One plan's next failure: at a `step`, or at a time in `seconds`."""

    def __init__(self, fault: Failure, processes: tuple[str, ...], key: int) -> None:
        self.fault, self.processes, self.key = fault, processes, key
        self.step = math.inf if fault.step is None else float(fault.step)
        self.seconds = math.inf if fault.time is None else fault.time
        self._left = 1 if fault.mtbf is None else math.inf if fault.times is None else fault.times
        self._turn = 0
        if fault.mtbf is not None:
            self.seconds = fault.interval(uniform(key, 0))

    def take(self, step: int, seconds: float) -> list[Injection]:
        found: list[Injection] = []
        while self._left and (step >= self.step or seconds >= self.seconds):
            self._left -= 1
            found += [self._injection(process) for process in self._victims()]
            self._next()
        return found

    def _victims(self) -> tuple[str, ...]:
        if self.fault.mtbf is None:
            return self.processes
        return (self.processes[int(uniform(self.key, 2 * self._turn + 1) * len(self.processes))],)

    def _next(self) -> None:
        self._turn += 1
        if self.fault.mtbf is not None:
            self.seconds += self.fault.interval(uniform(self.key, 2 * self._turn))
        if not self._left:
            self.step = self.seconds = math.inf

    def _injection(self, process: str) -> Injection:
        seconds = self.fault.seconds if isinstance(self.fault, Hang) else None
        return Injection(self.fault.kind, process, seconds)


class Injector:
    """All kills and hangs of a plan."""

    def __init__(self, plan: FaultPlan) -> None:
        self._due = [
            _Due(fault, _processes(plan, place), key_of(plan.seed, place, _FAILURES))
            for place, fault in enumerate(plan.faults)
            if isinstance(fault, Failure) and _processes(plan, place)
        ]

    def due(self, step: int, seconds: float) -> list[Injection]:
        """What comes due by a global step and a time since training began; each is told once. The coordinator comes
        last: it has all of them done, and its successor holds them for done."""
        if not self._due:
            return []
        found = [injection for each in self._due for injection in each.take(step, seconds)]
        return sorted(found, key=lambda injection: injection.process == "C")

    @property
    def next_seconds(self) -> float:
        """When the next one that goes by time is due; infinity if none is."""
        return min((each.seconds for each in self._due), default=math.inf)


def _processes(plan: FaultPlan, place: int) -> tuple[str, ...]:
    fault = plan.faults[place]
    workers, servers = plan.chosen[place], plan.servers[place]
    coordinator = ("C",) if isinstance(fault, Failure) and fault.coordinator else ()
    return (*(f"W{index}" for index in workers), *(f"S{index}" for index in servers), *coordinator)

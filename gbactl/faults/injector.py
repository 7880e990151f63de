"""When which process fails: the kills and hangs of a plan in the order in which they come due.

Told how far a run is, it says what is to be done now; it does nothing itself. A function of the plan's seed alone.
Costs a comparison a question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gbactl.faults.base import Due
from gbactl.faults.plan import FaultPlan
from gbactl.faults.random_streams import key_of, uniform
from gbactl.faults.spec import Failure, Hang

_FAILURES = 3  # keeps these draws apart from the plan's others


@dataclass(frozen=True)
class Injection:
    """A process (W1, S0, C) is to be hurt now. `seconds`: how long a hang lasts (None: for ever); `place`: in the
    plan."""

    kind: str
    process: str
    seconds: float | None = None
    place: int = field(default=0, compare=False)


class _Strike(Due):
    """One plan's next failure, and of which `processes`."""

    def __init__(self, fault: Failure, processes: tuple[str, ...], key: int, place: int) -> None:
        super().__init__(fault, key)
        self.processes, self.place = processes, place

    def take(self, step: int, seconds: float) -> list[Injection]:
        found: list[Injection] = []
        while self.there(step, seconds):
            found += [self._injection(process) for process in self._victims()]
            self.next()
        return found

    def _victims(self) -> tuple[str, ...]:
        if self.fault.mtbf is None:
            return self.processes
        return (self.processes[int(uniform(self.key, 2 * self.turn + 1) * len(self.processes))],)

    def _injection(self, process: str) -> Injection:
        seconds = self.fault.seconds if isinstance(self.fault, Hang) else None
        return Injection(self.fault.kind, process, seconds, self.place)


class Injector:
    """All kills and hangs of a plan."""

    def __init__(self, plan: FaultPlan) -> None:
        self._due = [
            _Strike(fault, _processes(plan, place), key_of(plan.seed, place, _FAILURES), place)
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

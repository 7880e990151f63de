"""Schedule of a fault plan's kills and hangs, in the order in which they become due.

Given the progress of a run, it returns the injections that are due now and executes none. A function of the plan's seed
alone. Costs a comparison a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gbactl.faults.base import NextOccurrence
from gbactl.faults.plan import FaultPlan
from gbactl.faults.random_streams import key_of, uniform
from gbactl.faults.spec import Hang, ProcessFailure

_FAILURES = 3  # separates these random numbers from the plan's others


@dataclass(frozen=True)
class Injection:
    """Kill or hang of a process (W1, S0, C) that is due now.

    `seconds`: duration of a hang (None: for ever); `place`: index in the plan."""

    kind: str
    process: str
    seconds: float | None = None
    place: int = field(default=0, compare=False)


class _Strike(NextOccurrence):
    """Next failure from one plan, and the `processes` that it may hit."""

    def __init__(self, fault: ProcessFailure, processes: tuple[str, ...], key: int, place: int) -> None:
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


class FaultInjector:
    """Schedule of all kills and hangs of a plan."""

    def __init__(self, plan: FaultPlan) -> None:
        self._due = [
            _Strike(fault, _processes(plan, place), key_of(plan.seed, place, _FAILURES), place)
            for place, fault in enumerate(plan.faults)
            if isinstance(fault, ProcessFailure) and _processes(plan, place)
        ]

    def due(self, step: int, seconds: float) -> list[Injection]:
        """Return the injections due at a global step and a time since training began, each once.

        The coordinator's comes last: it must have all others done, as its successor takes them as done."""
        if not self._due:
            return []
        found = [injection for each in self._due for injection in each.take(step, seconds)]
        return sorted(found, key=lambda injection: injection.process == "C")

    @property
    def next_seconds(self) -> float:
        """Time of the next injection that is due by time; infinity if there is none."""
        return min((each.seconds for each in self._due), default=math.inf)


def _processes(plan: FaultPlan, place: int) -> tuple[str, ...]:
    fault = plan.faults[place]
    workers, servers = plan.chosen[place], plan.servers[place]
    coordinator = ("C",) if isinstance(fault, ProcessFailure) and fault.coordinator else ()
    return (*(f"W{index}" for index in workers), *(f"S{index}" for index in servers), *coordinator)

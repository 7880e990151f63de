"""Fault plan: slow-down factors of batches and messages, and the schedule of kills and hangs. Pure, seeded.

Several faults of one process multiply. The plan has no clock and no state: local and virtual runs of one seed slow the
same batches by the same factors. The workers (or servers) of a fault are given as indexes, as all, as a number or as a
share; in the last two cases the seed chooses them. Given the progress of a run, the schedule returns the kills and
hangs that are due now, and executes none. A factor costs 3 us, a query of the schedule a comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gbactl.checked_dataclasses import Seed
from gbactl.errors import ConfigError
from gbactl.faults.fault_kinds import (
    CpuHog,
    Fault,
    Hang,
    NextOccurrence,
    ProcessFailure,
    parse,
)
from gbactl.faults.message_faults import ActivePeriods, AllActivePeriods, MessageFaults
from gbactl.hashes_and_random_numbers import key_of, uniform

_SERVERS, _PERIODS = 2, 5  # separate the random numbers of servers, and of active periods, from the workers'
_CHOICE = 1  # separates the random numbers of the choice from those of batches


@dataclass
class FaultsConfig:
    """Configuration of fault injection: the list of faults (see fault_kinds.py), and the `seed` of random ones.

    `seed` null: the run's. `name` is for users; plans that are typed beside `none` have none."""

    seed: Seed | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)
    name: str = "none"


class FaultPlan:
    """Fault plan of a run with the given numbers of workers and servers. Raises ConfigError.

    `seed` is the run's, unless the plan has its own."""

    def __init__(self, cfg: FaultsConfig, seed: int, workers: int, servers: int = 0) -> None:
        self.seed, self.worker_count = seed if cfg.seed is None else cfg.seed, workers
        self.faults = parse(cfg.plans)
        entries = [(fault, f"faults.plans[{index}]", index) for index, fault in enumerate(self.faults)]
        self.chosen = tuple(choose(fault.workers, workers, at, self.seed, index) for fault, at, index in entries)
        self.servers = tuple(
            choose(fault.servers, servers, at, self.seed, index, kind="server") for fault, at, index in entries
        )
        self._faults_of: dict[str, list[tuple[int, Fault, int]]] = {}  # (index in the plan, fault, the process's key)
        for index, fault in enumerate(self.faults):
            for worker in self.chosen[index] if fault.slows else ():
                key = key_of(self.seed, index, worker)
                self._faults_of.setdefault(f"W{worker}", []).append((index, fault.of(worker), key))
            for server in self.servers[index] if fault.slows else ():
                key = key_of(self.seed, index, _SERVERS, server)
                self._faults_of.setdefault(f"S{server}", []).append((index, fault, key))

    def factor(self, worker: int, number: int, seconds: float) -> float:
        """Return the slow-down factor, at least 1, of a worker's batch number `number`, begun `seconds` into training.

        `number` counts the worker's own batches with samples from 0 through the whole run; evaluation is not slowed."""
        if not self._faults_of:
            return 1.0
        return math.prod((factor for _, factor in self.acting_faults(f"W{worker}", number, seconds)), start=1.0)

    def acting_faults(self, process: str, number: int, seconds: float) -> list[tuple[int, float]]:
        """Return (index, factor) of the faults that slow a process (W1 or S0) in its batch `number`.

        `seconds`: since training began. A server's `number` counts the pulls, pushes and orders that it handles."""
        found = [
            (index, fault.factor_at(key, number, seconds)) for index, fault, key in self._faults_of.get(process, ())
        ]
        return [(index, factor) for index, factor in found if factor > 1.0]

    def fault_indexes(self, process: str) -> list[int]:
        """Return the indexes of the faults that can slow a process."""
        return [index for index, _, _ in self._faults_of.get(process, ())]

    def slows(self, worker: int) -> bool:
        """Whether a worker's slow-down factor can be above 1."""
        return f"W{worker}" in self._faults_of

    @property
    def slowed(self) -> frozenset[int]:
        """Workers that some fault slows."""
        return frozenset(int(process[1:]) for process in self._faults_of if process[0] == "W")

    @property
    def slowed_servers(self) -> frozenset[int]:
        """Servers that some fault slows."""
        return frozenset(int(process[1:]) for process in self._faults_of if process[0] == "S")

    @property
    def hogs(self) -> list[tuple[CpuHog, tuple[int, ...]]]:
        """Faults that start competing processes, each with its workers (none if it names cores)."""
        pairs = zip(self.faults, self.chosen, strict=True)
        return [(fault, chosen) for fault, chosen in pairs if isinstance(fault, CpuHog)]

    def messages(self, worker: int) -> list[tuple[int, MessageFaults, int]]:
        """Return the message faults of a worker: (index, fault, the worker's random key)."""
        return [
            (index, fault, key_of(self.seed, index, worker))
            for index, fault in enumerate(self.faults)
            if isinstance(fault, MessageFaults) and worker in self.chosen[index]
        ]

    def fault_periods(self) -> AllActivePeriods:
        """Create the stateful schedule of when message faults are active, the same for all workers."""
        return AllActivePeriods(
            {
                index: ActivePeriods(fault, key_of(self.seed, index, _PERIODS))
                for index, fault in enumerate(self.faults)
                if isinstance(fault, MessageFaults)
            }
        )

    @property
    def has_message_faults(self) -> bool:
        """Whether the plan loses, delays, duplicates or reorders messages."""
        return any(isinstance(fault, MessageFaults) for fault in self.faults)

    @property
    def has_failures(self) -> bool:
        """Whether the plan kills or stops a process."""
        return any(isinstance(fault, ProcessFailure) for fault in self.faults)

    def to_list(self) -> list[dict[str, Any]]:
        """Encode the plan as plain containers, with its defaults and the chosen workers and servers."""
        return [
            {
                **fault.to_dict(),
                **({} if fault.workers is None else {"workers": list(workers)}),
                **({} if fault.servers is None else {"servers": list(servers)}),
            }
            for fault, workers, servers in zip(self.faults, self.chosen, self.servers, strict=True)
        ]


def choose(wanted: Any, total: int, where: str, *seeds: int, kind: str = "worker") -> tuple[int, ...]:
    """Choose sorted indexes below `total` by a list, a number, a share, "all" or "random". Raises ConfigError.

    A share is rounded, to at least one."""
    if wanted is None:
        return ()
    if wanted == "all":
        return tuple(range(total))
    wanted = 1 if wanted == "random" else wanted
    if isinstance(wanted, list):
        return _named(wanted, total, where, kind)
    count = wanted if isinstance(wanted, int) else _share(wanted, total, f"{where}.{kind}s")
    if not 1 <= count <= total:
        raise ConfigError(f"{where}.{kind}s={wanted} cannot be chosen; type 1 to {total}, or all.")
    order = sorted(range(total), key=lambda index: key_of(_CHOICE, *seeds, index))
    return tuple(sorted(order[:count]))


def _named(wanted: list[int], total: int, where: str, kind: str) -> tuple[int, ...]:
    invalid = sorted({index for index in wanted if not 0 <= index < total})
    if invalid or len(set(wanted)) < len(wanted):
        problem = f"no {kind} {', '.join(map(str, invalid))}" if invalid else f"a {kind} twice"
        raise ConfigError(f"{where}.{kind}s has {problem}; {kind}s are numbered 0 to {total - 1}.")
    return tuple(sorted(wanted))


def _share(wanted: str | float, total: int, where: str) -> int:
    try:
        share = Fraction(wanted)
    except (ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(-1)
    if not 0 < share <= 1:
        raise ConfigError(
            f'{where}={wanted!r} is not understood; type indices ([0, 3]), "all", "random", how many, or a share (1/8).'
        )
    return max(1, int(share * total + Fraction(1, 2)))


_FAILURES = 3  # separates these random numbers from the plan's others


@dataclass(frozen=True)
class Injection:
    """Failure of a process (W1, S0, C) that is due now: `kind` is hang for a fault of the class Hang, kill for others.

    `seconds`: duration of a hang (None: for ever); `index`: index in the plan."""

    kind: str
    process: str
    seconds: float | None = None
    index: int = field(default=0, compare=False)


class _Strike(NextOccurrence):
    """Next failure that one fault of the plan causes; `processes`: the candidates, of which it hits all or one."""

    def __init__(self, fault: ProcessFailure, processes: tuple[str, ...], key: int, index: int) -> None:
        super().__init__(fault, key)
        self.processes, self.index = processes, index

    def take(self, step: int, seconds: float) -> list[Injection]:
        found: list[Injection] = []
        while self.is_due(step, seconds):
            found += [self._injection(process) for process in self._victims()]
            self.next()
        return found

    def _victims(self) -> tuple[str, ...]:
        if self.fault.mtbf is None:
            return self.processes
        return (self.processes[int(uniform(self.key, 2 * self.occurrences + 1) * len(self.processes))],)

    def _injection(self, process: str) -> Injection:
        if isinstance(self.fault, Hang):
            return Injection("hang", process, self.fault.seconds, self.index)
        return Injection("kill", process, index=self.index)


class FaultInjector:
    """Schedule of all kills and hangs of a fault plan."""

    def __init__(self, plan: FaultPlan) -> None:
        self._due = [
            _Strike(fault, _processes(plan, index), key_of(plan.seed, index, _FAILURES), index)
            for index, fault in enumerate(plan.faults)
            if isinstance(fault, ProcessFailure) and _processes(plan, index)
        ]

    def due(self, step: int, seconds: float) -> list[Injection]:
        """Take the kills and hangs due at a global step and a time since training began, each once.

        The coordinator's comes last: it must have all others done, as its successor takes them as done."""
        if not self._due:
            return []
        found = [injection for strike in self._due for injection in strike.take(step, seconds)]
        return sorted(found, key=lambda injection: injection.process == "C")

    @property
    def next_seconds(self) -> float:
        """Time of the next kill or hang that is scheduled by time; infinity if there is none."""
        return min((strike.seconds for strike in self._due), default=math.inf)


def _processes(plan: FaultPlan, index: int) -> tuple[str, ...]:
    fault = plan.faults[index]
    workers, servers = plan.chosen[index], plan.servers[index]
    coordinator = ("C",) if isinstance(fault, ProcessFailure) and fault.coordinator else ()
    return (*(f"W{worker}" for worker in workers), *(f"S{server}" for server in servers), *coordinator)

"""Fault plan: the factor by which a worker's batch, or a server's message, is slowed. Pure, seeded; 3 us each.

Several faults of one process multiply. The plan has no clock and no state: local and virtual runs of one seed slow the
same batches by the same factors. The seed also chooses the workers (or servers) of a fault: indexes, all, so many, or a
share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gbactl.config_types import Seed
from gbactl.errors import ConfigError
from gbactl.faults.message_faults import ActivePeriods, AllActivePeriods, MessageFaults
from gbactl.faults.random_streams import key_of
from gbactl.faults.spec import CpuHog, Fault, ProcessFailure, parse

_SERVERS, _STORMS = 2, 5  # separate the random numbers of servers and storms from the workers'
_CHOICE = 1  # separates the random numbers of the choice from those of batches


@dataclass
class FaultsConfig:
    """Configuration of fault injection: a list of plans (see spec.py), random with `seed` (null: the run's).

    `name` is for users; plans that are typed beside `none` have none."""

    seed: Seed | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)
    name: str = "none"


class FaultPlan:
    """Faults of a run with `workers` workers and `servers` servers. Raises ConfigError.

    `seed` is the run's, unless the plan has its own."""

    def __init__(self, cfg: FaultsConfig, seed: int, workers: int, servers: int = 0) -> None:
        self.seed, self.worker_count = seed if cfg.seed is None else cfg.seed, workers
        self.faults = parse(cfg.plans)
        places = [(fault, f"faults.plans[{place}]", place) for place, fault in enumerate(self.faults)]
        self.chosen = tuple(choose(fault.workers, workers, at, self.seed, place) for fault, at, place in places)
        self.servers = tuple(
            choose(fault.servers, servers, at, self.seed, place, kind="server") for fault, at, place in places
        )
        self._of: dict[str, list[tuple[int, Fault, int]]] = {}  # (index in the plan, fault, the process's key)
        for place, fault in enumerate(self.faults):
            for worker in self.chosen[place] if fault.slows else ():
                key = key_of(self.seed, place, worker)
                self._of.setdefault(f"W{worker}", []).append((place, fault.of(worker), key))
            for server in self.servers[place] if fault.slows else ():
                key = key_of(self.seed, place, _SERVERS, server)
                self._of.setdefault(f"S{server}", []).append((place, fault, key))

    def factor(self, worker: int, turn: int, seconds: float) -> float:
        """Return the slow-down factor, at least 1, of a worker's batch `turn` that begins `seconds` into training.

        `turn` counts the worker's own batches with samples from 0 through the whole run; evaluation is not slowed."""
        return self.factor_of(f"W{worker}", turn, seconds)

    def factor_of(self, process: str, turn: int, seconds: float) -> float:
        """Return the slow-down factor of any process, W1 or S0.

        A server's `turn` counts the pulls, pushes and orders that it handles."""
        product = 1.0
        for _, fault, key in self._of.get(process, ()):
            product *= fault.at(key, turn, seconds)
        return product

    def acting(self, process: str, turn: int, seconds: float) -> list[tuple[int, float]]:
        """Return (index, factor) of the plans that slow a process now."""
        found = [(place, fault.at(key, turn, seconds)) for place, fault, key in self._of.get(process, ())]
        return [(place, factor) for place, factor in found if factor > 1.0]

    def places(self, process: str) -> list[int]:
        """Return the indexes of the plans that slow a process."""
        return [place for place, _, _ in self._of.get(process, ())]

    def slows(self, worker: int) -> bool:
        """Return whether a worker's factor can be other than 1."""
        return f"W{worker}" in self._of

    @property
    def slowed(self) -> frozenset[int]:
        """Workers that some plan slows."""
        return frozenset(int(process[1:]) for process in self._of if process[0] == "W")

    @property
    def slowed_servers(self) -> frozenset[int]:
        """Servers that some plan slows."""
        return frozenset(int(process[1:]) for process in self._of if process[0] == "S")

    @property
    def hogs(self) -> list[tuple[CpuHog, tuple[int, ...]]]:
        """Plans of competing processes, each with its workers (none where it names cores)."""
        pairs = zip(self.faults, self.chosen, strict=True)
        return [(fault, chosen) for fault, chosen in pairs if isinstance(fault, CpuHog)]

    def messages(self, worker: int) -> list[tuple[int, MessageFaults, int]]:
        """Return the message faults of a worker: (index, plan, the worker's key)."""
        return [
            (place, fault, key_of(self.seed, place, worker))
            for place, fault in enumerate(self.faults)
            if isinstance(fault, MessageFaults) and worker in self.chosen[place]
        ]

    def storms(self) -> AllActivePeriods:
        """Create the active periods of message faults, the same for all workers, as a stateful object of one caller."""
        return AllActivePeriods(
            {
                place: ActivePeriods(fault, key_of(self.seed, place, _STORMS))
                for place, fault in enumerate(self.faults)
                if isinstance(fault, MessageFaults)
            }
        )

    @property
    def stormy(self) -> bool:
        """Whether messages are lost, delayed, duplicated or reordered."""
        return any(isinstance(fault, MessageFaults) for fault in self.faults)

    @property
    def fails(self) -> bool:
        """Whether the plan kills or stops a process."""
        return any(isinstance(fault, ProcessFailure) for fault in self.faults)

    def told(self) -> list[dict[str, Any]]:
        """Encode the plans with their defaults and the chosen workers and servers."""
        return [
            {
                **fault.told(),
                **({} if fault.workers is None else {"workers": list(workers)}),
                **({} if fault.servers is None else {"servers": list(servers)}),
            }
            for fault, workers, servers in zip(self.faults, self.chosen, self.servers, strict=True)
        ]


def choose(wanted: Any, total: int, where: str, *seeds: int, kind: str = "worker") -> tuple[int, ...]:
    """Choose sorted indexes of workers or servers below `total`. Raises ConfigError.

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
    strange = sorted({index for index in wanted if not 0 <= index < total})
    if strange or len(set(wanted)) < len(wanted):
        what = f"no {kind} {', '.join(map(str, strange))}" if strange else f"a {kind} twice"
        raise ConfigError(f"{where}.{kind}s has {what}; {kind}s are numbered 0 to {total - 1}.")
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

"""The fault plan: by what factor a worker's batch, or a server's message, is slower. Pure, seeded; 3 us each.

Several faults of one process multiply. Nothing here has a clock or a memory: local and virtual runs of one
seed slow the same batches by the same factors. Which workers (or servers) a fault is for, is chosen by the seed, too:
indices, all, so many, or a share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gbactl.errors import ConfigError
from gbactl.faults.message_faults import Messages, Storm, Storms
from gbactl.faults.random_streams import key_of
from gbactl.faults.spec import Failure, Fault, Hog, parse
from gbactl.typed import Seed

_SERVERS, _STORMS = 2, 5  # keep the draws of servers and of storms apart from those of the workers
_CHOICE = 1  # keeps the choice's numbers apart from those of the batches


@dataclass
class FaultsConfig:
    """Faults on purpose: a list of plans (see spec.py), drawn with `seed` (null: the run's). `name` is for
    people: plans that are typed beside `none` have none."""

    seed: Seed | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)
    name: str = "none"


class FaultPlan:
    """`seed` is the run's, unless the plan has its own; so many workers and servers. Raises ConfigError."""

    def __init__(self, cfg: FaultsConfig, seed: int, workers: int, servers: int = 0) -> None:
        self.seed, self.worker_count = seed if cfg.seed is None else cfg.seed, workers
        self.faults = parse(cfg.plans)
        places = [(fault, f"faults.plans[{place}]", place) for place, fault in enumerate(self.faults)]
        self.chosen = tuple(choose(fault.workers, workers, at, self.seed, place) for fault, at, place in places)
        self.servers = tuple(
            choose(fault.servers, servers, at, self.seed, place, kind="server") for fault, at, place in places
        )
        self._of: dict[str, list[tuple[int, Fault, int]]] = {}  # a place in the plan, and a key of the process's own
        for place, fault in enumerate(self.faults):
            for worker in self.chosen[place] if fault.slows else ():
                key = key_of(self.seed, place, worker)
                self._of.setdefault(f"W{worker}", []).append((place, fault.of(worker), key))
            for server in self.servers[place] if fault.slows else ():
                key = key_of(self.seed, place, _SERVERS, server)
                self._of.setdefault(f"S{server}", []).append((place, fault, key))

    def factor(self, worker: int, turn: int, seconds: float) -> float:
        """How many times slower, at least 1, the worker's batch `turn` is that begins `seconds` into training.

        `turn` counts the worker's own batches with samples from 0 through the whole run; evaluation is not
        slowed.
        """
        return self.factor_of(f"W{worker}", turn, seconds)

    def factor_of(self, process: str, turn: int, seconds: float) -> float:
        """The same of any process, W1 or S0; a server's turns are the pulls, pushes and orders that it handles."""
        product = 1.0
        for _, fault, key in self._of.get(process, ()):
            product *= fault.at(key, turn, seconds)
        return product

    def acting(self, process: str, turn: int, seconds: float) -> list[tuple[int, float]]:
        """The places of the plans that make up such a factor, each with its own above 1."""
        found = [(place, fault.at(key, turn, seconds)) for place, fault, key in self._of.get(process, ())]
        return [(place, factor) for place, factor in found if factor > 1.0]

    def places(self, process: str) -> list[int]:
        """The places of the plans that give a process a factor."""
        return [place for place, _, _ in self._of.get(process, ())]

    def slows(self, worker: int) -> bool:
        """Whether the worker's factor can be other than 1."""
        return f"W{worker}" in self._of

    @property
    def slowed(self) -> frozenset[int]:
        """Workers with a factor."""
        return frozenset(int(process[1:]) for process in self._of if process[0] == "W")

    @property
    def slowed_servers(self) -> frozenset[int]:
        """Servers with a factor."""
        return frozenset(int(process[1:]) for process in self._of if process[0] == "S")

    @property
    def hogs(self) -> list[tuple[Hog, tuple[int, ...]]]:
        """Competing processes, each with the workers it is meant for (none where it names cores)."""
        pairs = zip(self.faults, self.chosen, strict=True)
        return [(fault, chosen) for fault, chosen in pairs if isinstance(fault, Hog)]

    def messages(self, worker: int) -> list[tuple[int, Messages, int]]:
        """What happens to a worker's messages: places and plans, each with a key of the worker's own."""
        return [
            (place, fault, key_of(self.seed, place, worker))
            for place, fault in enumerate(self.faults)
            if isinstance(fault, Messages) and worker in self.chosen[place]
        ]

    def storms(self) -> Storms:
        """When that happens, to all workers at the same time: for one who asks again and again how things stand."""
        return Storms(
            {
                place: Storm(fault, key_of(self.seed, place, _STORMS))
                for place, fault in enumerate(self.faults)
                if isinstance(fault, Messages)
            }
        )

    @property
    def stormy(self) -> bool:
        """Whether messages are lost, delayed, duplicated or reordered."""
        return any(isinstance(fault, Messages) for fault in self.faults)

    @property
    def fails(self) -> bool:
        """Whether it kills or stops anybody."""
        return any(isinstance(fault, Failure) for fault in self.faults)

    def told(self) -> list[dict[str, Any]]:
        """The plans with their defaults and the workers and servers that were chosen."""
        return [
            {
                **fault.told(),
                **({} if fault.workers is None else {"workers": list(workers)}),
                **({} if fault.servers is None else {"servers": list(servers)}),
            }
            for fault, workers, servers in zip(self.faults, self.chosen, self.servers, strict=True)
        ]


def choose(wanted: Any, total: int, where: str, *seeds: int, kind: str = "worker") -> tuple[int, ...]:
    """Sorted indices below `total`. A share is rounded, to at least one of a `kind`. Raises ConfigError."""
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

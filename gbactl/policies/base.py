"""What every policy shares: phases, grants, steps, the ledger of samples, leases and re-issue."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from gbactl.errors import AccountingError, ConfigError


@dataclass(frozen=True, slots=True)
class Phase:
    """One mode within one day (or epoch). Batches are numbered in data order; sizes in samples."""

    samples: int
    local_batch: int
    global_batch: int
    first_step: int
    workers: tuple[int, ...]

    @property
    def batches(self) -> int:
        """How many local batches the phase has; the last may be short."""
        return -(-self.samples // self.local_batch)

    @property
    def gradients_per_step(self) -> int:
        """M = G / B_a."""
        return self.global_batch // self.local_batch

    def size(self, batch: int) -> int:
        """Samples in a batch; 0 past the end."""
        return max(0, min(self.local_batch, self.samples - batch * self.local_batch))


@dataclass(frozen=True, slots=True)
class Grant:
    """A batch handed to a worker.

    `after`: the version a shard must have reached before it serves the rows. `divisor`: what the step's
    sum is divided by where the worker applies the dense part itself (`sync`), else 0. `progress`: samples
    of the phase finished before the step (`sync`), else 0. A grant of 0 samples only joins the step.
    """

    batch: int
    token: int
    start: int
    samples: int
    after: int = 0
    divisor: float = 0.0
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A gradient's place in a step. `weight` = f(token staleness) x n / B."""

    batch: int
    worker: int
    weight: float
    samples: int
    token_staleness: int


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step: every shard applies the members in this order, then its version is step + 1."""

    step: int
    members: tuple[Member, ...]
    divisor: float

    @property
    def weight_sum(self) -> float:
        """Sum of the weights, in member order."""
        return sum(m.weight for m in self.members)


@dataclass(slots=True)
class Ledger:
    """Samples by their last fate; `effective` is the sum of weight x samples of what was applied."""

    read: int = 0
    trained: int = 0
    decayed: int = 0
    lost: int = 0
    effective: float = 0.0

    def settle(self, step: Step) -> None:
        """Count the members of an applied step as trained or decayed."""
        for member in step.members:
            if member.weight > 0:
                self.trained += member.samples
                self.effective += member.weight * member.samples
            else:
                self.decayed += member.samples

    @property
    def finished(self) -> int:
        """Samples with a fate: what schedules call progress, in samples."""
        return self.trained + self.decayed + self.lost

    def check(self) -> None:
        """Raise AccountingError unless read = trained + decayed + lost."""
        if self.read != self.finished:
            raise AccountingError(
                f"Samples do not add up: read {self.read} is not trained {self.trained} + decayed "
                f"{self.decayed} + lost {self.lost}; this is a bug, please report the run directory."
            )

    def add(self, other: Ledger) -> None:
        """Add another phase's counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class PolicyOptions:
    """What a mode's conf file sets beside the keys all modes have. A policy with options subclasses this."""

    def check(self) -> None:
        """Raise ConfigError, with the key to type, on values that cannot work."""


@dataclass
class Policy(ABC):
    """A mode's decisions within one phase."""

    phase: Phase
    options: PolicyOptions = field(default_factory=PolicyOptions)
    ledger: Ledger = field(default_factory=Ledger)

    #: the type of `options`: its fields are the mode's own keys in conf/mode/
    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    #: who holds the dense parameters: "servers", or "workers" (every worker the same copy)
    dense_on: ClassVar[str] = "servers"
    #: whether rows may be fetched before the batch's turn
    prefetch_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.next_batch = 0
        self.step = self.phase.first_step
        self.leases: dict[int, tuple[int, Grant]] = {}
        self.reissue: deque[int] = deque()

    @abstractmethod
    def take(self, worker: int) -> Grant | None:
        """The worker's next batch; None when it must wait or nothing is left."""

    @abstractmethod
    def announce(self, worker: int, batch: int) -> list[Step]:
        """A gradient has reached every shard. Returns the steps this completes."""

    def finish(self) -> list[Step]:
        """Nothing is in flight any more: apply what is left over."""
        return []

    @property
    def exhausted(self) -> bool:
        """Nothing is left to hand out."""
        return self.next_batch >= self.phase.batches and not self.reissue

    @property
    def idle(self) -> bool:
        """Nothing is left to hand out and nothing is in flight."""
        return self.exhausted and not self.leases

    def lost_worker(self, worker: int) -> list[int]:
        """Take a dead worker's leases back. Returns the batches that will be handed out again."""
        back = sorted(batch for batch, (owner, _) in self.leases.items() if owner == worker)
        for batch in back:
            del self.leases[batch]
            self.reissue.append(batch)
        return back

    def _next(self) -> int | None:
        """The next batch number: re-issued ones first. New ones count as read."""
        if self.reissue:
            return self.reissue.popleft()
        if self.next_batch >= self.phase.batches:
            return None
        batch = self.next_batch
        self.next_batch += 1
        self.ledger.read += self.phase.size(batch)
        return batch

    def _lease(self, worker: int, grant: Grant) -> Grant:
        self.leases[grant.batch] = (worker, grant)
        return grant

    def _return(self, worker: int, batch: int) -> Grant | None:
        """End a lease; None for a gradient that nobody waits for (a duplicate, or a re-issued batch)."""
        owner, grant = self.leases.get(batch, (None, None))
        if owner != worker or grant is None:
            return None
        del self.leases[batch]
        return grant

    def _emit(self, step: Step) -> Step:
        self.ledger.settle(step)
        self.step += 1
        return step


_MODES: dict[str, type[Policy]] = {}


def register(name: str) -> Callable[[type[Policy]], type[Policy]]:
    """Class decorator: make a policy known under a mode's name."""

    def wrap(cls: type[Policy]) -> type[Policy]:
        _MODES[name] = cls
        return cls

    return wrap


def _discover() -> None:
    import gbactl.policies as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def names() -> tuple[str, ...]:
    """Every known mode."""
    _discover()
    return tuple(sorted(_MODES))


def policy_class(name: str) -> type[Policy]:
    """The class of a mode. Raises ConfigError that lists the modes."""
    if name not in _MODES:
        _discover()
    if name not in _MODES:
        raise ConfigError(f"mode.name={name} is not known; type mode= one of: {', '.join(names())}.")
    return _MODES[name]


def make(name: str, phase: Phase, options: PolicyOptions | None = None) -> Policy:
    """The policy of a mode for one phase; its default options if none are given."""
    mode = policy_class(name)
    return mode(phase, options or mode.Options())

"""Kinds of faults in the configuration: typed, checked, each error in one sentence. Pure.

A kind either slows batches by the factor that `at` returns, or slows nothing (`slows` is False): `kill` (SIGKILL) and
`hang` (SIGSTOP) end or stop a process, which injector.py chooses. To add a kind: a dataclass with @kind("name"), here
or in a file that plan.py imports.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from gbactl.config_types import Count, Interval, Natural, Processes, Seconds, SomeShare, expect, matches
from gbactl.errors import ConfigError
from gbactl.faults import random_streams
from gbactl.faults.base import (
    KINDS,
    Fault,
    Shape,
    Sigma,
    Slower,
    TimedFault,
    Workers,
    drawn,
    kind,
    require,
    typed,
    window,
)
from gbactl.faults.load_trace import LoadTrace

__all__ = [
    "ConstantSlowdown",
    "CpuHog",
    "Fault",
    "Hang",
    "Kill",
    "LoadTrace",
    "PeriodicSlowdown",
    "ProcessFailure",
    "RandomSlowdown",
    "WindowSlowdown",
    "parse",
]


@kind("constant")
@dataclass(frozen=True, kw_only=True)
class ConstantSlowdown(Fault):
    """Fault that always slows by `factor`."""

    factor: Slower

    def at(self, key: int, turn: int, seconds: float) -> float:
        """See Fault.at."""
        return self.factor


@kind("periodic")
@dataclass(frozen=True, kw_only=True)
class PeriodicSlowdown(Fault):
    """Fault that slows in the first `duty` share of every period, counted in the worker's batches or in seconds."""

    factor: Slower
    period_batches: Count | None = None
    period_seconds: Interval | None = None
    duty: SomeShare = 0.5

    def check(self, where: str) -> None:
        """See Fault.check."""
        given = [p for p in (self.period_batches, self.period_seconds) if p is not None]
        require(len(given) == 1, f"{where} needs one of period_batches and period_seconds.")

    def at(self, key: int, turn: int, seconds: float) -> float:
        """See Fault.at."""
        if self.period_batches is not None:
            slow = turn % self.period_batches < self.duty * self.period_batches
        else:
            assert self.period_seconds is not None
            slow = seconds % self.period_seconds < self.duty * self.period_seconds
        return self.factor if slow else 1.0


@kind("random")
@dataclass(frozen=True, kw_only=True)
class RandomSlowdown(Fault):
    """Fault with a random factor for every batch: 1 + (mean - 1) X, X >= 0 of mean 1.

    X is exponential, lognormal(sigma) or Pareto(shape)."""

    distribution: str
    mean: Slower
    sigma: Sigma | None = None
    shape: Shape | None = None

    def check(self, where: str) -> None:
        """See Fault.check."""
        drawn(where, self.distribution, self.sigma, self.shape)

    def at(self, key: int, turn: int, seconds: float) -> float:
        """See Fault.at."""
        draw = random_streams.DISTRIBUTIONS[self.distribution]
        return 1.0 + (self.mean - 1.0) * draw(random_streams.uniform(key, turn), self.sigma or self.shape)


@kind("window")
@dataclass(frozen=True, kw_only=True)
class WindowSlowdown(Fault):
    """Fault that slows from `from` until `until` seconds after training began (until: null is to the end)."""

    factor: Slower
    from_: Seconds = 0.0
    until: Seconds | None = None

    def check(self, where: str) -> None:
        """See Fault.check."""
        window(where, self.from_, self.until)

    def at(self, key: int, turn: int, seconds: float) -> float:
        """See Fault.at."""
        return self.factor if self.from_ <= seconds < (math.inf if self.until is None else self.until) else 1.0


@kind("hog")
@dataclass(frozen=True, kw_only=True)
class CpuHog(Fault):
    """Competing processes that take the CPU, on cores by number or on those of some workers."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    cores: list[Natural] | None = None
    processes: Processes = 1
    from_: Seconds = 0.0
    until: Seconds | None = None

    def check(self, where: str) -> None:
        """See Fault.check."""
        require(self.servers is None, f"{where}: a hog is for the cores of workers, or for cores; servers have none.")
        require((self.workers is None) != (self.cores is None), f"{where} needs one of workers and cores.")
        require(self.cores is None or bool(self.cores), f"{where}.cores is a list of at least one core.")
        window(where, self.from_, self.until)


def _hints(cls: type[Fault]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {typed(field.name): hints[field.name] for field in dataclasses.fields(cls)}


def parse(plans: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Build and check a list of faults from plain containers. Raises ConfigError."""
    return [_one(values, f"faults.plans[{place}]") for place, values in enumerate(plans)]


def _one(values: Mapping[str, Any], where: str) -> Fault:
    cls = KINDS.get(str(values.get("kind")))
    if cls is None:
        raise ConfigError(f"{where} has kind {values.get('kind')!r}; type kind: one of: {', '.join(sorted(KINDS))}.")
    hints, given = _hints(cls), {name: value for name, value in values.items() if name != "kind"}
    strange = sorted(set(given) - set(hints))
    require(not strange, f"{where} (kind {cls.kind}) has no key {', '.join(strange)}; keys are: {', '.join(hints)}.")
    for name, value in given.items():
        if name in ("workers", "servers"):
            sort = 'indices, a number, a share like 1/8, or "all"'
            require(matches(value, hints[name]), f"{where}.{name}={value!r} is not {sort}.")
        else:
            expect(f"{where}.{name}", value, hints[name])
    missing = [
        typed(field.name)
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and typed(field.name) not in given
    ]
    require(not missing, f"{where} (kind {cls.kind}) needs {', '.join(missing)}.")
    if "servers" in given:
        given = {"workers": None, **given}
    made = cls(**{f"{name}_" if name == "from" else name: value for name, value in given.items()})
    made.check(where)
    return made


@dataclass(frozen=True, kw_only=True)
class ProcessFailure(TimedFault):
    """Failure of every named or chosen process; with `mtbf`, of one of them, drawn each time."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    coordinator: bool = False

    def check(self, where: str) -> None:
        """See Fault.check."""
        named = self.workers is not None or self.servers is not None or self.coordinator
        require(named, f"{where} (kind {self.kind}) needs workers, servers, or coordinator: true.")
        require(bool(self.given), f"{where} (kind {self.kind}) needs one of step, time and mtbf.")
        super().check(where)


@kind("kill")
@dataclass(frozen=True, kw_only=True)
class Kill(ProcessFailure):
    """Failure by SIGKILL; in virtual time the process disappears."""


@kind("hang")
@dataclass(frozen=True, kw_only=True)
class Hang(ProcessFailure):
    """Stop by SIGSTOP; SIGCONT follows `seconds` later (null: never)."""

    seconds: Interval | None = None

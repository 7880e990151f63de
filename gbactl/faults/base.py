"""Base of all kinds of faults: typed fields, their check, the slow-down factor, and the times of occurrence. Pure.

A fault that is not permanent occurs at a global step, at a time, or repeatedly by a distribution with a mean time
between failures. Random values depend on a key alone. Costs a comparison a query.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from gbactl.config_types import Bounds, Count, Interval, Seconds
from gbactl.errors import ConfigError
from gbactl.faults import random_streams

Workers = list[int] | int | float | str
Slower = Annotated[float, Bounds(at_least=1, at_most=1e6)]  # 4: four times slower
Sigma = Annotated[float, Bounds(above=0, at_most=10)]
Shape = Annotated[float, Bounds(above=1, at_most=1000)]  # of a Pareto distribution that has a mean
KINDS: dict[str, type[Fault]] = {}
SHAPED = ("weibull", "gamma")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault plan, one of the list. `workers`: indexes, "all", how many, or a share like 1/8; `servers` likewise.

    A plan that names servers and no workers is for servers alone."""

    kind: ClassVar[str] = ""
    slows: ClassVar[bool] = True
    workers: Workers | None = "all"
    servers: Workers | None = None

    def check(self, where: str) -> None:
        """Raise ConfigError for invalid values; `where` is for instance faults.plans[0]."""

    def at(self, key: int, turn: int, seconds: float) -> float:
        """Return the factor, at least 1, of a worker's batch `turn`, begun `seconds` into training.

        `key` is the worker's own in this plan; random values depend on (key, turn) alone."""
        return 1.0

    def of(self, worker: int) -> Fault:
        """Return the part of the fault that concerns one worker."""
        return self

    def told(self) -> dict[str, Any]:
        """Encode the fault as a user types it, with the defaults filled in."""
        values = {typed(name): value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {"kind": self.kind, **values}


F = TypeVar("F", bound=type[Fault])


def kind(name: str) -> Callable[[F], F]:
    """Class decorator that registers a fault as `kind: name`."""

    def register(cls: F) -> F:
        cls.kind = name
        KINDS[name] = cls
        return cls

    return register


def require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def window(where: str, begin: float, end: float | None) -> None:
    require(end is None or end > begin, f"{where}.until={end} must be later than from={begin}, or null: to the end.")


def typed(field: str) -> str:
    """Return a field's name as typed: `from` for `from_`."""
    return field.rstrip("_")


def drawn(where: str, distribution: str, sigma: float | None, shape: float | None) -> None:
    """Raise ConfigError for an unknown distribution, or for another one's parameter."""
    names = tuple(random_streams.DISTRIBUTIONS)
    require(
        distribution in names,
        f"{where}.distribution={distribution} is not known; type one of: {', '.join(names)}.",
    )
    for name, value, owner in (("sigma", sigma, "lognormal"), ("shape", shape, "pareto")):
        require(value is None or distribution == owner, f"{where}.{name} belongs to distribution: {owner}.")


@dataclass(frozen=True, kw_only=True)
class TimedFault(Fault):
    """Base of faults that occur at a `step`, at a `time` (seconds since training began) or repeatedly (`mtbf`).

    `mtbf`: mean seconds between occurrences, of which there are at most `times`."""

    step: Annotated[int, Bounds(at_least=0, at_most=2**53)] | None = None
    time: Seconds | None = None
    mtbf: Interval | None = None
    distribution: str = "exponential"
    shape: Annotated[float, Bounds(at_least=0.1, at_most=1000)] | None = None
    times: Count | None = None

    @property
    def given(self) -> list[float]:
        """Values given for step, time and mtbf."""
        return [value for value in (self.step, self.time, self.mtbf) if value is not None]

    def check(self, where: str) -> None:
        """See Fault.check."""
        require(len(self.given) <= 1, f"{where} (kind {self.kind}) needs one of step, time and mtbf.")
        names = tuple(random_streams.INTERVALS)
        require(
            self.distribution in names,
            f"{where}.distribution={self.distribution} is not known; type one of: {', '.join(names)}.",
        )
        shaped = self.distribution in SHAPED
        require(self.shape is None or shaped, f"{where}.shape belongs to distribution: {' or '.join(SHAPED)}.")
        require(self.times is None or self.mtbf is not None, f"{where}.times belongs to mtbf.")

    def interval(self, u: float) -> float:
        """Convert a random number in (0, 1) to the seconds until the next occurrence."""
        assert self.mtbf is not None
        return self.mtbf * random_streams.INTERVALS[self.distribution](u, self.shape)


class NextOccurrence:
    """Next occurrence of a fault: at a `step`, or at a time in `seconds`; infinity where there is none.

    `turn`: occurrences so far."""

    def __init__(self, fault: TimedFault, key: int) -> None:
        self.fault, self.key, self.turn = fault, key, 0
        self.step = math.inf if fault.step is None else float(fault.step)
        self.seconds = math.inf if fault.time is None else fault.time
        self._left = 1 if fault.mtbf is None else math.inf if fault.times is None else fault.times
        if fault.mtbf is not None:
            self.seconds = fault.interval(random_streams.uniform(key, 0))

    def there(self, step: int, seconds: float) -> bool:
        """Return whether the fault is due at a global step and a time since training began."""
        return self._left > 0 and (step >= self.step or seconds >= self.seconds)

    def next(self) -> None:
        """Advance to the fault's next occurrence."""
        self._left -= 1
        self.turn += 1
        if self.fault.mtbf is not None:
            self.seconds += self.fault.interval(random_streams.uniform(self.key, 2 * self.turn))
        if not self._left:
            self.step = self.seconds = math.inf

"""When a fault comes that is not there all the time: at a global step, at a time, or again and again by a distribution
with a mean time between failures. Pure; what is random depends on a key alone. Costs a comparison a question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from gbactl.faults import random_streams
from gbactl.faults.base import Fault, require
from gbactl.typed import Count, Interval, Seconds, Within

SHAPED = ("weibull", "gamma")


@dataclass(frozen=True, kw_only=True)
class Timed(Fault):
    """At `step` or `time` (seconds since training began), or, with `mtbf`, at intervals of so many seconds on average,
    at most `times`."""

    step: Annotated[int, Within(at_least=0, at_most=2**53)] | None = None
    time: Seconds | None = None
    mtbf: Interval | None = None
    distribution: str = "exponential"
    shape: Annotated[float, Within(at_least=0.1, at_most=1000)] | None = None
    times: Count | None = None

    @property
    def given(self) -> list[float]:
        """What there is of step, time and mtbf."""
        return [value for value in (self.step, self.time, self.mtbf) if value is not None]

    def check(self, where: str) -> None:
        """See Fault."""
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
        """Seconds to the next one, from a number in (0, 1)."""
        assert self.mtbf is not None
        return self.mtbf * random_streams.INTERVALS[self.distribution](u, self.shape)


class Due:
    """When a fault comes next: at a `step`, or at a time in `seconds`; infinity where it does not. `turn`: how often it
    has come."""

    def __init__(self, fault: Timed, key: int) -> None:
        self.fault, self.key, self.turn = fault, key, 0
        self.step = math.inf if fault.step is None else float(fault.step)
        self.seconds = math.inf if fault.time is None else fault.time
        self._left = 1 if fault.mtbf is None else math.inf if fault.times is None else fault.times
        if fault.mtbf is not None:
            self.seconds = fault.interval(random_streams.uniform(key, 0))

    def there(self, step: int, seconds: float) -> bool:
        """Whether it has come by a global step and a time since training began."""
        return self._left > 0 and (step >= self.step or seconds >= self.seconds)

    def next(self) -> None:
        """It has come and is done."""
        self._left -= 1
        self.turn += 1
        if self.fault.mtbf is not None:
            self.seconds += self.fault.interval(random_streams.uniform(self.key, 2 * self.turn))
        if not self._left:
            self.step = self.seconds = math.inf

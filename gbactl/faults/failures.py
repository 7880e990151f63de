"""The kinds of faults that end or stop a process: `kill` (SIGKILL) and `hang` (SIGSTOP). Pure.

At a global step, at a time, or again and again by a distribution with a mean time between failures; `injector.py`
says when and whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gbactl.errors import ConfigError
from gbactl.faults import draws
from gbactl.faults.base import Fault, Workers, kind

SHAPED = ("weibull", "gamma")


@dataclass(frozen=True, kw_only=True)
class Failure(Fault):
    """At `step` or `time` (seconds since training began) every process that is named or was drawn fails.

    With `mtbf`, mean seconds between failures, one of them drawn anew each time, at most `times`."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    coordinator: bool = False
    step: int | None = None
    time: float | None = None
    mtbf: float | None = None
    distribution: str = "exponential"
    shape: float | None = None
    times: int | None = None

    def check(self, where: str) -> None:
        """See Fault."""
        named = self.workers is not None or self.servers is not None or self.coordinator
        _need(named, f"{where} (kind {self.kind}) needs workers, servers, or coordinator: true.")
        given = [value for value in (self.step, self.time, self.mtbf) if value is not None]
        _need(len(given) == 1, f"{where} (kind {self.kind}) needs one of step, time and mtbf.")
        _need(given[0] >= 0, f"{where}: step and time are counted from 0.")
        _need(self.mtbf is None or self.mtbf > 0, f"{where}.mtbf={self.mtbf} must be a positive number of seconds.")
        names = tuple(draws.INTERVALS)
        _need(
            self.distribution in names,
            f"{where}.distribution={self.distribution} is not known; type one of: {', '.join(names)}.",
        )
        shaped = self.distribution in SHAPED
        _need(self.shape is None or shaped, f"{where}.shape belongs to distribution: {' or '.join(SHAPED)}.")
        _need(self.shape is None or self.shape > 0, f"{where}.shape={self.shape} must be positive.")
        _need(self.times is None or self.mtbf is not None, f"{where}.times belongs to mtbf.")
        _need(self.times is None or self.times >= 1, f"{where}.times must be at least 1, or null: no limit.")

    def interval(self, u: float) -> float:
        """Seconds to the next failure, from a number in (0, 1)."""
        assert self.mtbf is not None
        return self.mtbf * draws.INTERVALS[self.distribution](u, self.shape)


@kind("kill")
@dataclass(frozen=True, kw_only=True)
class Kill(Failure):
    """Killed with SIGKILL; in virtual time it disappears."""


@kind("hang")
@dataclass(frozen=True, kw_only=True)
class Hang(Failure):
    """Stopped with SIGSTOP, and woken `seconds` later with SIGCONT (null: never)."""

    seconds: float | None = None

    def check(self, where: str) -> None:
        """See Fault."""
        super().check(where)
        _need(self.seconds is None or self.seconds > 0, f"{where}.seconds must be positive, or null: it never wakes.")


def _need(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)

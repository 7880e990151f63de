"""The kinds of faults that end or stop a process: `kill` (SIGKILL) and `hang` (SIGSTOP). Pure.

`triggers.py` says when they come; `injector.py`, whom they hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gbactl.faults.base import Workers, kind, require
from gbactl.faults.triggers import Timed
from gbactl.typed import Interval


@dataclass(frozen=True, kw_only=True)
class Failure(Timed):
    """Every process that is named or was drawn fails; with `mtbf`, one of them drawn anew each time."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    coordinator: bool = False

    def check(self, where: str) -> None:
        """See Fault."""
        named = self.workers is not None or self.servers is not None or self.coordinator
        require(named, f"{where} (kind {self.kind}) needs workers, servers, or coordinator: true.")
        require(bool(self.given), f"{where} (kind {self.kind}) needs one of step, time and mtbf.")
        super().check(where)


@kind("kill")
@dataclass(frozen=True, kw_only=True)
class Kill(Failure):
    """Killed with SIGKILL; in virtual time it disappears."""


@kind("hang")
@dataclass(frozen=True, kw_only=True)
class Hang(Failure):
    """Stopped with SIGSTOP, and woken `seconds` later with SIGCONT (null: never)."""

    seconds: Interval | None = None

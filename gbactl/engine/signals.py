"""Signals that end a run: none gets lost, and the first one leaves time to save where the run stands.

Python drops an exception that a signal's handler raises while a destructor or a callback of its own runs (imports have
those): so what was asked for is remembered, and who waits for a long time looks at it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import NAME, Folder
from gbactl.errors import GbactlError, Stopped
from gbactl.wire.messages import Event

NOTHING = "nothing had been trained yet"
ANSWER_SECONDS = 2.0  # after its time, for a coordinator to say that it could not save
DEFAULT = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}

_asked: list[int] = []
_held: list[None] = []
_patient: list[None] = []


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """In here Ctrl-C, SIGTERM and SIGHUP raise Stopped, at once or else at the next `look`. Only in the main thread;
    where Ctrl-C or SIGHUP is ignored or has a handler already, it stays as it is."""
    numbers = [number for number, handler in DEFAULT.items() if signal.getsignal(number) is handler]

    def stop(number: int, _: object) -> None:
        _asked.append(number)
        if number == signal.SIGHUP:
            leave_terminal()
        if not _held and len(_asked) > len(_patient):
            raise Stopped(_asked[0])

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, *numbers)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """In here the first signal raises nothing: it waits for who looks at `asked`. The second one raises."""
    _patient.append(None)
    try:
        yield
    finally:
        _patient.pop()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """What is done in here is done to its end; then a signal raises that came meanwhile."""
    _held.append(None)
    try:
        yield
    finally:
        _held.pop()
    if not _held:
        look()


def look() -> None:
    """Raise what a signal has asked for."""
    if len(_asked) > len(_patient):
        raise Stopped(_asked[0])


def asked() -> int:
    """The first signal that came; 0 before it."""
    return _asked[0] if _asked else 0


def leave_terminal() -> None:
    """Write to nowhere from now on where the terminal is gone: every word would be an error."""
    with open(os.devnull, "wb") as nowhere:
        for fd in (1, 2):
            if stat.S_ISCHR(os.fstat(fd).st_mode) and not os.isatty(fd):
                os.dup2(nowhere.fileno(), fd)


class Stop:
    """The end of a run at a signal: the coordinator is asked to save where it stands, for `seconds` at most.

    `trains`: whether training has begun; `found`: what the coordinator said."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self.trains, self.found = False, dict[str, Any]()
        self._until = 0.0
        self._told = False

    def look(self, tell: Callable[[Event], None]) -> None:
        """Hand the first signal on. Raises Stopped once that was answered, or was not in time."""
        if not asked():
            return
        if not self._until:
            self._until = time.monotonic() + self.seconds + ANSWER_SECONDS * (self.seconds > 0)
            if self.seconds > 0:
                limit = f"up to {self.seconds:g} s; Ctrl-C again ends at once"
                self.say(f"stopping: saving where the run stands ({limit})")
        if self.found or time.monotonic() >= self._until:
            raise Stopped(asked())
        if not self._told:
            self._told = True
            tell(Event("stop", {"seconds": self.seconds}))

    def heard(self, event: Event) -> None:
        """Note what the coordinator says."""
        self.trains |= event.name == "progress"
        if event.name == "stop":
            self.found = event.fields

    def again(self) -> None:
        """Another coordinator is there, which has to be asked again."""
        self._told = False

    def stopped_by(self, error: BaseException) -> Stopped | None:
        """The signal that ended a run; None where it was an error of its own. What fails while the run is saved is the
        reason that it is not."""
        if isinstance(error, Stopped):
            return error
        if isinstance(error, KeyboardInterrupt):  # of a handler that was there before
            return Stopped(signal.SIGINT)
        if not asked() or not isinstance(error, GbactlError):
            return None
        self.found = self.found or {"state": "failed", "why": str(error).rstrip(".")}
        return Stopped(asked())

    def sentence(self, run_dir: Path) -> str:
        """What became of the run, and what to type."""
        state = self.found.get("state")
        command = f"go on with 'gbactl train resume={run_dir}'"
        if state == "saved":
            path, size = run_dir / NAME / self.found["name"], self.found["bytes"] / 1e6
            return f"step {self.found['step']} is saved in {path} ({size:,.1f} MB); {command}"
        if state == "nothing" or not self.trains:
            return NOTHING
        names = Folder(run_dir / NAME).names()
        older = f"; the newest checkpoint is {names[-1]}, {command}" if names else ""
        return f"where it stood is not saved ({self._why}){older}"

    @property
    def _why(self) -> str:
        if "why" in self.found:
            return str(self.found["why"])
        if len(_asked) > 1:
            return "a second signal came"
        return f"it took longer than cluster.stop_seconds={self.seconds:g}" if self._until else "it ended at once"

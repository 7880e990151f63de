"""Signals that stop a run: no signal is lost, and the first allows time to save a checkpoint.

Python drops an exception that a signal handler raises while a destructor or a callback of its own runs (imports have
those). Therefore each signal is also remembered, and long waits look at it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.conf_catalogue import as_override
from gbactl.errors import GbactlError, Stopped
from gbactl.wire.messages import Event

NOTHING = "nothing had been trained yet"
ANSWER_SECONDS = 2.0  # additional time for a coordinator to report that it could not save


def stop_at_once(number: int, _: object) -> None:
    """Handle a signal by raising Stopped."""
    raise Stopped(number)


DEFAULT = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL, signal.SIGUSR1: stop_at_once}

_received: list[int] = []
_deferring: list[None] = []
_recording: list[None] = []


@contextlib.contextmanager
def stoppable(outcome: str = "") -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP raise Stopped inside this context, at once or at the next `raise_if_stopped`.

    Elsewhere than in the main thread signals stay as they are. Where Ctrl-C or SIGHUP is ignored or has a handler
    already, it stays as it is. SIGUSR1 counts too where its handler is `stop_at_once`. `outcome`: that of a Stopped
    error which has none of its own."""
    main = threading.current_thread() is threading.main_thread()  # else a program has started the training in a thread
    numbers = [number for number, handler in DEFAULT.items() if signal.getsignal(number) is handler]

    def stop(number: int, _: object) -> None:
        _received.append(number)
        if number == signal.SIGHUP:
            leave_terminal()
        if not _deferring and len(_received) > len(_recording):
            raise Stopped(_received[0])

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, *numbers)} if main else {}
    try:
        yield
    except Stopped as stopped:
        stopped.outcome = stopped.outcome or outcome
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if main:
            _received.clear()


@contextlib.contextmanager
def first_signal_recorded() -> Iterator[None]:
    """Context in which the first stop signal is only recorded (see `stop_signal`); the second one raises Stopped."""
    _recording.append(None)
    try:
        yield
    finally:
        _recording.pop()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer stop signals until the end of this context, so that its block is not interrupted."""
    _deferring.append(None)
    try:
        yield
    finally:
        _deferring.pop()
    if not _deferring:
        raise_if_stopped()


def raise_if_stopped() -> None:
    """Raise Stopped if a stop signal was received, except within `deferred`."""
    if len(_received) > len(_recording):
        raise Stopped(_received[0])


def stop_signal() -> int:
    """Return the number of the first stop signal that was received, or 0."""
    return _received[0] if _received else 0


def leave_terminal() -> None:
    """Redirect standard output and error to /dev/null if their terminal is gone."""
    with open(os.devnull, "wb") as nowhere:
        for fd in (1, 2):
            if stat.S_ISCHR(os.fstat(fd).st_mode) and not os.isatty(fd):
                os.dup2(nowhere.fileno(), fd)


def _resume_command(run_dir: Path) -> str:
    """Name the command that resumes a run, as a shell and Hydra take it."""
    return f"go on with 'gbactl train {shlex.quote(f'resume={as_override(str(run_dir))}')}'"


def resume_hint(run_dir: Path) -> str:
    """Name the newest checkpoint of a run that has ended, and the command that resumes it; "" without a checkpoint."""
    names = CheckpointFolder(run_dir / CHECKPOINTS).names()
    return f"; the newest checkpoint is {names[-1]}, {_resume_command(run_dir)}" if names else ""


class StopRequest:
    """Request to stop a run after a signal: the coordinator saves a checkpoint within `seconds`.

    `trains`: whether training has begun; `answer`: the coordinator's."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self.trains, self.answer = False, dict[str, Any]()
        self._deadline = 0.0
        self._forwarded = False
        self._refusal = ""

    def refuse(self, why: str) -> None:
        """Let a stop signal end the run at once, as no checkpoint can be saved for the reason `why`."""
        self.seconds, self._refusal = 0.0, why

    def poll(self, tell: Callable[[Event], None]) -> None:
        """Forward the first stop signal to the coordinator. Raises Stopped at its answer, or at the time-out."""
        if not stop_signal():
            return
        if not self._deadline:
            self._deadline = time.monotonic() + self.seconds + ANSWER_SECONDS * (self.seconds > 0)
            if self.seconds > 0:
                limit = f"up to {self.seconds:g} s; Ctrl-C again ends at once"
                self.say(f"stopping: saving where the run stands ({limit})")
        if self.answer or time.monotonic() >= self._deadline:
            raise Stopped(stop_signal())
        if not self._forwarded:
            self._forwarded = True
            tell(Event("stop", {"seconds": self.seconds}))

    def on_event(self, event: Event) -> None:
        """Handle an event of the coordinator: record that training has begun, or the answer to the stop request."""
        self.trains |= event.name == "progress"
        if event.name == "stop":
            self.answer = event.fields

    def repeat(self) -> None:
        """Let the next call of `poll` repeat the stop request, to the coordinator's replacement."""
        self._forwarded = False

    def stopped_by(self, error: BaseException) -> Stopped | None:
        """Return the Stopped error for the signal that ended a run; None if another error ended it.

        An error during the requested save is the reason why nothing was saved."""
        if isinstance(error, Stopped):
            return error
        if isinstance(error, KeyboardInterrupt):  # raised by a handler that was set before `stoppable`
            return Stopped(signal.SIGINT)
        if not stop_signal() or not isinstance(error, GbactlError):
            return None
        self.answer = self.answer or {"state": "failed", "why": str(error).rstrip(".")}
        return Stopped(stop_signal())

    def sentence(self, run_dir: Path) -> str:
        """Describe the checkpoint that was saved, and the command that resumes the run."""
        state = self.answer.get("state")
        if state == "saved":
            path, size = run_dir / CHECKPOINTS / self.answer["name"], self.answer["bytes"] / 1e6
            return f"step {self.answer['step']} is saved in {path} ({size:,.1f} MB); {_resume_command(run_dir)}"
        if state == "nothing" or not self.trains:
            return NOTHING
        return f"where it stood is not saved ({self._reason}){resume_hint(run_dir)}"

    @property
    def _reason(self) -> str:
        if self._refusal or "why" in self.answer:
            return self._refusal or str(self.answer["why"])
        if len(_received) > 1:
            return "a second signal came"
        return f"it took longer than cluster.stop_seconds={self.seconds:g}" if self._deadline else "it ended at once"

"""Signals that end a run, so that none gets lost.

Python drops an exception that a signal's handler raises while a destructor or a callback of its own runs (imports have
those): so what was asked for is remembered, and who waits for a long time looks at it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_asked: list[type[BaseException]] = []
_held: list[None] = []


class Stopped(BaseException):
    """SIGTERM, treated like Ctrl-C."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """In here Ctrl-C raises KeyboardInterrupt and SIGTERM Stopped, at once or else at the next `look`; what leaves is a
    KeyboardInterrupt. Only in the main thread; where Ctrl-C is ignored or has a handler already, it stays as it is."""
    raised: dict[int, type[BaseException]] = {signal.SIGTERM: Stopped}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raised[signal.SIGINT] = KeyboardInterrupt

    def stop(number: int, _: object) -> None:
        _asked.append(raised[number])
        if not _held:
            raise raised[number]

    before = {number: signal.signal(number, stop) for number in raised}
    try:
        yield
    except Stopped:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


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
    if _asked:
        raise _asked[0]

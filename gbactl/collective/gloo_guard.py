"""A connection that breaks while a thread of Gloo's writes to it does not end the process.

Gloo's event loop lets the exception out that it has already given to all who wait for that connection (its issue 168),
and C++ ends a process for that: so ended three of thirteen workers whose host's connections were reset. Here that
thread stands still instead, and the worker gets the error. Costs nothing until then.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

_HANDLER = ctypes.CFUNCTYPE(None)
_kept: list[Any] = []  # what C++ points to must stay
log = logging.getLogger(__name__)


class _TypeInfo(ctypes.Structure):
    """std::type_info, as every compiler on Linux lays it out."""

    _fields_ = (("methods", ctypes.c_void_p), ("name", ctypes.c_char_p))


def outlive() -> None:
    """From now on, in this process. Without C++'s library, where nothing could break, it does nothing."""
    if _kept:
        return
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        replace = library["_ZSt13set_terminatePFvvE"]
        current = library["__cxa_current_exception_type"]
    except (OSError, AttributeError):
        return
    current.restype = ctypes.POINTER(_TypeInfo)
    replace.argtypes, replace.restype = (_HANDLER,), _HANDLER
    _kept.append(_HANDLER(lambda: _ended(current, _kept[1])))
    _kept.append(replace(_kept[0]))


def _ended(current: Callable[[], Any], usual: Callable[[], None]) -> None:
    """A thread has let an exception out, or something worse."""
    thrown = current()
    name = thrown.contents.name.decode() if thrown else ""
    if "4gloo" in name and threading.get_ident() != threading.main_thread().ident:
        log.warning("a thread of Gloo's lost its connection (%s) and stands still", name)
        threading.Event().wait()
    usual()

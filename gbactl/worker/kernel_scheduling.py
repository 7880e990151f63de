"""How the kernel shares the cores among a run's processes (Linux only), and what the collector may disturb.

A worker's compute thread runs in long stretches and asks for long time slices: where there are more workers
than cores, a short slice only empties the caches (about 2 % with 4 workers on 2 cores). All other threads and
processes keep the default and so come first when they wake up.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import struct
import sys

SCHED_BATCH = 3
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("<IIQiIQQQII")


def ask_for_long_slices(milliseconds: float) -> bool:
    """Run the calling thread in slices of up to so long (at most 100). False where the kernel refuses."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    nanoseconds = int(milliseconds * 1e6)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, SCHED_BATCH, 0, 0, 0, nanoseconds, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES.size)
    return bool(ctypes.CDLL(None).syscall(number, 0, buffer, 0) == 0)


def settle_garbage() -> None:
    """What exists now stays: the collector need not walk through libraries and models again and again."""
    gc.collect()
    gc.freeze()

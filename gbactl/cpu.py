"""Cores of this machine: processor features, scheduling, and sharing of a core.

A worker's compute thread runs in long stretches and asks for long time slices: where there are more workers
than cores, a short slice only empties the caches (about 2 % with 4 workers on 2 cores). All other threads and
processes keep the default and thus run first when they wake up.

Where there are more workers than cores, each worker is pinned to a core and computes in time slots. Left to itself the
kernel switches between the workers of a core at every message that arrives for one of them, every 3 ms, and each switch
refills the caches with another worker's model: 5 % of a core. A slot lasts a whole batch, first come first served;
between slots a worker's core does what the messages need. A slot is advisory, not a lock: nothing depends on it, and a
holder that hangs or died is skipped.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import mmap
import os
import platform
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CPUINFO = Path("/proc/cpuinfo")
BF16 = frozenset(("avx512_bf16", "amx_bf16", "bf16", "svebf16"))
SLOW_BF16 = (
    "precision=bf16 is slow here: this machine's processor has no instructions for it; fp32 is several times as fast."
)
SCHED_BATCH = 3
BLOCK_BYTES, KEPT_BYTES = 1 << 25, 1 << 28
LINE = 64  # bytes of a line of the board
PATIENCE_MS = 1000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("<IIQiIQQQII")


@functools.cache
def _cpuinfo(path: Path) -> dict[str, str]:
    """Read the fields of the first core from the file `path` (/proc/cpuinfo); {} if the file does not exist."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":") for line in reversed(lines)]
    return {key.strip(): value.strip() for key, _, value in pairs}


def model(path: Path = CPUINFO) -> str:
    """Return the model name of the processor; "" if unknown."""
    return _cpuinfo(path).get("model name", "")


def features(path: Path = CPUINFO) -> tuple[str, ...]:
    """Return the processor's features by Linux's names ("avx2"), in Linux's order; empty if unknown."""
    info = _cpuinfo(path)
    return tuple((info.get("flags") or info.get("Features", "")).split())  # x86, ARM


def vectors(path: Path = CPUINFO) -> str:
    """Return the vector instructions of an x86 processor, which determine the order of floating-point sums."""
    return " ".join(name for name in features(path) if name.startswith(("avx", "sse4", "fma", "amx")))


def lacks_bf16(path: Path = CPUINFO) -> bool:
    """Return whether bf16 matrix products are slower than fp32 ones here; false if unknown."""
    return bool(features(path)) and not BF16 & {*features(path)}


def widest(path: Path = CPUINFO) -> str:
    """Return the widest vector instructions, as "AVX-512 with bf16", "AVX2", or "" if unknown."""
    present = {*features(path)}
    name = "AVX-512" if "avx512f" in present else "AVX2" if "avx2" in present else ""
    return f"{name} with bf16" if name and BF16 & present else name


def available_cores() -> list[int]:
    """Return the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def sharing(workers: int, cores: list[int]) -> list[int]:
    """Return the core of each worker if every core has the same number of workers, at least two; else []."""
    return [cores[index % len(cores)] for index in range(workers)] if shared_equally(workers, len(cores)) else []


def shared_equally(workers: int, cores: int) -> bool:
    """Whether the workers divide evenly among the cores, with more than one on each."""
    return workers > cores and workers % cores == 0


def ask_for_long_slices(milliseconds: float) -> bool:
    """Set the calling thread's scheduler time slice in milliseconds (at most 100); False if the kernel refuses."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    nanoseconds = int(milliseconds * 1e6)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, SCHED_BATCH, 0, 0, 0, nanoseconds, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES.size)
    return bool(ctypes.CDLL(None).syscall(number, 0, buffer, 0) == 0)


def keep_freed_memory() -> bool:
    """Make this process keep up to KEPT_BYTES of freed memory, in blocks of up to BLOCK_BYTES, for later arrays.

    Memory that malloc gets back from the kernel costs a page fault for every 4 KB. Returns False where malloc is not
    glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def settle_garbage() -> None:
    """Exclude all existing Python objects (libraries, models) from later garbage collections."""
    gc.collect()
    gc.freeze()


def open_turn_counters(cores: int) -> BinaryIO:
    """Create an unnamed file of counters, one per core, for the turns of workers that share the core."""
    board = tempfile.TemporaryFile(prefix="gbactl-turns-")  # noqa: SIM115  (the launcher keeps it)
    board.truncate(LINE * cores)
    return board


def place_of(worker: int, workers: int, board: BinaryIO) -> tuple[int, int, int] | None:
    """Return the fields of a worker's CoreAssignment; None unless equally many workers share every core."""
    cores = available_cores()
    shared = sharing(workers, cores)
    return (board.fileno(), cores.index(shared[worker]), shared[worker]) if shared else None


@dataclass(frozen=True)
class CoreAssignment:
    """Core of a worker, and the line of the shared file that counts the core's slots."""

    fd: int
    line: int
    core: int


class CoreSlots:
    """Time slots of a worker on a shared core: `with core_slots.time_slot(): compute`."""

    def __init__(self, place: CoreAssignment, library: Any) -> None:
        self.place, self._library = place, library
        self._memory = mmap.mmap(place.fd, 0)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + LINE * place.line

    def pin_thread(self) -> None:
        """Pin the calling thread to the worker's core."""
        os.sched_setaffinity(0, {self.place.core})

    @contextmanager
    def time_slot(self) -> Iterator[None]:
        """Context in which this worker alone, of those that share its core, computes.

        Waits for the worker's turn, at most PATIENCE_MS for each earlier worker that hangs."""
        ticket = self._library.gb_turn_take(self._address, PATIENCE_MS)
        try:
            yield
        finally:
            self._library.gb_turn_end(self._address, ticket)


class UnsharedCore:
    """Stand-in for CoreSlots if a worker has its core to itself."""

    def pin_thread(self) -> None:
        """Do nothing, as the worker shares no core."""

    def time_slot(self) -> Any:
        """Return an empty context, without waiting."""
        return nullcontext()

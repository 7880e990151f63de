"""Core sharing where there are more workers than cores: each worker is pinned to a core and computes in time slots.

Left to itself the kernel switches between the workers of a core at every message that arrives for one of them,
every 3 ms, and each switch refills the caches with another worker's model: 5 % of a core. A slot lasts a whole
batch, first come first served; between slots a worker's core does what the messages need. A slot is
advisory, not a lock: nothing depends on it, and a holder that hangs or died is skipped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO

from gbactl.cpu import sharing

LINE = 64
PATIENCE_MS = 1000


def open_board(cores: int) -> BinaryIO:
    """Create an unnamed file with one slot counter per core; child processes inherit its descriptor."""
    board = tempfile.TemporaryFile(prefix="gbactl-turns-")  # noqa: SIM115  (the launcher keeps it)
    board.truncate(LINE * cores)
    return board


def places(workers: int, cores: list[int], board: BinaryIO) -> list[tuple[int, int, int]]:
    """Assign each worker a core: fields of its CoreAssignment; [] where cores are not shared, or not evenly."""
    return [(board.fileno(), cores.index(core), core) for core in sharing(workers, cores)]


@dataclass(frozen=True)
class CoreAssignment:
    """Core of a worker, and the line of the shared file that counts the core's slots."""

    fd: int
    line: int
    core: int


class CoreSlots:
    """Time slots of a worker on a shared core: `with core_slots.mine(): compute`."""

    def __init__(self, place: CoreAssignment, library: Any) -> None:
        self.place, self._library = place, library
        self._memory = mmap.mmap(place.fd, 0)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + LINE * place.line

    def settle(self) -> None:
        """Pin the calling thread to the worker's core."""
        os.sched_setaffinity(0, {self.place.core})

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Context of one time slot on the core; waits at most PATIENCE_MS for each hanging worker that precedes."""
        ticket = self._library.gb_turn_take(self._address, PATIENCE_MS)
        try:
            yield
        finally:
            self._library.gb_turn_end(self._address, ticket)


class UnsharedCore:
    """Stand-in for CoreSlots where a worker has its core to itself."""

    def settle(self) -> None:
        """Do nothing, as the worker shares no core."""

    def mine(self) -> Any:
        """Return an empty context, without waiting."""
        return nullcontext()


def join(place: CoreAssignment | None) -> CoreSlots | UnsharedCore:
    """Return the CoreSlots of a core assignment; UnsharedCore without one, or without the compiled library."""
    from gbactl.kernels.build import find_library
    from gbactl.kernels.native import open_library

    path = find_library()
    return UnsharedCore() if place is None or path is None else CoreSlots(place, open_library(path))

"""Where there are more workers than cores: each keeps to one core and computes when it is its turn there.

Left to itself the kernel changes between the workers of a core at every message that arrives for anybody,
every 3 ms, and each change refills the caches with another worker's model: 5 % of a core. Turns are whole
batches, first come first served; between them a worker's core does what the messages need. A turn is a
courtesy, not a lock: nothing depends on it, and a holder that is stuck or dead is passed by.
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

from gbactl.processor import sharing

LINE = 64
PATIENCE_MS = 1000


def open_board(cores: int) -> BinaryIO:
    """A nameless file for so many cores' turns; children inherit its descriptor."""
    board = tempfile.TemporaryFile(prefix="gbactl-turns-")  # noqa: SIM115  (the launcher keeps it)
    board.truncate(LINE * cores)
    return board


def places(workers: int, cores: list[int], board: BinaryIO) -> list[tuple[int, int, int]]:
    """The fields of each worker's Place; empty where they need not share cores, or could not share equally."""
    return [(board.fileno(), cores.index(core), core) for core in sharing(workers, cores)]


@dataclass(frozen=True)
class Place:
    """A worker's core and where on the board its turns are counted."""

    fd: int
    line: int
    core: int


class Turns:
    """A worker's turns: `with turns.mine(): compute`."""

    def __init__(self, place: Place, library: Any) -> None:
        self.place, self._library = place, library
        self._memory = mmap.mmap(place.fd, 0)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + LINE * place.line

    def settle(self) -> None:
        """Keep the calling thread on its core."""
        os.sched_setaffinity(0, {self.place.core})

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Wait for a turn (at most PATIENCE_MS for each worker that is stuck), and end it afterwards."""
        ticket = self._library.gb_turn_take(self._address, PATIENCE_MS)
        try:
            yield
        finally:
            self._library.gb_turn_end(self._address, ticket)


class AnyTime:
    """No turns: a worker has its core to itself."""

    def settle(self) -> None:
        """Nothing to do."""

    def mine(self) -> Any:
        """At once."""
        return nullcontext()


def join(place: Place | None) -> Turns | AnyTime:
    """The turns at a place. Without one, or without the compiled library, a worker computes at any time."""
    from gbactl.kernels.build import find_library
    from gbactl.kernels.library import open_library

    path = find_library()
    return AnyTime() if place is None or path is None else Turns(place, open_library(path))

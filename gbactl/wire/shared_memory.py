"""Payload slots in shared memory between two processes on one host.

The connector creates a file in /dev/shm, the listener maps it, and the name is unlinked as soon as both have mapped it,
so that no file is left behind however a run ends. A 2 MB payload then costs one copy instead of four.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import NamedTuple

import numpy as np

from gbactl import shared_memory_names
from gbactl.errors import ClusterError, WireError
from gbactl.shared_memory_names import DIRECTORY
from gbactl.wire.frames import Bytes

SLOTS = (5, 3)  # connector -> listener, listener -> connector
PAGE = 4096


def _round(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


class SegmentLayout(NamedTuple):
    """Layout of a shared-memory segment: bytes of one slot in each direction; also sent to the listener."""

    name: str
    outgoing: int
    incoming: int

    @property
    def total(self) -> int:
        """Size of the segment in bytes."""
        return SLOTS[0] * self.outgoing + SLOTS[1] * self.incoming

    def slots(self, memory: mmap.mmap) -> tuple[list[Bytes], list[Bytes]]:
        """Split a segment into views of its slots: (connector's, listener's)."""
        whole = np.frombuffer(memory, np.uint8)
        cut = SLOTS[0] * self.outgoing
        first = [whole[i * self.outgoing : (i + 1) * self.outgoing] for i in range(SLOTS[0])]
        second = [whole[cut + i * self.incoming : cut + (i + 1) * self.incoming] for i in range(SLOTS[1])]
        return first, second


def create(outgoing: int, incoming: int) -> tuple[SegmentLayout, mmap.mmap]:
    """Create and map a shared-memory segment, which stays locked while it is mapped (see shared_memory_names).

    Raises ClusterError when the host's shared memory is full or cannot be written."""
    layout = SegmentLayout(shared_memory_names.new(), _round(outgoing), _round(incoming))
    path = DIRECTORY / layout.name
    try:
        handle = shared_memory_names.open_locked(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            os.posix_fallocate(handle, 0, layout.total)
            return layout, mmap.mmap(handle, layout.total)
        finally:
            os.close(handle)
    except OSError as error:
        unlink(layout)
        raise ClusterError(
            f"Shared memory is full or cannot be written ({layout.total >> 20} MiB needed for one connection: "
            f"{error.strerror}); free some in {DIRECTORY} or type cluster.transport=tcp."
        ) from error


def attach(layout: SegmentLayout) -> mmap.mmap | None:
    """Map a peer's shared-memory segment; None if it is on another host. Raises WireError for a bad name or size."""
    if not shared_memory_names.NAME.fullmatch(layout.name) or layout.outgoing < 0 or layout.incoming < 0:
        raise WireError("A peer offers shared memory under a name that is not allowed.")
    try:
        handle = os.open(DIRECTORY / layout.name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if status.st_size != layout.total or status.st_uid != os.getuid():
            raise WireError("A peer offers shared memory of another size or owner.")
        return mmap.mmap(handle, layout.total) if layout.total else None
    finally:
        os.close(handle)


def unlink(layout: SegmentLayout) -> None:
    """Remove the shared-memory segment's name; existing mappings stay valid."""
    with contextlib.suppress(OSError):
        (DIRECTORY / layout.name).unlink()

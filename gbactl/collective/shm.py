"""An all-reduce in shared memory, for ranks on one host: each adds the others' vectors up itself, in rank order.

Cost per bucket: one copy in, `size` reads of the vector, one futex barrier; no polling, no background
thread, nothing that steals a core from the compute. Memory: 2 x size x n floats per bucket name, twice
because a rank that is a round ahead must not overwrite what a slower one still reads. Every rank
computes ((x0 + x1) + x2) + ..., so all ranks and all runs get the same bits.

A bucket's file is unlinked as soon as every rank has mapped it: whatever dies, the memory is released.
Linux only (futex through libc). Each rank writes only its own line of counters; a counter is an aligned
32-bit word, published by the system call that follows it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.collective.base import Vector, as_array
from gbactl.collective.meeting import Meeting
from gbactl.errors import ClusterError, ConfigError

FUTEX_WAIT, FUTEX_WAKE, EVERYONE = 0, 1, 0x7FFFFFFF
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
LINE = 64  # bytes: the counters of one rank, alone on their cache line
SHARED_MEMORY = Path("/dev/shm")

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_PATIENCE = _Timespec(0, 200_000_000)  # how often a waiting rank looks whether its peer still lives


class _Line(ctypes.Structure):
    """What one rank publishes: how many rounds it has written, and who it is."""

    _fields_ = (("round", ctypes.c_uint32), ("pid", ctypes.c_uint32), ("pad", ctypes.c_uint32 * 14))


@dataclass
class _Bucket:
    length: int
    path: Path
    lines: list[Any]
    slots: tuple[list[Vector], list[Vector]]  # two parities, one slot per rank
    round: int = 0


@dataclass(frozen=True)
class _Handle:
    name: str
    bucket: _Bucket
    round: int
    buffer: Vector


def alive(pid: int) -> bool:
    """Whether process `pid` can still do anything: a zombie cannot."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


class SharedMemoryCollective:
    """One rank of a group on this host. `folder` is private to the group and starts out empty."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self._buckets: dict[str, _Bucket] = {}

    def start(self, name: str, buffer: Any) -> _Handle:
        """See Collective.start. Raises ClusterError when the host has too little shared memory."""
        array = as_array(buffer)
        bucket = self._buckets.get(name) or self._open(name, len(array))
        if len(array) != bucket.length:
            raise ValueError(f"{name} has {bucket.length} floats in this group, not {len(array)}")
        bucket.round += 1
        bucket.slots[bucket.round & 1][self.rank][:] = array
        mine = bucket.lines[self.rank]
        mine.pid, mine.round = os.getpid(), bucket.round
        _libc.syscall(FUTEX, ctypes.byref(mine), FUTEX_WAKE, EVERYONE, None)
        return _Handle(name, bucket, bucket.round, array)

    def wait(self, handle: _Handle) -> None:
        """See Collective.wait."""
        parts = handle.bucket.slots[handle.round & 1]
        for rank in range(self.size):
            self._await(handle, rank)
            if rank == 1:
                np.add(parts[0], parts[1], out=handle.buffer)
            elif rank:
                np.add(handle.buffer, parts[rank], out=handle.buffer)
        if handle.round == 1:
            handle.bucket.path.unlink(missing_ok=True)  # everyone has it mapped by now

    def _await(self, handle: _Handle, rank: int) -> None:
        line = handle.bucket.lines[rank]
        while (seen := line.round) < handle.round:
            slept = _libc.syscall(
                FUTEX, ctypes.byref(line), FUTEX_WAIT, seen, ctypes.byref(_PATIENCE), None, 0
            )
            gone = seen and slept and not alive(line.pid)
            if gone and line.round < handle.round:
                raise ClusterError(
                    f"all-reduce {handle.name} failed on rank {self.rank}: rank {rank} is gone."
                )

    def _open(self, name: str, length: int) -> _Bucket:
        """Map the bucket's file, making it if this rank is first. Same name, same length on every rank."""
        path = self.folder / f"{len(self._buckets)}-{length}"
        stride = -(-length * 4 // LINE) * LINE
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, self.size * (LINE + 2 * stride))
            memory = mmap.mmap(handle, self.size * (LINE + 2 * stride))
        except OSError as error:
            raise ClusterError(
                f"{self.folder} has no room for {self.size * 2 * stride >> 20} MiB ({error.strerror}); "
                "enlarge /dev/shm or type collective=gloo."
            ) from error
        finally:
            os.close(handle)
        lines = [_Line.from_buffer(memory, LINE * rank) for rank in range(self.size)]
        views = [
            np.frombuffer(memory, np.float32, length, LINE * self.size + stride * i)
            for i in range(2 * self.size)
        ]
        bucket = _Bucket(length, path, lines, (views[: self.size], views[self.size :]))
        return self._buckets.setdefault(name, bucket)

    def close(self) -> None:
        """See Collective.close. The memory goes with the last view of it."""
        self._buckets.clear()


class SharedMemoryMeeting(Meeting):
    """A private folder in shared memory, removed at close()."""

    def __init__(self, size: int) -> None:
        if not FUTEX or not SHARED_MEMORY.is_dir():
            raise ConfigError(
                "collective=shm needs Linux and /dev/shm; type collective=gloo."
            )
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="gbactl-sum-", dir=SHARED_MEMORY))

    def environment(self, rank: int) -> dict[str, str]:
        """See Meeting.environment."""
        return {
            "GBACTL_COLLECTIVE": "shm",
            "GBACTL_RANK": str(rank),
            "GBACTL_SIZE": str(self.size),
            "GBACTL_SUM_FOLDER": str(self.folder),
        }

    def close(self) -> None:
        """See Meeting.close."""
        shutil.rmtree(self.folder, ignore_errors=True)

"""All-reduce in shared memory for ranks on one host: each rank sums all vectors itself, in rank order.

A bucket costs one copy in, `size` reads of the vector and one futex barrier. Nothing polls, and no background thread
takes a core from the compute. Memory: 2 x size x n floats per bucket name; twice because a rank that is one all-reduce
round ahead must not overwrite what a slower rank still reads. Every rank computes ((x0 + x1) + x2) + ..., so all ranks
and all runs get the same bits.

A bucket's file is unlinked as soon as every rank has mapped it, and the folder with the last one: whichever process
ends, the memory is released and no name is left. Linux only (futex through libc). A counter has one writer at a time
and is an aligned 32-bit word, published by the system call that follows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gbactl import shared_memory_names
from gbactl.collective.base import Rendezvous, Vector, as_array
from gbactl.collective.fault_tolerant import FaultTolerantCollective, InterruptedSum
from gbactl.errors import ClusterError, ConfigError
from gbactl.shared_memory_names import DIRECTORY as SHARED_MEMORY

FUTEX_WAIT, FUTEX_WAKE, EVERYONE = 0, 1, 0x7FFFFFFF
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
LINE = 64  # bytes: the counters of one rank, alone on their cache line

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ROOM_SECONDS = 2e-4
_PATIENCE = _Timespec(0, 200_000_000)  # interval at which a waiting rank checks whether its peer is alive


class _Line(ctypes.Structure):
    """One cache line in shared memory: state of the rank and of the summand with the line's index.

    `round`: last all-reduce round of which the summand of this index is written. `pid`: process of the rank of this
    index. `done`: last round that the rank has read."""

    _fields_ = (
        ("round", ctypes.c_uint32), ("pid", ctypes.c_uint32), ("done", ctypes.c_uint32),
        ("pad", ctypes.c_uint32 * 13),
    )  # fmt: skip


@dataclass
class _Bucket:
    length: int
    path: Path
    lines: list[Any]
    slots: tuple[list[Vector], list[Vector]]  # of even and of odd rounds, one per summand
    round: int = 0
    named: bool = True


@dataclass(frozen=True)
class _Handle:
    name: str
    bucket: _Bucket
    round: int
    buffer: Vector
    parts: int


def available() -> bool:
    """Return whether this machine supports a collective in shared memory (futex and /dev/shm)."""
    return bool(FUTEX) and shared_memory_names.available()


def require_available() -> None:
    """Raise ConfigError if this machine does not support a collective in shared memory."""
    if not available():
        raise _unusable("it is read-only or not there" if FUTEX else f"not on {platform.machine()}")


def _unusable(why: str) -> ConfigError:
    return ConfigError(f"collective=shm needs shared memory in {SHARED_MEMORY} ({why}); type collective=gloo.")


def is_alive(pid: int) -> bool:
    """Return whether process `pid` is alive; a zombie is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


class SharedMemoryCollective(FaultTolerantCollective):
    """Shared-memory collective: one rank of a group on this host.

    `folder` is private to the group and starts out empty.
    With dealt summands, a failed rank breaks nothing: the summands that it had given count, other ranks give the rest.
    With own summands the rest is missing: a process that has ended writes no more, so that all ranks see the same ones
    missing."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.folder = self._root = folder
        self._buckets: dict[str, _Bucket] = {}
        self._lock_fd: int | None = None

    def on_rank_failed(self, rank: int) -> None:
        self._absent.add(rank)
        self.interrupt()

    def interrupt(self) -> None:
        for bucket in list(self._buckets.values()):
            for line in bucket.lines:
                _libc.syscall(FUTEX, ctypes.byref(line), FUTEX_WAKE, EVERYONE, None)

    def renew(self, generation: int) -> None:
        super().renew(generation)
        self._buckets.clear()
        self.folder = self._root / str(generation)

    def give(self, name: str, buffer: Any) -> _Handle:
        """Write this rank's summand. Raises ClusterError when the host has too little shared memory."""
        array = as_array(buffer)
        bucket = self._buckets.get(name) or self._open(name, len(array))
        if len(array) != bucket.length:
            raise ValueError(f"{name} has {bucket.length} floats in this group, not {len(array)}")
        number, part, parts, _ = self._assignment or (bucket.round + 1, self.rank, self.size, 0)
        bucket.round = number
        if part is not None:
            self._make_room(bucket, number)
            bucket.slots[number & 1][part][:] = array
            self.on_bytes_sent(array.nbytes, True)
            line = bucket.lines[part]
            line.round = number
            _libc.syscall(FUTEX, ctypes.byref(line), FUTEX_WAKE, EVERYONE, None)
        return _Handle(name, bucket, number, array, parts)

    def _make_room(self, bucket: _Bucket, number: int) -> None:
        """Wait until every live rank has read the summand to be overwritten, which is two all-reduce rounds old."""
        for rank, line in enumerate(bucket.lines):
            while line.done + 2 < number and rank not in self._absent and (not line.pid or is_alive(line.pid)):
                time.sleep(_ROOM_SECONDS)

    def sum_given(self, handle: _Handle) -> None:
        slots = handle.bucket.slots[handle.round & 1]
        parts = (slots[part] for part in range(handle.parts) if self._await(handle, part))
        first, second = next(parts), next(parts, None)  # this rank's own is always there
        if second is None:
            np.copyto(handle.buffer, first)
        else:
            np.add(first, second, out=handle.buffer)
        for part in parts:
            np.add(handle.buffer, part, out=handle.buffer)
        self.confirm_sum(handle)

    def confirm_sum(self, handle: _Handle) -> bool:
        """Record that this rank has the sum of an all-reduce round, whose summands may then be overwritten."""
        handle.bucket.lines[self.rank].done = handle.round
        if handle.bucket.named:
            self._forget_name(handle.bucket)
        return True

    def _forget_name(self, bucket: _Bucket) -> None:
        """Unlink a bucket's file once every rank has mapped it."""
        if all(line.pid or rank in self._absent for rank, line in enumerate(bucket.lines)):
            bucket.path.unlink(missing_ok=True)
            bucket.named = False
            with contextlib.suppress(OSError):  # not empty: another bucket is being opened
                self.folder.rmdir()
                self._root.rmdir()

    def _await(self, handle: _Handle, part: int) -> bool:
        """Wait for one rank's summand of an all-reduce round; False if the rank has failed before writing it."""
        line = handle.bucket.lines[part]
        while (seen := line.round) < handle.round:
            slept = _libc.syscall(FUTEX, ctypes.byref(line), FUTEX_WAIT, seen, ctypes.byref(_PATIENCE), None, 0)
            if self._assignment is not None:
                if self.wanted():
                    raise InterruptedSum
                continue
            if self._cannot_write(part, line, bool(slept)) and line.round < handle.round:
                if self._sums_live_ranks:
                    return False
                raise ClusterError(f"all-reduce {handle.name} failed on rank {self.rank}: rank {part} is gone.")
        return True

    def _cannot_write(self, rank: int, line: Any, slept: bool) -> bool:
        """Whether a rank can no longer write: its process has ended, or it was excluded before its first write."""
        if not line.pid:
            return self._sums_live_ranks and rank in self._absent
        return slept and not is_alive(line.pid)

    def _open(self, name: str, length: int) -> _Bucket:
        """Map the shared-memory file of a bucket, and create it if this rank is the first to need it.

        Same name, same length on every rank."""
        path = self.folder / f"{len(self._buckets)}-{length}"
        stride = -(-length * 4 // LINE) * LINE
        handle = self._create(path)
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
        views = [np.frombuffer(memory, np.float32, length, LINE * self.size + stride * i) for i in range(2 * self.size)]
        lines[self.rank].pid = os.getpid()
        bucket = _Bucket(length, path, lines, (views[: self.size], views[self.size :]))
        return self._buckets.setdefault(name, bucket)

    def _create(self, path: Path) -> int:
        """Create a bucket's shared-memory file, or open another rank's. Raises ClusterError for another user's file."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # a rank that saw all buckets mapped has removed the folder
                self._root.mkdir(mode=0o700, exist_ok=True)
                self._hold()
                self.folder.mkdir(mode=0o700, exist_ok=True)
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                break
        if os.fstat(handle).st_uid != os.getuid():
            os.close(handle)
            raise ClusterError(f"{path} belongs to another user; type collective=gloo.")
        return handle

    def _hold(self) -> None:
        """Lock the group's folder against clean-ups. Raises FileNotFoundError if a clean-up has removed it."""
        held, self._lock_fd = self._lock_fd, shared_memory_names.open_locked(self._root)
        if held is not None:
            os.close(held)

    def close(self) -> None:
        """Leave the group; its memory is freed with the last view of it."""
        super().close()
        self._buckets.clear()
        held, self._lock_fd = self._lock_fd, None
        if held is not None:
            os.close(held)


class SharedMemoryRendezvous(Rendezvous):
    """Rendezvous by a private folder in shared memory, removed once all ranks have mapped its files, or at close()."""

    name = "shm"

    def __init__(self, size: int) -> None:
        require_available()
        super().__init__(size)
        self.folder = SHARED_MEMORY / shared_memory_names.new()
        try:
            self.folder.mkdir(mode=0o700)
            self._lock_fd: int | None = shared_memory_names.open_locked(self.folder)
        except OSError as error:
            raise _unusable(error.strerror or "") from error

    def own(self, rank: int) -> dict[str, str]:
        return {"GBACTL_SUM_FOLDER": str(self.folder)}

    def release(self) -> None:
        held, self._lock_fd = self._lock_fd, None
        if held is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(held)

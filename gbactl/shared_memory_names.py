"""Names of shared-memory segments, and locks by which leftovers of dead processes are found and removed. Linux.

Every process that uses such a name holds a lock on it. The kernel releases a lock with the last descriptor of the
process, however that dies, and sees it in every pid namespace that has the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

DIRECTORY = Path("/dev/shm")
PREFIX = "gbactl-"
NAME = re.compile(r"gbactl-([0-9]+)-[0-9a-f]{16}")


def available() -> bool:
    """Return whether this host has shared memory to which this process may write."""
    return DIRECTORY.is_dir() and os.access(DIRECTORY, os.W_OK | os.X_OK)


def new() -> str:
    """Generate an unused segment name that contains this process's id, for readers of the folder."""
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


def open_locked(path: Path, flags: int = 0) -> int:
    """Open a segment or folder with `flags` and lock it, so that no cleanup of leftovers removes it while it is open.

    With O_CREAT it is created again where a sweep was faster than the lock. Raises FileNotFoundError where it does not
    exist.
    """
    while True:
        handle = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.lstat().st_ino:
                return handle
        os.close(handle)


def sweep() -> int:
    """Remove this user's segments and folders that no process has locked; returns how many.

    Processes killed before all others have opened what they created leave such names.
    """
    removed = 0
    for path in DIRECTORY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if NAME.fullmatch(path.name) and path.lstat().st_uid == os.getuid():
                removed += _removed(path)
    return removed


def _removed(path: Path) -> bool:
    """Remove a segment or folder. Raises BlockingIOError if a process has locked it."""
    handle = os.open(path, os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(handle)
    return True

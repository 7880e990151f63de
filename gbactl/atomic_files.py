"""Atomic and durable writing of files, disk space reserved for them, and reading and writing of a run's result.json."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gbactl.errors import NoRoomError

FULL = (errno.ENOSPC, errno.EDQUOT)  # errno of an OSError: a disk, or a quota, is full
CONFIG, RESULT = "config.yaml", "result.json"
ROOM = ".room"  # file of a run directory that holds the disk space reserved for the result


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context that yields the path of a partial file, which replaces `path` at the end or is removed."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Write a file to the disk itself, or a folder, so that the names in it survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_room(fd: int, size: int) -> None:
    """Reserve `size` bytes of disk for an empty file, if the system can. Raises OSError if the disk is full."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in FULL:
            raise


@contextlib.contextmanager
def room_needed(path: Path) -> Iterator[None]:
    """Context that raises NoRoomError in place of a full disk's OSError; `path`: the file or folder written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        what, free = error.filename or path, shutil.disk_usage(path if path.is_dir() else path.parent).free
        raise NoRoomError(
            f"{what} could not be written ({error.strerror}; {free:,} bytes are free there); make room."
        ) from error


def read_result(path: Path) -> dict[str, Any]:
    """Read a run directory's result.json; {} if it is missing or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((path / RESULT).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def plain(value: Any) -> Any:
    """Replace infinities and NaN by None, as JSON has no form for them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write result.json atomically into the reserved disk space. Raises NoRoomError."""
    target = path / RESULT
    with room_needed(target), replacing(target) as partial:
        # overwritten, not freed: on a full disk others could take what is free
        with contextlib.suppress(FileNotFoundError):
            (path / ROOM).replace(partial)
        partial.touch()
        with partial.open("r+") as file:
            file.write(json.dumps(result, indent=2) + "\n")
            file.truncate()

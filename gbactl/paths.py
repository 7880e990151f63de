"""Location of the conf tree (beside the package in a checkout, inside it in a wheel), atomic writes, disk space."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gbactl.errors import NoRoomError

_SEARCHED: list[Path] = []

FULL = (errno.ENOSPC, errno.EDQUOT)  # errno of an OSError: a disk, or a quota, is full


def conf_dir() -> Path:
    """Return the directory of the Hydra configuration tree."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def search_also(folders: list[Path]) -> None:
    """Find configuration files in these folders too, before those of gbactl: Hydra's search path of this process."""
    _SEARCHED[:] = folders


def option_files(group: str) -> dict[str, Path]:
    """Return the files that GROUP=OPTION chooses, by option in alphabetical order."""
    folders = [conf_dir(), *reversed(_SEARCHED)]
    found = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context that yields the path of a partial file, which replaces `path` at the end or is removed."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def take_room(fd: int, size: int) -> None:
    """Reserve `size` bytes of disk for an empty file, where supported. Raises OSError if the disk is full."""
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

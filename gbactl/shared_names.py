"""Names in shared memory: whose each one is, so that what the dead left can be told and taken away. Linux."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

DIRECTORY = Path("/dev/shm")
PREFIX = "gbactl-"
NAME = re.compile(r"gbactl-([0-9]+)-[0-9a-f]{16}")


def new() -> str:
    """A name that nobody has, with this process's id in it."""
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


def sweep() -> int:
    """Remove this user's segments and folders whose creator is dead; returns how many. Whoever
    is killed before all others have opened what it made leaves such a name."""
    removed = 0
    for path in DIRECTORY.glob(f"{PREFIX}*"):
        name = NAME.fullmatch(path.name)
        if name is None or Path(f"/proc/{name[1]}").exists():
            continue
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                removed += 1
    return removed

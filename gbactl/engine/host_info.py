"""Facts about a host that a run depends on, collected by its agent and checked by the launcher.

Imports nothing heavy.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Any, NamedTuple

from gbactl import shared_names
from gbactl.collective.rendezvous import address_of_own_name
from gbactl.engine.network_interface import client_of_ssh


class CgroupFiles(NamedTuple):
    """Names of the memory files in one version of control groups."""

    controller: str
    mount: str
    limit: str
    used: str
    idle: str


GROUPS = (
    CgroupFiles("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    CgroupFiles(
        "memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),
)  # fmt: skip
SAME = ("gbactl", "python", "torch", "horovod")  # versions that must be equal on all hosts


def facts() -> dict[str, Any]:
    """Collect versions, cores, free memory in bytes, the ssh client's address and that of the host's own name."""
    from gbactl import __version__

    return {
        "gbactl": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "horovod": version("horovod"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": free_memory(),
        "shared_memory": shutil.disk_usage(shared_names.DIRECTORY).free if shared_names.available() else 0,
        "client": client_of_ssh(),
        "name": socket.gethostname(),
        "own_name": address_of_own_name(),
    }


def version(package: str) -> str:
    """Return an installed package's version without importing it; "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that processes can allocate without swapping.

    This is the system's available memory, or what a control group leaves of its limit; 0 where the system does not
    tell."""
    lines = _lines(root / "proc/meminfo")
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min([*available, *_left_by_groups(root)], default=0)


def _left_by_groups(root: Path) -> list[int]:
    """Return the memory left in each control group of this process, and in the groups around it."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for group in (each for each in GROUPS if each.controller in controllers.split(",")):
            folder = root / group.mount / ("" if ".." in path else path.strip("/"))
            around = [folder, *folder.parents]
            found += [_left(each, group) for each in around[: around.index(root / group.mount) + 1]]
    return [left for left in found if left is not None]


def _left(folder: Path, group: CgroupFiles) -> int | None:
    """Return the bytes below a group's limit, counting unused file pages as free; None where there is no limit."""
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    try:
        limit, used = (int(_lines(folder / name)[0]) for name in (group.limit, group.used))
    except (IndexError, ValueError):  # "max", or a mount that does not show the group
        return None
    return max(1, limit - used + int(stat.get(group.idle, 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

"""Limits of this host: the cores and the memory that its processes may use, also by affinity and control groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gbactl.cpu import available_cores


class CgroupFiles(NamedTuple):
    """Names of the files of one resource in one version of Linux control groups.

    Of memory: limit and use, and in memory.stat the `idle` part of that; of CPU time: quota and period."""

    controller: str
    mount: str
    files: tuple[str, ...]
    idle: str = ""


MEMORY_GROUPS = (
    CgroupFiles("", "sys/fs/cgroup", ("memory.max", "memory.current"), "inactive_file"),
    CgroupFiles(
        "memory", "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
    ),
)  # fmt: skip
CPU_GROUPS = (
    CgroupFiles("", "sys/fs/cgroup", ("cpu.max",)),
    CgroupFiles("cpu", "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that processes can allocate without swapping.

    This is the system's available memory, or what a control group leaves of its limit; 0 where the system does not
    tell."""
    lines = _lines(root / "proc/meminfo")
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    left = [_left(folder, group) for folder, group in _groups(root, MEMORY_GROUPS)]
    return min([*available, *(each for each in left if each is not None)], default=0)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores that this host's processes can keep busy: those they may run on, or fewer by a CPU quota."""
    quotas = [_quota(folder, group) for folder, group in _groups(root, CPU_GROUPS)]
    return max(1, int(min([len(available_cores()), *(each for each in quotas if each is not None)])))


def _quota(folder: Path, group: CgroupFiles) -> float | None:
    """Return a control group's quota of CPU time in cores; None without one."""
    lines = [line for name in group.files for line in _lines(folder / name)]
    try:
        quota, period = map(int, " ".join(lines).split())
    except ValueError:  # "max", or a mount that does not show the group
        return None
    return quota / period if quota > 0 < period else None


def _groups(root: Path, kinds: Sequence[CgroupFiles]) -> Iterator[tuple[Path, CgroupFiles]]:
    """Find the folders of all control groups that contain this process."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for group in (each for each in kinds if each.controller in controllers.split(",")):
            folder = root / group.mount / ("" if ".." in path else path.strip("/"))
            around = [folder, *folder.parents]
            yield from ((each, group) for each in around[: around.index(root / group.mount) + 1])


def _left(folder: Path, group: CgroupFiles) -> int | None:
    """Return the free bytes below a control group's memory limit (unused file pages are free); None without a limit."""
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    try:
        limit, used = (int(_lines(folder / name)[0]) for name in group.files)
    except (IndexError, ValueError):  # "max", or a mount that does not show the group
        return None
    return max(1, limit - used + int(stat.get(group.idle, 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

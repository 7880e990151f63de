"""Cores and memory as control groups of both versions leave them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gbactl.host_limits import free_memory, usable_cores

V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": "7\n",
    "sys/fs/cgroup/job/memory.max": "3000000\n",
    "sys/fs/cgroup/job/memory.current": "1500000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 4096\ninactive_file 500000\n",
}
V1 = {  # as a container sees it: its own group is the mount
    "proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500000\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 4096000), (V2, 2000000), (V1, 2000000),
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4096000),
        ({**V2, "sys/fs/cgroup/job/memory.current": "4000000\n"}, 1),
        ({**V2, "proc/self/cgroup": "0::/../other\n"}, 4096000),
    ],
)  # fmt: skip
def test_memory_is_what_the_control_groups_leave(files: dict[str, str], free: int, tmp_path: Path) -> None:
    assert free_memory(tmp_path) == 0, "a system that does not tell"
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == free


CPU = "sys/fs/cgroup/cpu/cpu.cfs"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({**V2, "sys/fs/cgroup/job/cpu.max": "150000 100000\n", "sys/fs/cgroup/job/step/cpu.max": "max 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "10000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, 1 << 20),
        ({**V1, f"{CPU}_quota_us": "100000\n", f"{CPU}_period_us": "100000\n"}, 1),
        ({**V1, f"{CPU}_quota_us": "-1\n", f"{CPU}_period_us": "100000\n"}, 1 << 20),
    ],
)  # fmt: skip
def test_cores_are_what_a_quota_of_cpu_time_leaves(files: dict[str, str], most: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == min(most, len(os.sched_getaffinity(0)))

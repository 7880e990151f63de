"""CPU seconds used by each process of a local run (Linux: /proc; elsewhere unknown).

Costs 50 us a process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NODE = re.compile(r"pid (\d+)")


def pids(run_dir: Path) -> dict[str, int]:
    """Process id of each node ("W3", "S0", "C"), read from the node's log."""
    found = {}
    for path in sorted((run_dir / "logs").glob("*.log")):
        told = NODE.search(path.read_text(errors="replace"))
        if told is not None:
            found[path.stem] = int(told[1])
    return found


def seconds_of(pid: int) -> float | None:
    """CPU seconds used by all threads of a process; None where that is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_role(run_dir: Path) -> dict[str, float]:
    """CPU seconds by role ("W", "S", "C"), summed over the role's processes; empty where that is unknown."""
    used: dict[str, float] = {}
    for node, pid in pids(run_dir).items():
        seconds = seconds_of(pid)
        if seconds is not None:
            used[node[0]] = used.get(node[0], 0.0) + seconds
    return used


def machine() -> float | None:
    """CPU seconds used by the whole machine, including time stolen by a hypervisor; None where that is unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

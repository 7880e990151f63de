"""How much of a core each process of a local run has used (Linux: /proc; elsewhere nothing is known).

Costs 50 us a process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NODE = re.compile(r"pid (\d+)")


def pids(run_dir: Path) -> dict[str, int]:
    """Node ("W3", "S0", "C") -> its process, as its log tells."""
    found = {}
    for path in sorted((run_dir / "logs").glob("*.log")):
        told = NODE.search(path.read_text(errors="replace"))
        if told is not None:
            found[path.stem] = int(told[1])
    return found


def seconds_of(pid: int) -> float | None:
    """Seconds of a core that all threads of a process have used; None where that is not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_role(run_dir: Path) -> dict[str, float]:
    """Role ("W", "S", "C") -> seconds of a core, all its processes together; empty where that is not told."""
    used: dict[str, float] = {}
    for node, pid in pids(run_dir).items():
        seconds = seconds_of(pid)
        if seconds is not None:
            used[node[0]] = used.get(node[0], 0.0) + seconds
    return used


def machine() -> float | None:
    """Seconds of a core that everything on this machine has used, what a hypervisor took included; None elsewhere."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

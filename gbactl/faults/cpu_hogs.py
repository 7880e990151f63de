"""Competing processes that take CPU from workers: their placement, start and stop.

They are not among the run's processes (engine/local_processes.py): the end of one is no failure of the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

from gbactl.cpu import available_cores, sharing
from gbactl.errors import ConfigError
from gbactl.faults.fault_plan import FaultPlan

GRACE_SECONDS = 2.0


class HogPlacement(NamedTuple):
    """Placement of a competing process: its core, and the period in which it is busy.

    The period is in seconds since training began (end None: to the end)."""

    core: int
    begin: float
    end: float | None


def worker_cores(plan: FaultPlan, pinned: bool) -> list[int]:
    """Return the core that each worker is pinned to; [] if workers are not pinned (see gbactl/cpu.py)."""
    return sharing(plan.worker_count, available_cores()) if pinned else []


def place(plan: FaultPlan, pinned: bool) -> list[HogPlacement]:
    """Place every competing process of a fault plan on a core; `pinned`: the workers are pinned to cores.

    Raises ConfigError for a core that does not exist, or workers that are not pinned."""
    placed = []
    for hog, workers in plan.hogs:
        cores = _cores_of(worker_cores(plan, pinned), workers) if hog.cores is None else _existing_cores(hog.cores)
        placed += [HogPlacement(core, hog.from_, hog.until) for core in cores for _ in range(hog.processes)]
    return placed


def _cores_of(cores: list[int], workers: tuple[int, ...]) -> list[int]:
    if not cores:
        cores_text = ", ".join(map(str, available_cores()))
        raise ConfigError(
            "A fault of kind hog with the key workers needs pinned workers: cluster.pin=auto, and the same number of "
            f"workers, two or more, on every core; or type the key cores instead, with some of: {cores_text}."
        )
    return sorted({cores[worker] for worker in workers})


def _existing_cores(cores: list[int]) -> list[int]:
    existing = available_cores()
    missing = [core for core in cores if core not in existing]
    if missing:
        raise ConfigError(f"A hog names core {missing[0]}; the cores there are: {', '.join(map(str, existing))}.")
    return cores


def hogged(plan: FaultPlan, pinned: bool) -> frozenset[int]:
    """Return the workers that share a core with a competing process; all workers if they are not pinned."""
    if not plan.hogs:
        return frozenset()
    cores, taken = worker_cores(plan, pinned), {hog.core for hog in place(plan, pinned)}
    return frozenset(w for w in range(plan.worker_count) if not cores or cores[w] in taken)


class CpuHogs:
    """Processes that a fault plan starts to take CPU from workers. Raises ConfigError if one cannot be placed."""

    def __init__(self, plan: FaultPlan, pinned: bool) -> None:
        self.placed = place(plan, pinned)
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the competing processes when training begins, once."""
        self.running = self.running or [_start(hog) for hog in self.placed]

    def stop(self) -> None:
        """Terminate and reap all competing processes."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = []


def _start(hog: HogPlacement) -> subprocess.Popen[bytes]:
    """Start a competing process in its own session, so that the kernel gives it a full share beside a worker."""
    end = "" if hog.end is None else str(hog.end)
    return subprocess.Popen(
        [
            sys.executable, "-m", "gbactl.nodes.child_main", "cpu-hog", str(os.getpid()),
            str(hog.core), str(hog.begin), end,
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

"""Short runs on the local engine, to measure their rate and each role's CPU seconds per sample.

A run takes the seconds that it is measured for, and 4 s to start the processes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from gbactl.config import RunConfig
from gbactl.cpu import available_cores
from gbactl.data.dataset import Dataset
from gbactl.errors import ClusterError
from gbactl.faults.cpu_hogs import CpuHogs
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.progress import ProgressDisplay
from gbactl.launch.training_run import LaunchedRun
from gbactl.wire.messages import Event

NODE = re.compile(r"pid (\d+)")


def node_pids(run_dir: Path) -> dict[str, int]:
    """Read the process id of each node ("W3", "S0", "C") from the node's log."""
    found = {}
    for path in sorted((run_dir / "logs").glob("*.log")):
        match = NODE.search(path.read_text(errors="replace"))
        if match is not None:
            found[path.stem] = int(match[1])
    return found


def process_cpu(pid: int) -> float | None:
    """Return the CPU seconds used by all threads of a process; None if the process is gone."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


def cpu_by_role(run_dir: Path) -> dict[str, float]:
    """Return the CPU seconds by role ("W", "S", "C"), summed over the role's running processes."""
    used: dict[str, float] = {}
    for node, pid in node_pids(run_dir).items():
        seconds = process_cpu(pid)
        if seconds is not None:
            used[node[0]] = used.get(node[0], 0.0) + seconds
    return used


def machine_cpu() -> float:
    """Return the CPU seconds used by the whole machine, including time stolen by a hypervisor."""
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system + used.irq + used.softirq + used.steal)


FEWEST_NOTES = 5
WARM_UP = 1.5  # seconds
ATTEMPTS, QUIET = 3, 0.03  # a run is repeated while other processes use more than this share of the cores


@dataclass(frozen=True)
class Observation:
    """Observation of one run: its rate, and each role's CPU seconds per sample.

    `eps`: samples a second. `cpu`: role -> CPU seconds a sample. `others`: cores used during the run by processes
    outside it. `phase_eps`: samples trained over first hand-out to last announced gradient, the `eps` of result.json; 0
    for a run that was cut off.
    """

    mode: str
    workers: int
    eps: float
    cpu: dict[str, float] = field(default_factory=dict)
    others: float = 0.0
    phase_eps: float = 0.0

    @property
    def name(self) -> str:
        """Name of the run in messages: mode and number of workers."""
        return f"{self.mode} x {self.workers}"


class ProgressLog:
    """Progress events of training phases, without each phase's warm-up.

    The warm-up are the first `seconds`, in which caches fill.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._first: dict[int, float] = {}
        self.phases: dict[int, list[tuple[float, float]]] = {}

    def add(self, fields: dict[str, Any]) -> bool:
        """Record a progress event; False (and not recorded) during a phase's warm-up or at its end."""
        if fields["round_finished"] >= fields["round_samples"]:
            return False
        if fields["seconds"] < self._first.setdefault(fields["round"], fields["seconds"]) + self.seconds:
            return False
        self.phases.setdefault(fields["round"], []).append((fields["seconds"], float(fields["samples"])))
        return True

    @property
    def rate(self) -> float:
        """Rate in samples/s: the slope through the events. Raises ClusterError for too few events."""
        notes = [np.array(phase) for phase in self.phases.values() if len(phase) > 1]
        if sum(len(phase) for phase in notes) < FEWEST_NOTES:
            raise ClusterError("A run ended before its rate could be measured; type a larger --seconds.")
        centred = np.concatenate([phase - phase.mean(axis=0) for phase in notes])
        return float((centred[:, 0] * centred[:, 1]).sum() / (centred[:, 0] ** 2).sum())


class NoDisplay(ProgressDisplay):
    """Progress display that shows nothing."""

    def print_line(self, text: str) -> None:
        """Show nothing."""

    def _update(self, text: str, fraction: float, details: list[str]) -> None:
        """Show nothing."""


class LongEnough(Exception):
    """Raised when a run has lasted long enough."""


class ObservedRun(LaunchedRun):
    """Run whose progress events are recorded, ended `seconds` after the first event (None: not ended early)."""

    def __init__(self, cfg: RunConfig, dataset: Dataset, run_dir: Path, seconds: float | None) -> None:
        super().__init__(cfg, dataset, run_dir, NoDisplay(), CpuHogs(cfg.fault_plan(), cfg.pinned))
        self.notes, self.seconds = ProgressLog(seconds=WARM_UP), seconds
        self._marks: list[Measurement] = []

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.name == "progress" and self.notes.add(event.fields):
            used = cpu_by_role(self.run_dir)
            strangers = machine_cpu() - sum(used.values()) - time.process_time()
            self._marks.append(Measurement(float(event.fields["samples"]), used, time.monotonic(), strangers))
            if self.seconds is not None and self._marks[-1].time - self._marks[0].time >= self.seconds:
                raise LongEnough

    @property
    def cpu(self) -> dict[str, float]:
        """CPU seconds per sample of each role, between the first progress event and the last."""
        first, last = self._marks[0], self._marks[-1]
        samples = last.samples - first.samples
        return {role: (last.used[role] - first.used[role]) / samples for role in last.used if role in first.used}

    @property
    def others(self) -> float:
        """Number of cores that processes outside the run used while it was measured."""
        first, last = self._marks[0], self._marks[-1]
        return max(0.0, last.strangers - first.strangers) / (last.time - first.time)


class Measurement(NamedTuple):
    """Measurement at a progress event: samples, CPU seconds by role, time, and CPU seconds of other processes.

    `strangers` are all processes but the run's nodes and this one."""

    samples: float
    used: dict[str, float]
    time: float
    strangers: float


def observe(cfg: RunConfig, dataset: Dataset, scratch: Path, seconds: float | None) -> Observation:
    """Run a configuration on the local engine, for at most `seconds` after a warm-up. Raises GbactlError."""
    name = f"{cfg.mode.name}-{cfg.cluster.workers}-{len(list(scratch.iterdir()))}"
    cfg = replace(cfg, run_dir=str(scratch / name))
    run, eps = ObservedRun(cfg, dataset, run_dirs.create(cfg), seconds), 0.0
    with contextlib.suppress(LongEnough):
        eps = float(run.run()["eps"])
    return Observation(cfg.mode.name, cfg.cluster.workers, run.notes.rate, run.cpu, run.others, eps)


def undisturbed(
    cfg: RunConfig, dataset: Dataset, scratch: Path, say: Callable[[str], None], seconds: float | None = None
) -> Observation:
    """Run a configuration, repeat it while other processes disturb it, and return the least disturbed run.

    Raises GbactlError."""
    seen: list[Observation] = []
    for left in reversed(range(ATTEMPTS)):
        seen.append(observe(cfg, dataset, scratch, seconds))
        if seen[-1].others <= QUIET * len(available_cores()):
            break
        what = "measured again" if left else "the least disturbed run counts"
        say(f"{seen[-1].name} workers: other processes used {seen[-1].others:.2f} cores meanwhile; {what}")
    return min(seen, key=lambda each: each.others)

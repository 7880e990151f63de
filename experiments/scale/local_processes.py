"""Cell of the scale study: a training with processes of this machine and tiny batches, and what its processes hold.

While it trains, a thread reads /proc: CPU seconds from the first batch on, resident and proportional memory, file
descriptors and threads of a process of each role. The overrides are those of `gbactl train`.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gbactl.calibration.short_local_runs import node_pids, process_cpu
from gbactl.coordinator.state import JOURNAL_FILE
from gbactl.launch.hydra_config import compose
from gbactl.launch.training_run import train
from gbactl.tracking.run_description import CommandLine, SweepPlace

TINY = (
    "data=synthetic", "data.days=2", "data.numeric=13", "data.fields=26", "data.max_cardinality=1000",
    "model.dim=16", "model.hidden=[16,8]", "mode.local_batch=8", "train.max_eval_samples=512", "cluster=local",
    "tracking.enabled=false", "cluster.start_timeout=600", "cluster.hang_seconds=120", "collective=gloo",
    "cluster.transport=tcp", "cluster.servers=1",
)  # fmt: skip
EVERY = 0.2  # seconds between two looks


class Look(threading.Thread):
    """Thread that reads /proc while the processes of a run train, and keeps the last sight of each role."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(daemon=True)
        self.run_dir, self.over, self.seen = run_dir, threading.Event(), dict[str, dict[str, Any]]()
        self.ready_at, self.before = 0.0, dict[str, float]()  # CPU seconds by role as training began

    def run(self) -> None:
        """Look until the run is over."""
        while not self.over.wait(EVERY):
            if not self.ready_at and (self.run_dir / JOURNAL_FILE).exists():  # written before the first batch
                self.ready_at = time.monotonic()
            pids = node_pids(self.run_dir)
            found: dict[str, list[tuple[float, ...]]] = {}
            for node, pid in pids.items():
                if node in ("C", "S0", "W0", "W1"):
                    found.setdefault(node[0], []).extend(_held(pid))
            for role, each in found.items():
                names = ("cpu", "resident_mb", "proportional_mb", "descriptors", "threads")
                seen = dict(zip(names, map(statistics.mean, zip(*each, strict=True)), strict=True))
                if self.ready_at:
                    self.before.setdefault(role, seen["cpu"])
                self.seen[role] = seen


def _held(pid: int) -> list[tuple[float, ...]]:
    """CPU seconds, resident and proportional megabytes, descriptors, threads of a process; [] where it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        kb = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        files, threads = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
        return [(process_cpu(pid) or 0.0, kb["Rss:"] / 1e3, kb["Pss:"] / 1e3, files, threads)]
    except (OSError, KeyError):
        return []


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return rates, seconds of the start, and memory and descriptors by role."""
    given = (*TINY, *overrides)
    asked = compose(list(given))
    batches, whole = int(asked.tracking.tags["batches"]), 8 * asked.cluster.workers
    cfg = compose([*given, f"run_dir={folder}", f"data.rows_per_day={8 * batches}", f"train.global_batch={whole}"])
    look = Look(folder)
    began = time.monotonic()
    look.start()
    try:
        result = train(cfg, CommandLine("train", given, place=SweepPlace(1, 1)))
    finally:
        look.over.set()
        look.join()
    logs = {path.name[0]: path.stat().st_size for path in sorted((folder / "logs").glob("*.log"))}
    gradients = result["gradients"]["applied"] + result["gradients"]["decayed"]
    seconds = sum(phase["seconds"] for phase in result["phases"])
    return {
        "start_seconds": look.ready_at - began, "rate": gradients / seconds, "seconds": seconds,
        "gradients": gradients, "by_role": look.seen,
        "us": {role: 1e6 * (look.seen[role]["cpu"] - before) / gradients for role, before in look.before.items()},
        "event_log": result["event_log_bytes"] / gradients, "text_log_bytes": logs,
        "wire_bytes": {kind: count / gradients for kind, count in result["wire"]["bytes"].items()},
        "staleness": result["staleness"]["mean"], "wall_seconds": result["wall_seconds"],
    }  # fmt: skip

"""Cell of the scale study: a virtual cluster without gradients, and where the time of its steady part goes.

A batch of few samples stands for one of many: the tag `stands_for` divides the network's bandwidth and multiplies the
servers' time for rows and dense values, so that a cluster of 10,000 workers fits into memory. The tag `batches` is the
number of batches of each worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import virtual_run  # a script of the folder above
from numpy.typing import NDArray
from timing_only import STEADY, repeated

from gbactl.coordinator.live_phase import LivePhase
from gbactl.cpu import settle_garbage
from gbactl.simulation.simulated_run import ZeroComputeCluster
from gbactl.wire.messages import WAITS

SCALED = ("row_pull_ns", "row_apply_ns", "dense_pull_ns", "dense_apply_ns", "dense_step_ns")


class SteadyPart:
    """Steady part of a cluster's first phase: its rate, and busy shares of the coordinator and the servers.

    It lasts from the announcement of a quarter of the gradients to the last hand-out. Gradients are counted as they are
    announced: where each of many workers has few batches, `gba` has too few steps to tell a rate."""

    def __init__(self, cluster: ZeroComputeCluster) -> None:
        self.cluster = cluster
        self._looks: list[tuple[float, float, int, NDArray[np.float64]]] = []
        self._training: LivePhase | None = None
        cluster.coordinator.look = lambda tell: self._look()

    def _look(self) -> None:
        """Note where the steady part begins and ends, between two messages."""
        training = self.cluster.coordinator.context.training
        self._training = self._training or training
        if training is None or training is not self._training or len(self._looks) > 1:
            return
        policy, announced = training.policy, training.clock.gradients
        done = policy.next_batch - sum(map(len, policy.leases.values())) - len(policy.reissue)
        if announced is not None and (policy.exhausted if self._looks else done >= STEADY * policy.phase.batches):
            self._looks.append((announced[1], self.cluster.events.now, done, self._busy()))

    def _busy(self) -> NDArray[np.float64]:
        """Seconds so far of the coordinator, and of all servers' processes and interfaces (in, out) on average."""
        servers = self.cluster.servers
        each = [(s.process.busy_seconds, s.host.inward.busy_seconds, s.host.outward.busy_seconds) for s in servers]
        return np.array([self.cluster.hub.process.busy_seconds, *np.mean(each, axis=0)])

    def told(self) -> dict[str, Any]:
        """Gradients a second, and busy shares. Raises ValueError for a run that is too short."""
        if len(self._looks) < 2 or self._looks[1][0] <= self._looks[0][0]:
            raise ValueError("This run is too short to tell its rate; give it more batches.")
        (began, first, before, idle), (ended, last, after, busy) = self._looks
        names = ("coordinator", "servers", "servers_in", "servers_out")
        shares = ((busy - idle) / (last - first)).tolist()
        rate = (after - before) / (ended - began)
        return {"gradients_a_second": rate, "steady": ended - began, "busy": dict(zip(names, shares, strict=True))}


def scaled(overrides: Sequence[str], folder: Path) -> list[str]:
    """Overrides with the costs of a batch of `stands_for` times as many rows and dense values."""
    cfg = virtual_run.compose([*overrides, f"run_dir={folder}"])
    factor = float(cfg.tracking.tags.get("stands_for", "1"))
    costs = [f"cost.{key}={getattr(cfg.cost, key) * factor:g}" for key in SCALED]
    return [*overrides, *costs, f"cost.bandwidth_gbit={cfg.cost.bandwidth_gbit / factor:g}"]


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return rates, shares of time, staleness, and what the simulation itself took."""
    import torch

    torch.set_num_threads(1)
    cfg, dataset = virtual_run.begun(scaled(overrides, folder), folder)
    batches = int(cfg.tracking.tags["batches"]) * cfg.cluster.workers
    dataset = repeated(dataset, batches * cfg.local_batch)
    settle_garbage()
    before, began = resident(), time.process_time()
    cluster = ZeroComputeCluster(cfg, dataset, folder)
    built, made = resident(), time.process_time()
    steady = SteadyPart(cluster)
    result = cluster.run()
    ended = time.process_time()
    rows = result["time"]["processes"]
    workers = [row for name, row in rows.items() if name[0] == "W"]
    sums = {name: sum(row[name] for row in workers) for name in ("compute", *WAITS)}
    whole = sum(sums.values())
    return {
        **steady.told(), "staleness": result["staleness"],
        "shares": {name: seconds / whole for name, seconds in sums.items()},
        "simulation": {
            "build_seconds": made - began, "build_mb": (built - before) / 1e6, "seconds": ended - made,
            "us_a_batch": 1e6 * (ended - made) / batches, "peak_mb": resident() / 1e6,
            "events": cluster.events._sequence,
        },
    }  # fmt: skip


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

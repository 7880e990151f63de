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

import timing_only  # a script of the folder above
import virtual_run

from gbactl.cpu import settle_garbage
from gbactl.policies import Policy
from gbactl.simulation.cluster import ZeroComputeCluster
from gbactl.wire.messages import WAITS, Event

SCALED = ("row_pull_ns", "row_apply_ns", "dense_pull_ns", "dense_apply_ns", "dense_step_ns")


class BusyWatch(timing_only.Watch):
    """Sampler that also tells the busy seconds of the coordinator, and of each server's process and interface.

    It counts announced gradients: with few batches for each of many workers, `gba` has too few steps to tell a rate."""

    every = 0.01  # the busy seconds of an interface cost a look at every message on its way

    def _done(self, policy: Policy) -> int:
        return (policy.next_batch - len(policy.leases) - len(policy.reissue)) * policy.phase.local_batch

    def _busy(self, host: Any) -> Any:
        found = next(server for server in self.cluster.servers if server.host is host)
        process, hub = found.process.busy_seconds, self.cluster.hub.process.busy_seconds
        return (hub, process, float(host.inward.busy_seconds), float(host.outward.busy_seconds))

    def told(self) -> dict[str, Any]:
        """Samples a second, and busy shares of the coordinator, the servers' processes and their interfaces."""
        training, until = self._training, self._training.clock.last
        steady = [look for look in self.looks if look[1] >= timing_only.STEADY * training.policy.phase.samples]
        steady = [look for look in steady if look[0] <= until]
        if len(steady) < 2:
            raise ValueError("This run is too short to tell its rate; give it more batches.")
        first, last = steady[0], steady[-1]
        seconds, servers = last[0] - first[0], len(last[2])
        sums: list[float] = [0.0] * 4
        for before, after in zip(first[2], last[2], strict=True):
            sums = [s + (b - a) / seconds / servers for s, a, b in zip(sums, before, after, strict=True)]  # type: ignore[arg-type, misc]
        names = ("coordinator", "servers", "servers_in", "servers_out")
        return {"eps": (last[1] - first[1]) / seconds, "steady": seconds, "busy": dict(zip(names, sums, strict=True))}


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
    dataset = timing_only.repeated(dataset, batches * cfg.local_batch)
    events: list[Event] = []
    before, began = resident(), time.process_time()
    cluster = ZeroComputeCluster(cfg, dataset, folder, events.append)
    settle_garbage()
    built, made = resident(), time.process_time()
    watch = BusyWatch(cluster)
    cluster.run()
    ended = time.process_time()
    [result] = [event.fields for event in events if event.name == "result"]
    rows = result["time"]["processes"]
    workers = [row for name, row in rows.items() if name[0] == "W"]
    sums = {name: sum(row[name] for row in workers) for name in ("compute", *WAITS)}
    whole = sum(sums.values())
    told = watch.told()
    return {
        **told, "gradients_a_second": told["eps"] / cfg.local_batch, "staleness": result["staleness"],
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

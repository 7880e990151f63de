"""Prediction of a run's rate: the virtual backend without the model's arithmetic, stopped when the rate is known.

Times do not depend on values, so the rate is that of the real virtual run. A prediction costs about 0.2 s.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gbactl.calibration.observe import Observation, ProgressLog
from gbactl.config import RunConfig
from gbactl.config.cost import CostConfig
from gbactl.data.dataset import Dataset
from gbactl.kernels.base import Floats
from gbactl.simulation.cluster import VirtualCluster
from gbactl.simulation.compute import SharedCompute
from gbactl.simulation.cost_model import CostModel
from gbactl.wire.messages import Event
from gbactl.worker.core import BatchInProgress

SKIPPED, ENOUGH = 8, 40  # global batches


class EnoughProgress(Exception):
    """Signal that enough progress events were recorded."""


class ZeroCompute(SharedCompute):
    """Worker computation that returns zeros."""

    def load(self, item: BatchInProgress) -> None:
        """Load nothing."""

    def gradient(self, item: BatchInProgress, out: Floats | None = None) -> Floats:
        """See SharedCompute.gradient. The sums are zeros."""
        item.answers.clear()
        sums = np.empty((len(item.unique.index), self.width), np.float32) if out is None else out
        sums[:] = 0.0
        return sums

    def predict(self, item: BatchInProgress) -> Floats:
        """See SharedCompute.predict. The predictions are zeros."""
        item.answers.clear()
        return np.zeros(item.grant.samples, np.float32)


class ZeroComputeCluster(VirtualCluster):
    """Virtual cluster whose models do not compute."""

    def _compute(self) -> SharedCompute:
        import torch

        real = super()._compute()
        real.flat.keep_gradients(tuple(torch.zeros_like(p) for p in real.flat.parameters))
        return ZeroCompute(real.computer, real.kernels, real.width, real.cuts, real.seed)


@dataclass
class ProgressListener:
    """Listener that stops the run when enough progress events were recorded."""

    notes: ProgressLog
    heard: int = 0

    def __call__(self, event: Event) -> None:
        """See run.Listen. Raises Enough."""
        if event.name != "progress":
            return
        self.heard += 1
        if self.heard > SKIPPED and self.notes.add(event.fields) and self.heard >= SKIPPED + ENOUGH:
            raise EnoughProgress


def predict(cfg: RunConfig, cost: CostConfig, dataset: Dataset, scratch: Path) -> Observation:
    """Predict the rate of `cfg` on a virtual cluster with these costs, and each role's CPU seconds a sample."""
    virtual = replace(cfg, cluster=replace(cfg.cluster, name="virtual"), cost=cost)
    listener = ProgressListener(ProgressLog())
    cluster = ZeroComputeCluster(virtual, dataset, scratch, listener)
    cluster.coordinator.notes = max(1, dataset.splits[0].rows // cfg.train.global_batch)
    with contextlib.suppress(EnoughProgress):
        cluster.run()
    return Observation(cfg.mode.name, cfg.cluster.workers, listener.notes.rate, _cpu(cluster))


def _cpu(cluster: VirtualCluster) -> dict[str, float]:
    """CPU seconds a sample, by role."""
    samples = max(1, cluster.coordinator.context.record.curve[-1]["samples"])
    servers = sum(server.process.busy_seconds for server in cluster.servers)
    return {
        "W": worker_seconds(cluster.cfg, cluster.cost, cluster.compute.flat.size),
        "S": servers / samples,
        "C": cluster.hub.process.busy_seconds / samples,
    }


def worker_seconds(cfg: RunConfig, cost: CostModel, dense: int) -> float:
    """CPU seconds that a sample costs its worker."""
    batch, workers = cfg.local_batch, cfg.cluster.workers
    seconds = (cost.cfg.batch_us + cost.cfg.sample_us * batch) * 1e-6
    if cfg.home == "workers":
        seconds += cost.ring_work(dense, workers) + cost.replica_step(dense)
    return seconds / batch

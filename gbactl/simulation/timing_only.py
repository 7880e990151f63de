"""Virtual cluster without the model's arithmetic, for times alone.

Times do not depend on values, so throughput, staleness and traffic are those of the same training with gradients, which
takes several times as long. The AUC and the loss mean nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gbactl.config import RunConfig
from gbactl.data.dataset import Dataset
from gbactl.kernels.base import Floats
from gbactl.simulation.cluster import VirtualCluster
from gbactl.simulation.gradient_compute import SharedCompute
from gbactl.wire.messages import Event
from gbactl.worker.worker_core import BatchInProgress


class ZeroCompute(SharedCompute):
    """Replacement for a worker's computation that returns zeros at no cost."""

    def load(self, item: BatchInProgress) -> None:
        """Do nothing, as no parameters are needed."""

    def gradient(self, item: BatchInProgress, out: Floats | None = None) -> Floats:
        """Return row gradients of zeros."""
        item.answers.clear()
        sums = np.empty((len(item.unique.index), self.width), np.float32) if out is None else out
        sums[:] = 0.0
        return sums

    def predict(self, item: BatchInProgress) -> Floats:
        """Return predictions of zeros."""
        item.answers.clear()
        return np.zeros(item.grant.samples, np.float32)


class ZeroComputeCluster(VirtualCluster):
    """Virtual cluster whose workers compute nothing; simulated time passes as if they did."""

    def _compute(self) -> SharedCompute:
        real = super()._compute()
        real.flat.keep_gradients(tuple(p.new_zeros(p.shape) for p in real.flat.parameters))
        return ZeroCompute(real.computer, real.kernels, real.width, real.cuts, real.seed)


def timed(cfg: RunConfig, dataset: Dataset, run_dir: Path) -> dict[str, Any]:
    """Simulate a training without gradients; return the result's fields. Raises GbactlError."""
    events: list[Event] = []
    ZeroComputeCluster(cfg, dataset, run_dir, events.append).run()
    [result] = [event.fields for event in events if event.name == "result"]
    return result

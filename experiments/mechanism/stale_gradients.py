"""Cell of the mechanism study: a training on a virtual cluster that compares gradients with those of fresh parameters.

Every EVERY-th gradient is computed a second time, by a model of its own, with the parameters that the servers (in sync:
the workers) hold when it is pushed. The training is the same to the bit as without. The result has, under `stale`,
a line for each of them, and under `norms` quantiles of the norms of what was applied (norms.jsonl).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import virtual_run  # a script of the parent folder, not a package

from gbactl.coordinator.statistics import NORMS_FILE
from gbactl.kernels.base import Floats
from gbactl.kernels.native import flushed
from gbactl.models import build
from gbactl.models.gradient_computer import GradientComputer, torch_threads
from gbactl.simulation.gradient_compute import SharedCompute
from gbactl.simulation.simulated_run import VirtualCluster
from gbactl.worker.loop import dropout_key
from gbactl.worker.worker_core import BatchInProgress

EVERY = 61  # gradients from one comparison to the next: a prime, so that no worker is left out
QUANTILES = 50
KINDS = ("dense", "rows")


def compare(stale: Floats, fresh: Floats) -> dict[str, float]:
    """Cosine of two gradients, their norms, and the norm of their difference over that of the fresh one."""
    flat, other = stale.ravel().astype(np.float64), fresh.ravel().astype(np.float64)
    mine, its = float(np.linalg.norm(flat)), float(np.linalg.norm(other))
    found = {"cosine": float(flat @ other) / (mine * its), "stale": mine, "fresh": its}
    return {**found, "error": float(np.linalg.norm(flat - other)) / its}


class ComparingCompute(SharedCompute):
    """Computation of all workers that compares every EVERY-th gradient with the one of the present parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cluster: ComparingCluster
        self.second: GradientComputer
        self.found: list[dict[str, Any]] = []
        self._count = 0

    def gradient(self, item: BatchInProgress, out: Floats | None = None) -> Floats:
        """Compute a gradient, and compare every EVERY-th one with that of the present parameters."""
        sums = super().gradient(item, out)
        self._count += 1
        if self._count % EVERY == 0:
            own = np.empty(self.flat.size, np.float32)
            self.flat.gradient_into(own)
            fresh = self._fresh(item)
            pairs = zip(KINDS, ((own, fresh[0]), (sums, fresh[1])), strict=True)
            self.found.append({kind: compare(*pair) for kind, pair in pairs})
        return sums

    def _fresh(self, item: BatchInProgress) -> tuple[Floats, Floats]:
        """Gradient of a batch at the present parameters: the dense part, and the sums of the distinct rows."""
        unique, batch = item.unique, item.batch
        rows = np.empty((len(unique.index), self.width), np.float32)
        for shard, low, high in unique.shares():
            part = np.empty((high - low, self.width), np.float32)
            self.cluster.servers[shard].shard.pull_rows(unique.index[low:high], part)
            rows[low:high] = part
        self.second.flat.load(self.cluster.dense())
        emb = rows[unique.inverse].reshape(*batch.ids.shape, self.width)
        key = dropout_key(self.seed, item.phase, item.grant.batch)
        _, gradient = self.second.gradient(batch.numeric, batch.labels, emb, key)
        dense, sums = np.empty(self.flat.size, np.float32), np.empty_like(rows)
        self.second.flat.gradient_into(dense)
        self.kernels.segment_sum(gradient, unique.inverse, sums)
        return dense, sums


class ComparingCluster(VirtualCluster):
    """Virtual cluster whose gradients are compared with those of the present parameters."""

    compute: ComparingCompute

    def _compute(self) -> SharedCompute:
        cfg, schema = self.cfg, self.dataset.schema
        made = ComparingCompute(cfg, self.dataset)
        made.second = GradientComputer(build(cfg.model, schema.numeric, schema.fields, cfg.seed))
        made.cluster = self
        return made

    def dense(self) -> Floats:
        """Copy the present dense parameters: those of the workers, or the slices of the servers."""
        if self.cfg.home == "workers":
            return self.compute.flat.vector.copy()
        found = np.empty(self.compute.flat.size, np.float32)
        for shard in self.compute.held:
            low, high = self.compute.cuts[shard]
            found[low:high] = self.servers[shard].shard.dense_block().value
        return found


def _summed_up(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean of each number over the gradients that were compared, by kind, and how many there were."""
    means = {
        kind: {name: float(np.mean([each[kind][name] for each in found])) for name in found[0][kind]}
        for kind in KINDS
        if found
    }
    return {"n": len(found), **means}


def norms(path: Path) -> dict[str, Any]:
    """Read norms.jsonl as quantiles: of the dense gradients' norms, and of those of sampled rows."""
    values: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with path.open() as lines:
        for line in map(json.loads, lines):
            values["dense"].append(line["dense"])
            values["rows"] += line["rows"]
    marks = np.linspace(0.0, 1.0, QUANTILES + 1)
    kept = {kind: [each for each in numbers if math.isfinite(each)] for kind, numbers in values.items()}
    return {kind: {"n": len(each), "quantiles": np.quantile(each, marks).tolist()} for kind, each in kept.items()}


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return its result."""
    cfg, dataset = virtual_run.begun(overrides, folder)
    with flushed(), torch_threads(cfg.threads):
        cluster = ComparingCluster(cfg, dataset, folder)
        result = cluster.run()
    return {**result, "stale": _summed_up(cluster.compute.found), "norms": norms(folder / NORMS_FILE)}

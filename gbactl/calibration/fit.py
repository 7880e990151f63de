"""Fit of the cost model, so that simulated runs take as long as the measured runs.

Every group of measured costs is multiplied by its own factor, so that the virtual engine's predictions come closest
to the observed rates and CPU seconds: least squares of logarithms. An iteration costs 7 predictions of every run, and
there are about 4; the parameter-server modes are not predicted again for the all-reduce factors.

A prediction is a run of the virtual engine without the model's arithmetic, stopped when the rate is known; times do
not depend on values, so the rate is that of the real virtual run. It costs about 0.2 s.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbactl.calibration.short_local_runs import LongEnough, Observation, ProgressLog
from gbactl.config import RunConfig
from gbactl.config.groups import CostConfig
from gbactl.data.dataset import Dataset
from gbactl.policies.policy import policy_class
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.simulated_run import VirtualCluster, ZeroComputeCluster
from gbactl.wire.messages import Event

GROUPS: dict[str, tuple[str, ...]] = {
    "compute": ("batch_us", "sample_us", "push_us"),  # push_us is part of the two others
    "serving": (
        "server_message_us", "row_pull_ns", "row_apply_ns", "dense_pull_ns", "dense_apply_ns", "dense_step_ns",
    ),
    "coordinator": ("coordinator_message_us",),
    "all-reduce": ("allreduce_us",),
    "all-reduce work": ("allreduce_work_us",),
    "all-reduce messages": ("allreduce_message_us",),
    "all-reduce sums": ("allreduce_float_ns",),
}  # fmt: skip
OF_WORKERS = tuple(group for group in GROUPS if group.startswith("all-reduce"))  # apply where workers hold replicas
CPU_WEIGHT = 0.25  # weight of a role's CPU seconds, less than a rate's 1: rates matter most
PRIOR = {
    "compute": 0.05,
    "serving": 0.05,
    "coordinator": 0.02,
    "all-reduce": 0.02,
    "all-reduce work": 0.02,
    "all-reduce messages": 0.02,
    "all-reduce sums": 0.5,  # two numbers of workers cannot separate it from messages: it stays near its start
}
LARGEST = math.log(100.0)  # a factor beyond this is meaningless
STEP, ROUNDS = 0.1, 8
Predict = Callable[[str, int, CostConfig], Observation]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FittedModel:
    """Fitted cost model, with observed and predicted runs in the same order."""

    cost: CostConfig
    observed: list[Observation]
    predicted: list[Observation]

    @property
    def errors(self) -> list[float]:
        """Relative error of each predicted rate."""
        return [p.eps / o.eps - 1.0 for o, p in zip(self.observed, self.predicted, strict=True)]


def scaled(cost: CostConfig, factors: Vector) -> CostConfig:
    """Multiply the costs of every group by a factor; `factors` are logarithms, in the order of GROUPS."""
    changed = {
        key: getattr(cost, key) * math.exp(factor)
        for keys, factor in zip(GROUPS.values(), factors, strict=True)
        for key in keys
    }
    return replace(cost, **changed)


def averaged(observed: Iterable[Observation]) -> list[Observation]:
    """Average the observations of each (mode, workers): geometric mean of the rates, mean of the CPU seconds."""
    groups: dict[tuple[str, int], list[Observation]] = {}
    for each in observed:
        groups.setdefault((each.mode, each.workers), []).append(each)
    return [_mean(mode, workers, runs) for (mode, workers), runs in groups.items()]


def _mean(mode: str, workers: int, runs: list[Observation]) -> Observation:
    roles = set.intersection(*(set(run.cpu) for run in runs))
    cpu = {role: float(np.mean([run.cpu[role] for run in runs])) for role in sorted(roles)}
    return Observation(mode, workers, math.exp(np.mean([math.log(run.eps) for run in runs])), cpu)


class Residuals:
    """Residuals of the least-squares fit, with a cache of predictions."""

    def __init__(self, start: CostConfig, observed: Sequence[Observation], predict: Predict) -> None:
        self.start, self.observed, self._predict = start, observed, predict
        self._known: dict[tuple[object, ...], Observation] = {}

    def predicted(self, factors: Vector) -> list[Observation]:
        """Predict every observed run on the virtual engine, with the costs multiplied by `factors`."""
        return [self._one(each.mode, each.workers, factors) for each in self.observed]

    def _one(self, mode: str, workers: int, factors: Vector) -> Observation:
        of_workers = policy_class(mode).home == "workers"
        paid = [f if of_workers or group not in OF_WORKERS else 0.0 for group, f in zip(GROUPS, factors, strict=True)]
        key = (mode, workers, *paid)
        if key not in self._known:
            self._known[key] = self._predict(mode, workers, scaled(self.start, np.array(paid)))
        return self._known[key]

    def __call__(self, factors: Vector) -> Vector:
        """Compute residuals: logarithms of predicted / observed, then priors that keep undetermined factors near 1."""
        found = []
        for observed, predicted in zip(self.observed, self.predicted(factors), strict=True):
            found.append(math.log(predicted.eps / observed.eps))
            known = [role for role in predicted.cpu if observed.cpu.get(role, 0.0) > 0 and predicted.cpu[role] > 0]
            found += [
                CPU_WEIGHT * _weight_of_role(observed, role) * math.log(predicted.cpu[role] / observed.cpu[role])
                for role in known
            ]
        return np.array([*found, *(PRIOR[group] * f for group, f in zip(GROUPS, factors, strict=True))])


def _weight_of_role(seen: Observation, role: str) -> float:
    """Compute the weight of a role's CPU seconds in the fit; small values are measured less exactly and count less."""
    return math.sqrt(seen.cpu[role] / sum(seen.cpu.values()))


def fit(start: CostConfig, observed: Iterable[Observation], predict: Predict) -> FittedModel:
    """Fit the cost model by least squares, starting from `start`; repeated observations are averaged."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    means = averaged(observed)
    residuals = Residuals(start, means, predict)
    zeros = np.zeros(len(GROUPS))
    found = least_squares(residuals, zeros, jac=_jacobian(residuals), bounds=(-LARGEST, LARGEST), max_nfev=ROUNDS)
    return FittedModel(scaled(start, found.x), means, residuals.predicted(found.x))


def _jacobian(residuals: Residuals) -> Callable[[Vector], Vector]:
    """Return a function for the Jacobian: finite differences of STEP, well above the noise of a short simulated run."""

    def slopes(at: Vector) -> Vector:
        current = residuals(at)
        moved = [at + STEP * np.eye(len(at))[n] for n in range(len(at))]
        return np.stack([(residuals(each) - current) / STEP for each in moved], axis=1)

    return slopes


SKIPPED, ENOUGH = 8, 40  # global batches


def predict(cfg: RunConfig, cost: CostConfig, dataset: Dataset, scratch: Path) -> Observation:
    """Predict a configuration's rate on a virtual cluster with these costs, and each role's CPU seconds per sample."""
    virtual = replace(cfg, cluster=replace(cfg.cluster, name="virtual"), cost=cost)
    notes, reports = ProgressLog(), 0

    def listen(event: Event) -> None:
        """Record a progress event. Raises LongEnough at the last event needed."""
        nonlocal reports
        if event.name == "progress":
            reports += 1
            if reports > SKIPPED and notes.add(event.fields) and reports >= SKIPPED + ENOUGH:
                raise LongEnough

    cluster = ZeroComputeCluster(virtual, dataset, scratch, listen)
    cluster.coordinator.progress_points = max(1, dataset.splits[0].rows // cfg.train.global_batch)
    with contextlib.suppress(LongEnough):
        cluster.run()
    return Observation(cfg.mode.name, cfg.cluster.workers, notes.rate, _cpu(cluster))


def _cpu(cluster: VirtualCluster) -> dict[str, float]:
    """Compute the CPU seconds per sample of each role in a simulated run."""
    samples = max(1, cluster.coordinator.context.record.curve[-1]["samples"])
    servers = sum(server.process.busy_seconds for server in cluster.servers)
    return {
        "W": worker_seconds(cluster.cfg, cluster.cost, cluster.compute.flat.size),
        "S": servers / samples,
        "C": cluster.hub.process.busy_seconds / samples,
    }


def worker_seconds(cfg: RunConfig, cost: CostModel, dense: int) -> float:
    """Compute the CPU seconds per sample that a worker needs according to the cost model."""
    batch, workers = cfg.local_batch, cfg.cluster.workers
    seconds = (cost.cfg.batch_us + cost.cfg.sample_us * batch) * 1e-6
    if cfg.home == "workers":
        seconds += cost.ring_work(dense, workers) + cost.replica_step(dense)
    return seconds / batch

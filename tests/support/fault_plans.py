"""Plans made of plain containers, as they are typed."""

from __future__ import annotations

from typing import Any

from gbactl.config import FaultsConfig
from gbactl.faults.fault_plan import FaultPlan

EVERY_KIND: tuple[dict[str, Any], ...] = (
    {"kind": "constant", "factor": 4},
    {"kind": "periodic", "factor": 3.0, "period_batches": 10, "duty": 0.3},
    {"kind": "periodic", "factor": 3.0, "period_seconds": 2.5},
    {"kind": "random", "distribution": "exponential", "mean": 2},
    {"kind": "random", "distribution": "lognormal", "mean": 1.5, "sigma": 0.7},
    {"kind": "random", "distribution": "pareto", "mean": 2.0, "shape": 1.5},
    {"kind": "window", "factor": 8, "from": 1, "until": 2},
    {"kind": "window", "factor": 8},
    {"kind": "trace", "points": [[0.0, 1.0], [2.0, 4.0], [3.0, 1.5]], "period": 4.0},
    {"kind": "trace", "points": [[0.0, 2.0, 1.0], [1.0, 3.0, 2.0]], "distribution": "pareto", "shape": 3.0},
    {"kind": "constant", "factor": 4, "servers": [0]},
    {"kind": "kill", "workers": [1], "step": 20},
    {"kind": "kill", "servers": [0], "coordinator": True, "mtbf": 30.0, "distribution": "weibull", "shape": 0.7},
    {"kind": "hang", "workers": "random", "time": 2.5, "seconds": 3.0},
    {"kind": "messages", "drop": 0.1, "delay": 0.2, "delay_seconds": 0.01},
    {"kind": "messages", "duplicate": 0.1, "step": 20},
    {"kind": "messages", "reorder": 0.1, "mtbf": 30.0, "distribution": "gamma", "shape": 2.0, "seconds": 5.0},
    {"kind": "hog", "workers": [0], "processes": 2, "from": 1.0, "until": 3.0},
)


def plan(
    *plans: dict[str, Any], seed: int = 0, workers: int = 4, own_seed: int | None = None, servers: int = 2
) -> FaultPlan:
    """`own_seed` is faults.seed."""
    return FaultPlan(FaultsConfig(own_seed, list(plans)), seed, workers, servers)

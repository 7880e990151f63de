"""Runs made by hand."""

from __future__ import annotations

from typing import Any

from gbactl.report.compare import Report
from gbactl.tracking.mlflow_store import Run


def run(mode: str, seed: int, auc: float | None, status: str = "FINISHED", at: int = 0, **more: str) -> Run:
    """Metrics that are easy to check; `more` are parameters, `__` standing for a dot."""
    params = {"mode": mode, "mode.name": mode, "seed": str(seed), "train.global_batch": "2048"}
    params |= {"model.name": "deepfm", "run_dir": f"runs/{mode}{seed}{at}", "tracking.uri": f"u{at}"}
    params |= {key.replace("__", "."): value for key, value in more.items()}
    metrics = {"logloss": 0.45, "ne": 0.9, "eps": 20000.0 + 1000 * seed}
    metrics |= {"staleness_mean": 1.25, "staleness_p50": 1.0, "staleness_p99": 4.0}
    metrics |= {"samples_read": 200.0, "samples_decayed": 3.0}
    if auc is not None:
        metrics["auc"] = auc
    return Run(f"{mode}{seed}{at}0000000000", f"{mode}-s{seed}", status, at, params, metrics)


def three() -> list[Run]:
    """Three seeds of sync and gba. gba - sync is -.01, +.01, -.01."""
    sync = [run("sync", seed, auc) for seed, auc in ((1, 0.80), (2, 0.81), (3, 0.82))]
    gba = [run("gba", seed, auc, mode__iota="3") for seed, auc in ((1, 0.79), (2, 0.82), (3, 0.81))]
    return sync + gba


def group(report: Report, *key: str) -> Any:
    """The line of a report with a key."""
    return next(each for each in report.groups if each.key == key)

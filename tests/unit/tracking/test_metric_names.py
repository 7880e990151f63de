"""Names of metrics in MLflow, and back."""

from __future__ import annotations

import pytest

from gbactl.tracking.metric_names import logged_name, plain_name

NAMES = {
    "auc": "auc", "logloss": "logloss", "loss": "loss", "eps": "eps", "staleness_mean": "staleness",
    "auc/day 3": "rounds/auc day 3", "staleness_mean/epoch 12": "rounds/staleness_mean epoch 12",
    "ne": "eval/ne", "gauc": "eval/gauc", "calibration": "eval/calibration", "validation_auc": "eval/validation_auc",
    "samples_read": "train/samples_read", "samples": "train/samples", "eps_now": "train/eps_now",
    "progressive_auc": "train/progressive_auc",
    "worker_eps_now/W0": "train/worker_eps_now W0", "mode_id": "train/mode_id",
    "virtual_seconds": "train/virtual_seconds",
    "staleness_p99": "staleness/p99", "staleness_samples_mean": "staleness/samples_mean",
    "token_staleness_mean": "staleness/token_staleness_mean", "sync_gap_p99": "staleness/sync_gap_p99",
    "wire_bytes_per_step_rows": "wire/bytes_per_step_rows", "exchange_ms": "wire/exchange_ms",
    "recovery_count/W1.kill": "recovery/count W1.kill", "checkpoint_seconds": "recovery/checkpoint_seconds",
    "recovery_samples_undone/S0.kill": "recovery/samples_undone S0.kill", 
    "fault_observed/W1": "recovery/fault_observed W1",
    "predicted_eps": "predicted_eps", "eps_ratio/gba": "eps_ratio/gba",
    "system/cpu_utilization_percentage": "system/cpu_utilization_percentage",
}  # fmt: skip


@pytest.mark.parametrize(("plain", "logged"), NAMES.items())
def test_there_and_back(plain: str, logged: str) -> None:
    assert logged_name(plain) == logged
    assert plain_name(logged) == plain


@pytest.mark.parametrize("plain", NAMES)
def test_names_of_older_runs_stay(plain: str) -> None:
    assert plain_name(plain) == plain

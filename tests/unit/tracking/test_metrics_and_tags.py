"""Names of metrics in MLflow, and back; final metrics and tags."""

from __future__ import annotations

import math
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gbactl.tracking.metrics_and_tags import (
    OWN_SAMPLES,
    config_hash,
    git_tags,
    logged_name,
    metrics_of,
    plain_name,
    tags_of,
    useless,
    versions,
)
from tests.support.metric_groups import is_grouped

RESULT = {
    "mode": "gba",
    "seed": 3,
    "auc": 0.79,
    "logloss": 0.45,
    "ne": 0.9,
    "calibration": math.nan,
    "eps": 27000,
    "wall_seconds": 12.5,
    "best_possible_auc": None,
    "global_step": 40,
    "refused_frames": 2,
    "refused": {"WireError": 2},
    "wire": {
        "bytes": {"dense": 400, "rows": 80, "ids": 40, "control": 20, "other": 0},
        "bytes_per_step": {"dense": 10.0, "rows": 2.0, "ids": 1.0, "control": 0.5, "other": 0.0},
        "shared_memory": 7,
    },
    "samples": {"read": 100, "trained": 90, "decayed": 10, "lost": 0},
    "staleness": {"mean": 1.5, "p50": 1, "p99": 4, "samples_mean": 700.0},
    "token_staleness": {"mean": 0.5, "p50": 0, "p99": 2},
    "gradients": {"applied": 9, "decayed": 1, "dropped": 0},
    "per_worker": {"W0": {"batches": 5, "samples": 50, "compute_eps": 13000.0}},
    "phases": [{"day": "day 0", "auc": 0.1, "eps": 1.0}, {"day": "day 0", "auc": 0.7, "eps": 3.0}],
    "rounds": [
        {"day": "day 0", "auc": 0.7, "eps": 2.0, "samples": 88, "staleness": {"mean": 0.5, "p50": 0.0}},
        {"day": "day 1", "eps": math.inf},
    ],
    "status": "FINISHED",
}


@pytest.mark.parametrize(
    ("resumed_at", "since", "own"),
    [(8, 7.5, 200.0), (8, None, 200.0), (8, 0.0, None), (None, 0.0, None), (None, None, None)],
)
def test_samples_of_its_own_where_a_run_began_from_another_runs_checkpoint(
    resumed_at: int | None, since: float | None, own: float | None
) -> None:
    """As eps counts them: in its own directory a run goes on with its own samples."""
    result = {
        "phases": [{"first_step": step, "samples": samples} for step, samples in ((0, 800), (8, 150), (9, 50))],
        "checkpoint": {"resumed_at": resumed_at}, "time": {} if since is None else {"since_second": since},
    }  # fmt: skip
    assert metrics_of(result) == ({} if own is None else {OWN_SAMPLES: own})


def test_metrics_by_name() -> None:
    assert metrics_of(RESULT) == {
        "auc": 0.79,
        "logloss": 0.45,
        "ne": 0.9,
        "eps": 27000.0,
        "wall_seconds": 12.5,
        "global_step": 40.0,
        "refused_frames": 2.0,
        "wire_bytes_per_step_dense": 10.0,
        "wire_bytes_per_step_rows": 2.0,
        "wire_bytes_per_step_ids": 1.0,
        "wire_bytes_per_step_control": 0.5,
        "wire_bytes_per_step_other": 0.0,
        "wire_shared_memory": 7.0,
        "samples_read": 100.0,
        "samples_trained": 90.0,
        "samples_decayed": 10.0,
        "samples_lost": 0.0,
        "staleness_mean": 1.5,
        "staleness_p50": 1.0,
        "staleness_p99": 4.0,
        "staleness_samples_mean": 700.0,
        "token_staleness_mean": 0.5,
        "token_staleness_p50": 0.0,
        "token_staleness_p99": 2.0,
        "gradients_applied": 9.0,
        "gradients_decayed": 1.0,
        "gradients_dropped": 0.0,
        "worker_batches/W0": 5.0,
        "worker_samples/W0": 50.0,
        "worker_compute_eps/W0": 13000.0,
        "auc/day 0": 0.7,
        "eps/day 0": 2.0,
        "samples_trained/day 0": 88.0,
        "staleness_mean/day 0": 0.5,
        "staleness_p50/day 0": 0.0,
    }


def test_metrics_of_replicas() -> None:
    told = {
        "evaluated": "centre", "trainers": 4, "elp": 512, "sync_gap": {"mean": 2.5, "p50": 2.0, "p99": 9.0},
        "exchanges": 7, "exchange_ms": 1.5, "foreground_seconds": 0.0, "bytes_exchanged": 800,
        "distance": [[0.5, 2.0], [1.0, 3.0]],
    }  # fmt: skip
    assert metrics_of({"replicas": told}) == {
        "sync_gap_mean": 2.5, "sync_gap_p50": 2.0, "sync_gap_p99": 9.0, "elp": 512.0, "exchanges": 7.0,
        "exchange_ms": 1.5, "foreground_seconds": 0.0, "bytes_exchanged": 800.0, "replica_distance": 3.0,
    }  # fmt: skip


def test_a_run_that_never_came_far_has_few_metrics() -> None:
    assert metrics_of({"status": "FAILED", "auc": None, "staleness": None}) == {}


def test_a_result_that_is_worse_than_no_models_is_told() -> None:
    assert useless(RESULT) == useless({**RESULT, "ne": 1.0}) == useless({**RESULT, "ne": math.nan}) == useless({}) == ""
    assert useless({**RESULT, "ne": 1.5}).startswith("The log loss 0.45 is 1.5 times that of ")


def test_the_hash_is_of_what_is_trained_not_of_where() -> None:
    base = {"seed": 1, "mode": {"name": "gba"}, "run_dir": "a", "tracking": {"uri": None}}
    assert config_hash(base) == config_hash(base | {"run_dir": "b", "tracking": {"uri": "x"}})
    assert config_hash(base) != config_hash(base | {"seed": 2})


def test_tags_name_commit_host_versions_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert git_tags(tmp_path) == {}
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "f").write_text("1")
    subprocess.run([*git, "add", "f"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    tags = tags_of({"tracking": {"tags": {"study": "s"}}}, "abc", "gbactl train")
    assert len(tags["mlflow.source.git.commit"]) == 40
    assert tags["gbactl.git_changed"] == "false"
    assert tags["gbactl.data_fingerprint"] == "abc"
    assert tags["study"] == "s"
    assert tags["gbactl.version.python"] == versions()["python"]
    assert tags["gbactl.host"] and tags["mlflow.user"]
    assert tags["gbactl.config_hash"] == config_hash({})
    assert abs((datetime.fromisoformat(tags["gbactl.time"]) - datetime.now(UTC)).total_seconds()) < 60
    assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("gbactl train", "LOCAL")
    assert tags["mlflow.source.git.branch"]
    (tmp_path / "f").write_text("2")
    assert git_tags(tmp_path)["gbactl.git_changed"] == "true"


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
    "advise/predicted_eps": "advise/predicted_eps", "advise/eps_ratio gba": "advise/eps_ratio gba",
    "system/cpu_utilization_percentage": "system/cpu_utilization_percentage",
}  # fmt: skip


@pytest.mark.parametrize(("plain", "logged"), NAMES.items())
def test_there_and_back(plain: str, logged: str) -> None:
    assert logged_name(plain) == logged
    assert plain_name(logged) == plain


@pytest.mark.parametrize("plain", NAMES)
def test_names_of_older_runs_stay(plain: str) -> None:
    assert plain_name(plain) == plain


def test_every_final_metric_is_in_a_group_or_among_the_five_without_one() -> None:
    told = {"sync_gap": {"mean": 2.5}, "elp": 512, "exchanges": 7, "distance": [[0.5, 2.0]]}
    found = [OWN_SAMPLES, *metrics_of(RESULT), *metrics_of({"replicas": told})]
    assert [name for name in map(logged_name, found) if not is_grouped(name)] == []

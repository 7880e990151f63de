"""Whole runs with real processes: every mode, transport and option, and what they leave."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, GrantRecord, InfoRecord, OrderRecord
from tests.support.processes import Launcher
from tests.support.slow import slow
from tests.support.traces import traced

pytestmark = pytest.mark.beside

KEYS = {
    "mode", "seed", "auc", "logloss", "ne", "eps", "wall_seconds", "samples", "staleness", "phases", "status",
    "token_staleness", "global_step", "gradients", "curve", "per_worker", "checksums", "run_dir", "run_id",
    "best_possible_auc", "staleness_histogram", "calibration",
}  # fmt: skip
PHASE_KEYS = {
    "day", "mode", "steps", "samples", "seconds", "eps", "closing_seconds", "auc", "logloss", "ne",
    "calibration", "evaluated_on",
}  # fmt: skip


def consistent(result: dict[str, Any], samples: int, *, global_batch: int = 256, workers: int = 2) -> None:
    """Everything that must agree in a result of a run without faults, which says nothing of them."""
    assert set(result) >= KEYS and "faults" not in result
    assert not (Path(result["run_dir"]) / "faults.json").exists()
    assert result["status"] == "FINISHED"
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == samples
    assert counted["lost"] == 0
    assert all(set(phase) >= PHASE_KEYS for phase in result["phases"])
    assert sum(phase["steps"] for phase in result["phases"]) == result["global_step"]
    assert sum(phase["samples"] for phase in result["phases"]) == counted["trained"]
    last = result["phases"][-1]
    assert all(result[key] == last[key] for key in ("auc", "logloss", "ne", "calibration"))
    gradients = result["gradients"]
    assert sum(result["staleness_histogram"].values()) == gradients["applied"] + gradients["decayed"]
    assert sum(w["batches"] for w in result["per_worker"].values()) == gradients["applied"] + gradients["decayed"]
    assert sum(w["samples"] for w in result["per_worker"].values()) == samples
    assert set(result["per_worker"]) <= {f"W{index}" for index in range(workers)}
    assert result["refused_frames"] == 0
    curve = result["curve"]
    assert curve[-1]["samples"] == samples
    assert all(0 <= point["auc"] <= 1 and point["loss"] > 0 for point in curve)
    times = result["time"]["processes"]
    assert set(times) >= set(result["per_worker"]) and times["S0"]["idle"] > 0 < times["S0"]["kernels"]
    journal_agrees(Path(result["run_dir"]) / "events.log", result, global_batch // workers)


def journal_agrees(path: Path, result: dict[str, Any], local_batch: int) -> None:
    """The event log tells the same story: every batch handed out, announced and ordered once a phase.

    Past its end, sync tells who has no batch in the last step; nobody else does."""
    records = list(event_log.read(path))
    assert isinstance(records[0], InfoRecord) and records[0].kind == event_log.HEADER
    assert records[0].fields["config"]["seed"] == result["seed"]
    workers = records[0].fields["config"]["cluster"]["workers"]
    last = records[-1]
    assert isinstance(last, InfoRecord) and last.kind == event_log.END
    assert last.fields["step"] == result["global_step"]
    orders = [record for record in records if isinstance(record, OrderRecord)]
    assert [order.step for order in orders] == list(range(result["global_step"]))
    seen: dict[str, Counter[int]] = {}
    staleness: Counter[int] = Counter()
    pulled: dict[int, int] = {}
    for record in records:
        match record:
            case InfoRecord(kind=event_log.PHASE):
                seen = {"granted": Counter(), "announced": Counter(), "ordered": Counter()}
                batches = -(-record.fields["samples"] // local_batch) if record.fields["training"] else 0
                last_step = record.fields["first_step"] + (batches - 1) // workers
            case GrantRecord() if record.batch >= batches:
                assert (result["mode"], record.token) == ("sync", last_step)
            case GrantRecord():
                seen["granted"][record.batch] += 1
            case AnnounceRecord():
                assert seen["granted"][record.batch] == 1
                seen["announced"][record.batch] += 1
                versions = [v for v in record.row_versions + record.dense_versions if v >= 0]
                pulled[record.batch] = min(versions)
            case OrderRecord():
                for batch, _ in record.members:
                    assert seen["announced"][batch] == 1
                    seen["ordered"][batch] += 1
                    staleness[record.step - pulled[batch]] += 1
                if sum(seen["ordered"].values()) == batches:
                    for counted in seen.values():
                        assert counted == Counter(range(batches))
    assert {str(k): n for k, n in staleness.items()} == result["staleness_histogram"]
    assert path.stat().st_size == result["event_log_bytes"] or path.stat().st_size > result["event_log_bytes"]


@pytest.mark.parametrize(
    ("mode", "transport"),
    [("sync", "shm"), slow("sync", "tcp"), slow("async", "shm"), ("async", "tcp"), ("gba", "shm"), slow("gba", "tcp")],
)
def test_a_run_learns_and_its_result_adds_up(launcher: Launcher, mode: str, transport: str) -> None:
    """In gba on two days, each judged by the next one; in the others on one day."""
    days = ("data.days=3", "data.rows_per_day=8000") if mode == "gba" else ("data.rows_per_day=16000",)
    launched = launcher.start(
        f"mode={mode}", f"cluster.transport={transport}", "collective=gloo", *days, "optim.lr=0.004", "seed=3",
        "--json", "--trace",
    )  # fmt: skip
    done = launched.finish()
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert result == done.result
    assert (result["mode"], result["seed"]) == (mode, 3)
    consistent(result, 16000)
    assert len(result["curve"]) >= 30
    traced(launched.run_dir, result)
    judged = [(phase["day"], phase["evaluated_on"]) for phase in result["phases"]]
    assert judged == [("day 0", "day1"), ("day 1", "day2")][: len(days)]
    assert result["best_possible_auc"] > result["auc"] > 0.6
    assert result["ne"] < 1 and result["eps"] > 0 and result["wall_seconds"] > 0
    if mode == "sync":
        assert result["staleness_histogram"] == {"0": 125}
        assert result["checksums"]["W0"] == result["checksums"]["W1"]
    logs = {path.name: path.read_text() for path in done.run_dir.glob("logs/*.log")}
    assert set(logs) == {"C.log", "S0.log", "S1.log", "W0.log", "W1.log"}
    for name, text in logs.items():
        assert f" {name[:-4]} INFO pid " in text and text.rstrip().endswith("done")
        assert "WARNING" not in text and "ERROR" not in text and "Traceback" not in text
    assert (done.run_dir / "config.yaml").exists()
    assert "AUC" in done.err and "\x1b" not in done.err


OPTIONS = {
    "batch norm, dropout, uneven batches and two buckets in sync": (
        "mode=sync", "collective=gloo", "model.batch_norm=true", "model.dropout=0.3",
        "data.rows_per_day=4001", "collective.buckets=2",
    ),
    "wide and deep in bf16, batch norm, dropout and uneven batches, 3 servers over TCP": (
        "mode=gba", "model=wide_deep", "precision=bf16", "cluster.servers=3", "cluster.transport=tcp",
        "model.batch_norm=true", "model.dropout=0.3", "data.rows_per_day=4001", "train.shuffle=true",
    ),
    "row-wise adagrad without prefetch": ("mode=async", "optim=rowwise_adagrad", "mode.prefetch=none"),
    "adagrad and gba's other rules": (
        "mode=gba", "optim=adagrad", "mode.decay=exp", "mode.divisor=accepted",
        "mode.sparse_divisor=contributors", "mode.local_batch=32",
    ),
    "sgd on a schedule, with decay of every row": (
        "mode=async", "optim=sgd", "optim.schedule.name=cosine", "optim.schedule.warmup=2",
        "optim.schedule.total=16", "optim.row_l2=all", "optim.row_weight_decay=0.001", "cluster.servers=1",
    ),
    "one worker, alone": ("mode=sync", "collective=gloo", "cluster.workers=1", "cluster.servers=1"),
    "evaluations within a day": ("mode=gba", "train.eval_every=1000"),
    "fewer samples than a global batch": ("mode=gba", "data.rows_per_day=200"),
}  # fmt: skip


PLAIN = (
    "row-wise adagrad without prefetch", "adagrad and gba's other rules", "sgd on a schedule, with decay of every row",
)  # fmt: skip


@pytest.mark.parametrize("name", [slow(name) if name in PLAIN else name for name in OPTIONS])
def test_every_option_runs_to_its_end(launcher: Launcher, name: str) -> None:
    overrides = dict(pair.split("=", 1) for pair in OPTIONS[name] if "[" not in pair)
    done = launcher.start(*OPTIONS[name]).finish()
    assert done.code == 0, done.err
    assert "AUC" in done.err and "{" not in done.out, "JSON is asked for by --json"
    result = done.result
    samples = int(overrides.get("data.rows_per_day", 4000))
    workers = int(overrides.get("cluster.workers", 2))
    local = int(overrides.get("mode.local_batch", 256 // workers))
    consistent(result, samples, global_batch=local * workers, workers=workers)
    assert 0.45 < result["auc"] < 1 and result["logloss"] < 1
    within = int(overrides.get("train.eval_every", samples))
    assert [phase["evaluated_on"] for phase in result["phases"]] == -(-samples // within) * ["day1"]
    assert all(0 < phase["auc"] < 1 for phase in result["phases"])


def test_a_model_that_diverges_is_told_in_a_sentence(launcher: Launcher) -> None:
    done = launcher.start("mode=async", "optim=sgd", "optim.lr=1e30").finish()
    assert "Traceback" not in done.err
    if done.code == 0:
        assert done.result["auc"] is None or 0 <= done.result["auc"] <= 1
    else:
        assert done.code == 1 and "diverged" in done.err

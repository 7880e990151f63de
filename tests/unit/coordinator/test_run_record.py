"""The end of a phase in the curves, and what a failure cost, on a clock that a test turns; its line in a report."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gbactl.config import Round
from gbactl.coordinator.live_phase import PhaseClock
from gbactl.coordinator.run_record import RecoveryTimes, RunRecord
from gbactl.policies.policy import Ledger
from gbactl.report.compare import compare
from gbactl.report.text_formats import FORMATS, render
from gbactl.tracking.metrics_and_tags import failed_in_short, failure_metrics
from gbactl.tracking.mlflow_store import Run


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_the_last_point_of_a_phase_has_all_finished_samples() -> None:
    """Also where its last gradients, too few for a whole step, were announced before that point."""
    clock = Clock()
    record = RunRecord(clock, 0, [(Round(0, 0, "day 0", (1,), 1), 192)])
    training: Any = SimpleNamespace(policy=SimpleNamespace(ledger=Ledger(trained=128), step=1), clock=PhaseClock(clock))
    record.statistics.recent.add(0, 192, 0.5, 0.1, (3.0, 4))
    assert record.progress(training, 1)["samples"] == 128
    saved, clock.now = list(record.curve), 12.0
    record.phases.append({"day": "day 0", "samples": 192, "seconds": 1.5, "closing_seconds": 0.25})
    record.ledger.trained = 192
    record.progress(None, 2)
    assert record.curve == [{**saved[0], "samples": 192, "seconds": 2.0, "training_seconds": 1.75}]
    assert (saved[0]["samples"], saved[0]["loss"], saved[0]["auc"]) == (128, 0.5, 0.75)
    clock.now = 99.0
    record.progress(None, 2)
    assert record.curve[-1]["seconds"] == 2.0, "nothing was finished since"


def test_times_count_from_the_injection() -> None:
    clock = Clock()
    times = RecoveryTimes(clock)
    times.record_injection("W1", "hang")
    clock.now = 12.5
    times.record_detection("W1", "death")
    times.record_useful_work("W1")  # said of whom it follows
    clock.now = 14.0
    times.record_ready("W1")
    clock.now = 14.25
    times.record_useful_work("W1")
    clock.now = 99.0
    times.record_useful_work("W1")
    undone = {"samples_undone": 0, "pls": 0.0, "row_updates_undone": 0, "samples_rolled_back": 0}
    times_of = {"detected_s": 2.5, "loaded_s": 4.0, "useful_s": 4.25}
    assert times.to_result(9.0) == [{"process": "W1", "failure": "hang", **times_of, **undone, "at_s": 1.0}]


def test_what_nobody_injected_counts_from_the_last_sign_of_life() -> None:
    clock = Clock()
    times = RecoveryTimes(clock)
    for process, at in (("W0", 11.0), ("W1", 12.0), ("W0", 13.0)):
        clock.now = at
        times.record_sign_of_life(process)
    clock.now = 17.0
    times.record_detection("W0", "hang")
    clock.now = 18.0
    times.record_sign_of_life("W0")  # another one in its place
    clock.now = 20.0
    times.record_detection("W0", "death")
    times.record_ready("W0")
    times.record_detection("S0", "death")  # never heard of
    times.record_takeover("hang", 19.0, 16.0)
    first, second, silent, coordinator = times.to_result(0.0)
    assert (first["detected_s"], first["loaded_s"]) == (4.0, None)
    assert (second["detected_s"], second["loaded_s"], second["useful_s"]) == (2.0, 2.0, None)
    assert silent["detected_s"] == 10.0 and (coordinator["detected_s"], coordinator["loaded_s"]) == (3.0, 4.0)
    times.record_injection("W2", "hang")  # which it survives
    clock.now = 100.0
    times.record_sign_of_life("W2")
    clock.now = 101.0
    times.record_detection("W2", "death")
    survivor = times.to_result(0.0)[-1]
    assert (survivor["failure"], survivor["at_s"], survivor["detected_s"]) == ("death", 100.0, 1.0)


RESULT: dict[str, Any] = {
    "recovery": [
        {"process": "W1", "failure": "kill", "detected_s": 1.0, "loaded_s": 3.0, "useful_s": None, "pls": 0.0},
        {"process": "W1", "failure": "kill", "detected_s": 2.0, "loaded_s": 5.0, "useful_s": 6.0, "pls": 0.5},
        {"process": "S0", "failure": "hang", "detected_s": 0.5, "loaded_s": None, "useful_s": None, "pls": 0.0},
    ]
}


def test_metrics_are_means_over_a_run() -> None:
    metrics = failure_metrics(RESULT)
    assert metrics["recovery_count/W1.kill"] == 2.0 and metrics["recovery_loaded_s/W1.kill"] == 4.0
    assert metrics["recovery_useful_s/W1.kill"] == 6.0 and metrics["recovery_pls/W1.kill"] == 0.25
    assert "recovery_loaded_s/S0.hang" not in metrics and failure_metrics({}) == {}
    assert failed_in_short(RESULT) == "W1 kill, W1 kill, S0 hang"


def test_the_report_has_a_table_of_them() -> None:
    plain = Run("a", "a", "FINISHED", 1, {"mode": "sync", "seed": "1"}, {"auc": 0.8})
    metrics = {"auc": 0.7, **failure_metrics(RESULT)}
    run = replace(plain, run_id="b", params={"mode": "gba", "seed": "1"}, metrics=metrics)
    report = compare([plain, run])
    assert [(line.key, line.process, line.failure, line.n) for line in report.failures] == [
        (("gba",), "S0", "hang", 1), (("gba",), "W1", "kill", 1),
    ]  # fmt: skip
    for form in FORMATS:
        assert "kill" in render(report, form)
    table = json.loads(render(report, "json"))["failures"]
    assert table[1]["stats"]["detected_s"]["mean"] == pytest.approx(1.5)
    assert "failed" not in render(compare([plain]), "table")

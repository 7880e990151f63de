"""The state that outlives a coordinator: there and back by JSON, and positions of older checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint.failure_cost_counters import UnsavedWork
from gbactl.coordinator.run_record import RunRecord
from gbactl.coordinator.state import (
    TIMES_FILE,
    CheckpointState,
    DensePlacementState,
    EarlyStopping,
    FailureRecord,
    FailureRecords,
    Incarnations,
    JobPosition,
    LostGradientState,
    PhaseState,
    RunState,
    Standstill,
    decoded,
    encoded,
    read_times,
    write_times,
)
from gbactl.coordinator.statistics import ActivityTimes, SavedStatistics, WorkerRate
from gbactl.errors import CheckpointError
from gbactl.policies.policy import Ledger, Phase
from gbactl.wire.messages import WAITS


def position(**changes: Any) -> JobPosition:
    rates = {3: WorkerRate(2, 64, 0.5, 0)}
    values: dict[str, Any] = {
        "step": 7, "round": 1, "label": "day 1", "seconds": 2.5, "ended": False, "unread": [(64, 128)],
        "ledger": Ledger(64, 64, 0, 0, 64.0), "mode": {"name": "gba", "workers": 2}, "switches": 1,
        "stopping": EarlyStopping(2, 0.7, 0, 1), "results": [{"auc": np.float64(0.7)}], "modes": "sync>gba@day1",
        "phases": [{"mode": "sync"}], "curve": [{"loss": float("nan")}],
        "statistics": SavedStatistics({0: 4, 2: 1}, {0: 5}, 3.0, {"applied": 5}, rates),
    }  # fmt: skip
    return JobPosition(**values | changes)


def test_a_position_between_days_names_the_day_in_which_another_mode_goes_on() -> None:
    assert position().modes_with("gba") == "sync>gba@day1"
    assert position().modes_with("async") == "sync>gba@day1>async@step7"
    assert position(unread=None, round=2).modes_with("async") == "sync>gba@day1>async@day2"
    assert position(unread=None, round=0, label="").modes_with("async").endswith(">async@step7")


def test_the_whole_tree_is_the_same_after_json() -> None:
    failures = FailureRecords([FailureRecord("W1", "death", 1.0, 2.0)], {"S0": ("kill", 3.0)}, (4, 2.5))
    checkpoints = CheckpointState(1, 2, 300, 4.0, 5, UnsavedWork.begin(1000, 2, 4, 100))
    placement, sums = (
        DensePlacementState(3, "workers", "servers", "workers"),
        LostGradientState([Phase(310, 32, 96, 0, (0, 1), (2,))], {4: [1, 2]}),
    )
    state = RunState(
        Standstill("train", [(0, 64)], True, 99, 4, 10.0, 7.5, position(curve=[], results=[])),
        ongoing=PhaseState(
            Incarnations([1], {1: 2}, {0: 0}), failures, checkpoints, placement, sums, True, 4, [{"plan": 0}]
        ),
    )
    assert decoded(json.loads(json.dumps(encoded(state))), RunState) == state


def test_times_continue_from_their_file_on_another_clock(tmp_path: Path) -> None:
    def add(times: ActivityTimes, seconds: Iterable[int], began: float) -> None:
        for second in seconds:
            times.add(began + second, second % 3, 0.25, [0.5] * len(WAITS), "gba")
            times.on_heartbeat("S0", {"idle": float(second)})

    assert read_times(tmp_path) is None
    plain, first = ActivityTimes(), ActivityTimes()
    add(plain, range(200), 0.0)
    add(first, range(90), 1000.0)
    write_times(tmp_path, first.shifted(-1000.0))
    found = read_times(tmp_path)
    assert found is not None
    second = found.shifted(5.0)
    add(second, range(90, 200), 5.0)
    assert second.shifted(-5.0) == plain.shifted(0.0) and second.summary(5.0, {}) == plain.summary(0.0, {})
    for unusable in ('{"width": "long"}', '{"reported": [1.0]}', "{"):
        (tmp_path / TIMES_FILE).write_text(unusable)
        assert read_times(tmp_path) is None


def test_numbers_of_numpy_and_losses_that_are_none_are_kept() -> None:
    values = json.loads(json.dumps(encoded(position())))
    read = JobPosition.read(values)
    assert read.results == [{"auc": 0.7}] and type(read.results[0]["auc"]) is float
    assert np.isnan(read.curve[0]["loss"])


@pytest.mark.parametrize("broken", [{}, {"step": "seven"}, {"statistics": None}, {"ledger": {"read": 1.5}}])
def test_what_is_no_position_is_refused(broken: dict[str, Any]) -> None:
    values = encoded(position()) | broken if broken else {}
    with pytest.raises(CheckpointError, match="position cannot be used"):
        JobPosition.read(values)


def test_a_run_goes_on_from_a_position_as_often_as_it_goes_back() -> None:
    """What it records afterwards changes nothing of the position."""
    kept = position(curve=[], results=[{"auc": 0.7}])
    record = RunRecord(lambda: 9.0, 5, [])
    for _ in range(2):
        record.restore(kept)
        assert (record.stopping.patience, record.stopping.best, record.ledger.trained) == (5, 0.7, 64)
        assert record.statistics.rates(1.0) == {"W3": 0.0}, "counted from here, not from what is undone"
        record.statistics.workers[3].samples += 32
        assert record.statistics.rates(2.0) == {"W3": 32.0}
        record.statistics.staleness[1] += 1
        record.ledger.trained += 32
        record.results.append({})
    assert kept == position(curve=[], results=[{"auc": 0.7}])


def stops_after(patience: int, scores: list[float]) -> tuple[int | None, int]:
    """(round at which it stops, the best round)."""
    stopping = EarlyStopping(patience)
    for number, score in enumerate(scores):
        if stopping.update(score):
            return number, stopping.best_round
    return None, stopping.best_round


def test_early_stopping() -> None:
    assert stops_after(0, [0.9, 0.1, 0.1, 0.1]) == (None, 0)
    assert stops_after(1, [0.5, 0.6, 0.6]) == (2, 1)
    assert stops_after(2, [0.5, 0.6, 0.55, 0.7, 0.6, 0.6]) == (5, 3)
    assert stops_after(2, [0.5, 0.6, 0.7]) == (None, 2)


def test_a_score_that_is_not_a_number_is_never_the_best() -> None:
    assert stops_after(2, [float("nan"), 0.6, float("nan"), float("nan")]) == (3, 1)

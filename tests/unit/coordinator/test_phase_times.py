"""Workers' time by phase: totals, bounded bins, and reports that are not to be believed."""

from __future__ import annotations

import math

import pytest

from gbactl.coordinator.phase_times import MOST_BINS, MOST_WORKERS, PhaseTimes

WAITS = [0.1, 0.2, 0.0, 0.05, 0.4]


def test_totals_by_phase_and_what_is_recent_is_taken_once() -> None:
    times = PhaseTimes()
    times.add(10.0, 3, 0.5, WAITS, "sync")
    times.add(11.0, 3, 0.5, WAITS, "sync")
    found = times.summary(8.0, {})
    assert found["processes"] == {
        "W3": {"batches": 2, "compute": 1.0, "batch": 0.2, "rows": 0.4, "turn": 0.0, "push": 0.1, "all_reduce": 0.8}
    }
    assert times.take_shares()["all_reduce"] == pytest.approx(0.8 / 2.5) and times.take_shares() == {}
    assert found["first_second"] == 2.0 and len(found["bins"]) == 2
    assert times.take_recent() == found["processes"] and times.take_recent() == {}


def test_bins_merge_and_lose_nothing() -> None:
    times = PhaseTimes()
    for second in range(1000):
        times.add(float(second), second % 2, 1.0, WAITS, "sync" if second < 500 else "gba")
    found = times.summary(0.0, {})
    assert found["bin_seconds"] == 16.0 and len(found["bins"]) <= MOST_BINS
    assert len(found["modes"]) == len(found["bins"]) and found["modes"][::62] == ["sync", "gba"]
    for worker in ("W0", "W1"):
        assert sum(each[worker]["compute"] for each in found["bins"]) == pytest.approx(500.0)


@pytest.mark.parametrize("waits", [[], [0.1] * 4, [math.nan] * 5, [math.inf] * 5, [-1.0] * 5])
def test_other_reports_are_ignored(waits: list[float]) -> None:
    times = PhaseTimes()
    times.add(0.0, 0, 1.0, waits, "sync")
    assert times.summary(0.0, {})["processes"] == {}


def test_of_many_workers_only_totals_are_kept() -> None:
    times = PhaseTimes()
    for worker in range(MOST_WORKERS + 1):
        times.add(0.0, worker, 1.0, WAITS, "sync")
    assert times.take_recent() == {} and times.summary(0.0, {})["bins"] == []
    assert len(times.summary(0.0, {})["processes"]) == MOST_WORKERS + 1

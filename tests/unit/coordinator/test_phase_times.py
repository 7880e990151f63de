"""Workers' time by phase: totals, bounded bins, and reports that are not to be believed."""

from __future__ import annotations

import math

import pytest

from gbactl.coordinator.phase_times import MOST_BINS, MOST_WORKERS, PhaseTimes

WAITS = [0.1, 0.2, 0.0, 0.05, 0.4]


def test_totals_by_phase_and_what_is_recent_is_taken_once() -> None:
    times = PhaseTimes()
    times.add(10.0, 3, 0.5, WAITS)
    times.add(11.0, 3, 0.5, WAITS)
    found = times.summary(8.0, {})
    assert found["processes"] == {
        "W3": {"batches": 2, "compute": 1.0, "batch": 0.2, "rows": 0.4, "turn": 0.0, "push": 0.1, "all_reduce": 0.8}
    }
    assert found["first_second"] == 2.0 and len(found["bins"]) == 2
    assert times.take_recent() == found["processes"] and times.take_recent() == {}


def test_bins_merge_and_lose_nothing() -> None:
    times = PhaseTimes()
    for second in range(1000):
        times.add(float(second), second % 2, 1.0, WAITS)
    found = times.summary(0.0, {})
    assert found["bin_seconds"] == 16.0 and len(found["bins"]) <= MOST_BINS
    for worker in ("W0", "W1"):
        assert sum(each[worker]["compute"] for each in found["bins"]) == pytest.approx(500.0)


@pytest.mark.parametrize("waits", [[], [0.1] * 4, [math.nan] * 5, [math.inf] * 5, [-1.0] * 5])
def test_other_reports_are_ignored(waits: list[float]) -> None:
    times = PhaseTimes()
    times.add(0.0, 0, 1.0, waits)
    assert times.summary(0.0, {})["processes"] == {}


def test_of_many_workers_only_totals_are_kept() -> None:
    times = PhaseTimes()
    for worker in range(MOST_WORKERS + 1):
        times.add(0.0, worker, 1.0, WAITS)
    assert times.take_recent() == {} and times.summary(0.0, {})["bins"] == []
    assert len(times.summary(0.0, {})["processes"]) == MOST_WORKERS + 1

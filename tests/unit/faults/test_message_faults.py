"""When messages are lost, late, doubled or overtaken: all the time, at a step, at a time, or by a distribution."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.faults.message_faults import AllActivePeriods, MessageFaultStream, TransmissionOutcome
from gbactl.hashes_and_random_numbers import INTERVALS, uniform
from tests.support.fault_plans import plan

STORM = {"kind": "messages", "drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "delay": 0.2}
AGAIN = {**STORM, "mtbf": 10.0, "seconds": 1.0}
BEFORE = (-1, -math.inf)


def storms(*plans: dict[str, Any], seed: int = 0) -> AllActivePeriods:
    return plan(*plans, seed=seed).fault_periods()


def test_without_a_moment_it_storms_in_the_whole_run() -> None:
    found = storms(STORM, {"kind": "constant", "factor": 2}, {**STORM, "time": 0.0})
    assert [found.active_indexes(*at) for at in (BEFORE, (0, 0.0), (9, 1e9))] == [{0}, {0, 2}, {0, 2}]


def test_at_a_time_for_so_long() -> None:
    short, long = {**STORM, "time": 3.0, "seconds": 2.0}, {**STORM, "time": 3.0}
    found = storms(short, long)
    told = [found.active_indexes(99, seconds) for seconds in (-math.inf, 0.0, 2.9, 3.0, 4.9, 5.0, 99.0)]
    assert told == [set(), set(), set(), {0, 1}, {0, 1}, {1}, {1}]
    late = storms(short, long)  # who asks late has not missed the beginning
    assert late.active_indexes(0, 4.0) == {0, 1} and late.active_indexes(0, 5.0) == {1}


def test_at_a_step_for_so_long_from_when_it_is_told() -> None:
    found = storms({**STORM, "step": 10, "seconds": 2.0})
    told = [found.active_indexes(*at) for at in (BEFORE, (9, 1.0), (10, 1.5), (10, 3.4), (11, 3.5), (99, 9.0))]
    assert told == [set(), set(), {0}, {0}, set(), set()]
    assert storms({**STORM, "step": 0}).active_indexes(*BEFORE) == set()


@pytest.mark.parametrize(
    ("distribution", "shape"), [("exponential", None), ("weibull", 0.7), ("weibull", 2.0), ("gamma", 3.0)]
)
def test_again_and_again_for_the_share_of_the_time_that_follows(distribution: str, shape: float | None) -> None:
    """Of every interval its beginning, as long as a storm lasts or until the next one begins."""
    typed = {**AGAIN, "seconds": 4.0, "distribution": distribution, **({} if shape is None else {"shape": shape})}
    found = storms(typed)
    share = statistics.fmean(bool(found.active_indexes(0, turn * 0.5)) for turn in range(60_000))
    draw = INTERVALS[distribution]
    intervals = [10.0 * draw(uniform(7, turn), shape) for turn in range(20_000)]
    assert share == pytest.approx(statistics.fmean(min(4.0, each) for each in intervals) / 10.0, rel=0.08)


def test_both_ends_have_the_same_storms_and_another_seed_has_others() -> None:
    def heard(seed: int) -> list[frozenset[int]]:
        found = storms(AGAIN, AGAIN, seed=seed)
        return [found.active_indexes(0, turn * 0.5) for turn in range(400)]

    assert heard(1) == heard(1) != heard(2)
    assert {frozenset(), frozenset({0}), frozenset({1})} <= set(heard(1))


def test_so_many_times_and_no_more() -> None:
    found = storms({**AGAIN, "times": 3})
    states = [bool(found.active_indexes(0, turn * 0.1)) for turn in range(20_000)]
    assert 10 <= sum(states) <= 30 and not any(states[-10_000:])


@given(st.integers(0, 2**32), st.lists(st.floats(0.01, 30.0), min_size=1, max_size=30))
def test_how_often_one_asks_changes_nothing(seed: int, steps: list[float]) -> None:
    plans = ({**AGAIN, "seconds": 8.0}, {**STORM, "time": 40.0, "seconds": 60.0})
    often, now, told = storms(*plans, seed=seed), 0.0, frozenset[int]()
    for step in steps:
        now += step
        told = often.active_indexes(0, now)
    assert told == storms(*plans, seed=seed).active_indexes(0, now)


def test_fates_are_drawn_in_a_storm_alone() -> None:
    made = plan(STORM, {**STORM, "workers": [1]})
    weather = MessageFaultStream(made.messages(0), "S0", True)
    assert [weather.draw(frozenset({1})) for _ in range(50)] == [TransmissionOutcome((0.0,))] * 50
    names = {name for _ in range(200) for name in weather.draw(frozenset({0, 1})).names}
    assert names == {"dropped", "duplicated", "reordered", "delayed"}

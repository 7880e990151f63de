"""Kills and hangs: typed, drawn, and told once each when they come due."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.errors import ConfigError
from gbactl.faults import random_streams
from gbactl.faults.injector import FaultInjector, Injection
from tests.support.fault_plans import plan

MANY = {"kind": "kill", "workers": "all", "servers": "all", "mtbf": 10.0}


def told(*plans: dict[str, Any], until: float, step: float = 0.5) -> list[tuple[float, Injection]]:
    """(when, what) of a run in which nothing goes by steps."""
    injector, found, now = FaultInjector(plan(*plans)), list[tuple[float, Injection]](), 0.0
    while now < until:
        now += step
        found += [(now, injection) for injection in injector.due(0, now)]
    return found


def test_at_a_step_and_at_a_time() -> None:
    hang = {"kind": "hang", "servers": [1], "coordinator": True, "time": 3.0, "seconds": 2.0}
    injector = FaultInjector(plan({"kind": "kill", "workers": [1, 2], "step": 10}, hang))
    assert injector.due(9, 2.9) == [] and injector.next_seconds == 3.0
    assert injector.due(12, 2.9) == [Injection("kill", "W1"), Injection("kill", "W2")]
    assert injector.due(12, 3.0) == [Injection("hang", "S1", 2.0), Injection("hang", "C", 2.0)]
    assert injector.due(99, 99.0) == [] and injector.next_seconds == math.inf


def test_the_coordinator_strikes_all_others_of_a_moment_before_itself() -> None:
    itself = {"kind": "kill", "coordinator": True, "step": 10}
    others = ({"kind": "hang", "workers": [1], "step": 9}, {"kind": "kill", "servers": [0], "time": 2.0})
    injector = FaultInjector(plan(itself, *others))
    assert [injection.process for injection in injector.due(10, 2.0)] == ["W1", "S0", "C"]


def test_one_at_random_is_the_same_for_a_seed() -> None:
    def victim(seed: int) -> str:
        [injection] = FaultInjector(plan({"kind": "kill", "workers": "random", "step": 0}, seed=seed)).due(0, 0.0)
        return injection.process

    assert [victim(seed) for seed in range(20)] == [victim(seed) for seed in range(20)]
    assert {victim(seed) for seed in range(50)} == {"W0", "W1", "W2", "W3"}


@pytest.mark.parametrize(
    ("distribution", "shape"),
    [("exponential", None), ("weibull", 0.7), ("weibull", 2.0), ("gamma", 0.5), ("gamma", 3.0)],
)
def test_the_mean_time_between_failures_is_met(distribution: str, shape: float | None) -> None:
    typed = {**MANY, "distribution": distribution, **({} if shape is None else {"shape": shape})}
    found = told(typed, until=20_000.0)
    assert len(found) == pytest.approx(2000, rel=0.1)
    victims = [injection.process for _, injection in found]
    assert all(victims.count(name) > 200 for name in ("W0", "W1", "W2", "W3", "S0", "S1"))


@pytest.mark.parametrize(
    ("draw", "shape", "deviation"), [(random_streams.weibull, 2.0, 0.5227), (random_streams.gamma, 4.0, 0.5)]
)
def test_intervals_have_the_spread_of_their_distribution(draw: Any, shape: float, deviation: float) -> None:
    found = [draw(random_streams.uniform(7, turn), shape) for turn in range(20_000)]
    assert statistics.fmean(found) == pytest.approx(1.0, rel=0.02)
    assert statistics.pstdev(found) == pytest.approx(deviation, rel=0.03)


@given(st.integers(0, 2**32), st.lists(st.floats(0.01, 60.0), min_size=1, max_size=30))
def test_how_often_one_asks_changes_nothing(seed: int, steps: list[float]) -> None:
    one, other = (
        FaultInjector(plan({**MANY, "times": 5}, seed=seed)),
        FaultInjector(plan({**MANY, "times": 5}, seed=seed)),
    )
    now, found = 0.0, []
    for step in steps:
        now += step
        found += one.due(0, now)
    assert found == other.due(0, now) and len(found) <= 5


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": "kill", "step": 1}, "needs workers, servers, or coordinator: true"),
    ({"kind": "kill", "workers": [0]}, "needs one of step, time and mtbf"),
    ({"kind": "kill", "workers": [0], "step": 1, "time": 2.0}, "needs one of step, time and mtbf"),
    ({"kind": "kill", "workers": [0], "step": -1}, "step=-1 is not a whole number from 0 to"),
    ({"kind": "kill", "workers": [0], "mtbf": 0.0}, r"mtbf=0\.0 is not a number from 0\.001 to"),
    ({"kind": "kill", "workers": [0], "mtbf": 1, "distribution": "pareto"}, "exponential, weibull, gamma"),
    ({"kind": "kill", "workers": [0], "mtbf": 1, "shape": 2.0}, "shape belongs to distribution: weibull or gamma"),
    ({"kind": "kill", "workers": [0], "mtbf": 1, "distribution": "gamma", "shape": 0.0}, "shape=0.0 is not a number"),
    ({"kind": "kill", "workers": [0], "step": 1, "times": 2}, "times belongs to mtbf"),
    ({"kind": "kill", "workers": [0], "mtbf": 1, "times": 0}, "times=0 is not a whole number from 1"),
    ({"kind": "kill", "workers": [9], "step": 1}, "no worker 9"),
    ({"kind": "kill", "workers": [0], "step": 1, "seconds": 2}, "has no key seconds"),
    ({"kind": "hang", "workers": [0], "step": 1, "seconds": 0.0}, r"seconds=0\.0 is not a number from 0\.001"),
]


@pytest.mark.parametrize(("typed", "message"), WRONG, ids=[str(typed) for typed, _ in WRONG])
def test_what_cannot_work_says_what_to_type(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_dict({"faults": {"plans": [typed]}})
    assert "\n" not in str(caught.value) and str(caught.value).startswith("faults.plans[0]")


def test_who_is_to_fail_is_slowed_by_nobody() -> None:
    made = plan({"kind": "kill", "workers": [1], "step": 3})
    assert made.slowed == frozenset() and made.fails and not plan().fails
    assert made.factor(1, 0, 0.0) == 1.0

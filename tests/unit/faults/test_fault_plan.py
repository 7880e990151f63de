"""Fault plan: a pure function of its configuration and (worker, turn, seconds); kills and hangs, each due once."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.errors import ConfigError
from gbactl.faults.fault_plan import FaultInjector, Injection, choose
from gbactl.hashes_and_random_numbers import gamma, uniform, weibull
from tests.support.fault_plans import EVERY_KIND, plan

PLANS = st.lists(st.sampled_from(EVERY_KIND), max_size=4)
ASKED = st.tuples(st.integers(0, 3), st.integers(0, 10_000), st.floats(0, 1e6))


@given(PLANS, st.integers(0, 2**63 - 1), st.lists(ASKED, min_size=1, max_size=20), st.randoms())
def test_the_order_of_asking_does_not_matter(
    plans: list[dict[str, Any]], seed: int, asked: list[tuple[int, int, float]], shuffle: random.Random
) -> None:
    one, other = plan(*plans, seed=seed), plan(*plans, seed=seed)
    first = {question: one.factor(*question) for question in asked}
    again = list(asked)
    shuffle.shuffle(again)
    assert {question: other.factor(*question) for question in again} == first
    assert min(first.values()) >= 1.0


@given(PLANS, PLANS, ASKED)
def test_plans_multiply(left: list[dict[str, Any]], right: list[dict[str, Any]], asked: tuple[int, int, float]) -> None:
    """Random ones draw by their place in the list, so the right list is asked in its place."""
    steady = [p for p in right if "distribution" not in p]
    product = plan(*left).factor(*asked) * plan(*steady).factor(*asked)
    assert plan(*left, *steady).factor(*asked) == pytest.approx(product)


def test_values_that_can_be_checked_by_hand() -> None:
    made = plan(
        {"kind": "constant", "factor": 4, "workers": [1]},
        {"kind": "window", "factor": 2, "workers": [1, 2], "from": 10, "until": 20},
        {"kind": "periodic", "factor": 3, "workers": [2], "period_batches": 2},
    )
    assert [made.factor(w, 0, 0.0) for w in range(4)] == [1.0, 4.0, 3.0, 1.0]
    assert [made.factor(w, 1, 15.0) for w in range(4)] == [1.0, 8.0, 2.0, 1.0]
    assert made.slowed == {1, 2} and not made.slows(0) and made.slows(1)


GOLDEN = {  # 1 + quantile(u) of mean 1 at u = .3665, .0479, .4964, .1550, the splitmix64 chain of (7, 0, 1), turn
    "exponential": (1.4565, 1.0491, 1.6860, 1.1685),
    "lognormal": (1.4312, 1.1146, 1.6011, 1.2198),
    "pareto": (1.3005, 1.0297, 1.4736, 1.1046),
}


@pytest.mark.parametrize("distribution", GOLDEN)
def test_golden_draws(distribution: str) -> None:
    """Fixed for ever: runs of one seed are slowed alike by every version. Checked with SciPy's quantiles."""
    made = plan({"kind": "random", "distribution": distribution, "mean": 2}, seed=7)
    assert [round(made.factor(1, turn, 0.0), 4) for turn in range(4)] == list(GOLDEN[distribution])


@pytest.mark.parametrize("distribution", GOLDEN)
def test_the_mean_factor_is_the_one_asked_for(distribution: str) -> None:
    made = plan({"kind": "random", "distribution": distribution, "mean": 3})
    mean = statistics.fmean(made.factor(0, turn, 0.0) for turn in range(20_000))
    assert mean == pytest.approx(3.0, rel=0.05)


def test_workers_plans_and_seeds_draw_apart() -> None:
    typed = {"kind": "random", "distribution": "exponential", "mean": 2}
    one, two = plan(typed), plan(typed, typed)
    draws = [[one.factor(w, turn, 0.0) for turn in range(8)] for w in range(4)]
    assert len({value for row in draws for value in row}) == 32
    assert two.factor(0, 0, 0.0) != one.factor(0, 0, 0.0) ** 2
    assert plan(typed, seed=1).factor(0, 0, 0.0) != one.factor(0, 0, 0.0)


def test_the_plans_own_seed_comes_before_the_runs() -> None:
    typed = {"kind": "constant", "factor": 4, "workers": 3}
    made = {plan(typed, seed=seed, workers=40, own_seed=5).chosen for seed in range(4)}
    assert made == {plan(typed, seed=5, workers=40).chosen}
    assert len({plan(typed, seed=seed, workers=40).chosen for seed in range(4)}) == 4


def test_of_a_run() -> None:
    made = from_dict({"seed": 9, "faults": {"plans": [{"kind": "constant", "factor": 2, "workers": 1}]}}).fault_plan()
    assert made.seed == 9 and len(made.slowed) == 1
    assert made.to_list() == [{"kind": "constant", "factor": 2, "workers": sorted(made.slowed)}]


def test_a_hog_has_no_factor_but_a_place() -> None:
    made = plan({"kind": "hog", "workers": [2]}, {"kind": "hog", "cores": [1]})
    assert made.slowed == frozenset() and made.factor(2, 0, 0.0) == 1.0
    assert [(hog.cores, workers) for hog, workers in made.hogs] == [(None, (2,)), ([1], ())]
    assert made.to_list()[1] == {"kind": "hog", "cores": [1], "processes": 1, "from": 0.0}


def chosen(wanted: Any, total: int, *seeds: int) -> tuple[int, ...]:
    return choose(wanted, total, "faults.plans[0]", *seeds)


def test_by_name() -> None:
    assert chosen("all", 3) == (0, 1, 2)
    assert chosen([3, 1], 4) == (1, 3)
    assert chosen([], 4) == ()
    assert chosen(None, 4) == ()


@pytest.mark.parametrize(
    ("share", "total", "count"),
    [
        ("1/8", 400, 50), ("1/8", 8, 1), ("1/8", 4, 1), ("1/8", 2, 1), ("1/8", 12, 2), ("1/2", 5, 3),
        (0.25, 8, 2), ("1", 3, 3),
    ],
)  # fmt: skip
def test_a_share_is_rounded_to_at_least_one(share: Any, total: int, count: int) -> None:
    assert len(chosen(share, total, 1)) == count


@given(st.integers(1, 50), st.integers(0, 1000), st.data())
def test_so_many_distinct_workers_the_same_for_a_seed(total: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, total))
    found = chosen(count, total, seed)
    assert len(set(found)) == len(found) == count and set(found) <= set(range(total))
    assert found == chosen(count, total, seed)
    assert set(chosen(count - 1, total, seed) if count > 1 else ()) <= set(found)


def test_every_worker_is_chosen_about_equally_often() -> None:
    counts = [0] * 8
    for seed in range(800):
        counts[chosen("1/8", 8, seed, 0)[0]] += 1
    assert min(counts) > 70 and max(counts) < 130


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([4], r"no worker 4; workers are numbered 0 to 3"),
        ([-1], r"no worker -1"),
        ([1, 1], r"a worker twice"),
        (5, r"workers=5 cannot be chosen; type 1 to 4"),
        (0, r"workers=0 cannot be chosen"),
        ("half", r"'half' is not understood; type indices"),
        ("1/0", "not understood"),
        ("9/8", "not understood"),
        ("0", "not understood"),
        (float("inf"), "not understood"),
        (float("nan"), "not understood"),
    ],
)
def test_what_is_mistyped(wanted: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        chosen(wanted, 4)
    assert str(caught.value).startswith("faults.plans[0].workers") and "\n" not in str(caught.value)


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
    ("draw", "shape", "deviation"),
    [(weibull, 2.0, 0.5227), (gamma, 4.0, 0.5)],
)
def test_intervals_have_the_spread_of_their_distribution(draw: Any, shape: float, deviation: float) -> None:
    found = [draw(uniform(7, turn), shape) for turn in range(20_000)]
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
    ({"kind": "kill", "workers": [0], "step": 1, "time": 2.0}, "takes only one of step, time and mtbf"),
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
    assert made.slowed == frozenset() and made.has_failures and not plan().has_failures
    assert made.factor(1, 0, 0.0) == 1.0

"""hop_bs: who has to wait for whom."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checked_dataclasses import build
from gbactl.errors import ConfigError
from gbactl.policies.hop_bs import HopBsOptions, WorkerClocks
from gbactl.policies.policy import make
from tests.support.policy_driver import Driver, phase

seeds = st.integers(0, 1 << 30)


def alone(driver: Driver, worker: int, most: int = 100) -> int:
    """How many batches a worker gets and finishes while nobody else does."""
    done = 0
    while done < most and (grant := driver.take(worker)) is not None:
        driver.announce(worker, grant.batch)
        done += 1
    return done


@pytest.mark.parametrize("bound", [0, 1, 2, 7])
def test_a_worker_gets_bound_batches_ahead_and_one_more(bound: int) -> None:
    driver = Driver(make("hop_bs", phase(400), HopBsOptions(bound)))
    assert alone(driver, 0) == bound + 1
    assert alone(driver, 1) == bound + 1
    assert driver.take(0) is None
    assert alone(driver, 2, most=1) == 1
    assert alone(driver, 0) == 1


def test_the_clock_counts_batches_finished_not_taken() -> None:
    driver = Driver(make("hop_bs", phase(400), HopBsOptions(1)))
    assert all(driver.take(0) for _ in range(5))
    for _ in range(2):
        driver.announce(*driver.flying[0])
    assert driver.take(0) is None


def test_nobody_waits_for_the_dead_and_a_joiner_starts_with_the_slowest() -> None:
    driver = Driver(make("hop_bs", phase(400), HopBsOptions(1)))
    alone(driver, 0), alone(driver, 1)
    assert driver.take(0) is None
    driver.kill(2)
    assert alone(driver, 0) == 2
    assert alone(driver, 1, most=1) == 1
    driver.join(2)
    assert driver.policy.clocks.batches_ahead(2) == 0  # type: ignore[attr-defined]
    assert [alone(driver, worker) for worker in (2, 0)] == [2, 1]


@given(st.sampled_from([0, 1, 2, 5]), st.integers(1, 6), seeds)
def test_the_bound_holds_in_any_order_with_deaths_and_joiners(bound: int, workers: int, seed: int) -> None:
    """Against clocks kept the slow way."""
    rng = random.Random(seed)
    driver = Driver(make("hop_bs", phase(300, local=2, workers=workers), HopBsOptions(bound)), rng)
    clocks, slowest = dict.fromkeys(range(workers), 0), 0
    for _ in range(200):
        slowest = min(clocks.values())
        what, worker = rng.random(), rng.choice(driver.alive)
        if what < 0.5:
            may = clocks[worker] <= slowest + bound and not driver.policy.exhausted
            assert (driver.take(worker) is not None) == may
        elif what < 0.9 and driver.flying:
            worker, batch = rng.choice(driver.flying)
            driver.announce(worker, batch)
            clocks[worker] += 1
        elif what < 0.95 and len(driver.alive) > 1:
            driver.kill(worker)
            del clocks[worker]
        elif what > 0.97:
            driver.some_join()
            clocks[driver.alive[-1]] = slowest


def test_each_gradient_is_a_step_and_a_short_one_is_divided_by_its_share() -> None:
    driver = Driver(make("hop_bs", phase(6, local=4, workers=1)))
    assert alone(driver, 0) == 2
    assert [(s.divisor, s.members[0].weight) for s in driver.steps] == [(1.0, 1.0), (0.5, 0.5)]


def test_the_bound_is_checked() -> None:
    for good in (0, 2, float("inf")):
        assert build(HopBsOptions, {"bound": good}, "mode.") == HopBsOptions(good)
    for bad in (-1, float("nan")):
        with pytest.raises(ConfigError, match=r"mode\.bound=.* is not a number from 0 to inf; type"):
            build(HopBsOptions, {"bound": bad}, "mode.")


def test_the_slowest_clock_never_goes_back() -> None:
    clocks = WorkerClocks([0, 1])
    for _ in range(3):
        clocks.tick(0)
    assert (clocks.slowest, clocks.batches_ahead(0)) == (0, 3)
    clocks.remove(1)
    assert (clocks.slowest, clocks.batches_ahead(0)) == (3, 0)
    clocks.remove(0), clocks.remove(0)
    clocks.add(7), clocks.add(7)
    assert (clocks.slowest, clocks.batches_ahead(7)) == (3, 0)
    clocks.tick(7)
    assert clocks.slowest == 4

"""Phases that a switch ends early: whole steps, nothing twice, the same decisions as in a phase of that length."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.policies.gba import GbaOptions
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Phase, Policy, make, policy_class
from tests.support.modes import SERVED, WITHOUT_REPLICAS
from tests.support.policy_driver import Driver

seeds = st.integers(0, 1 << 30)


def policy(mode: str, samples: int, workers: int = 3, local: int = 4, ahead: bool = False) -> Policy:
    options = {"hop_bw": HopBwOptions(backup=0), "gba": GbaOptions(iota=float("inf"))}.get(mode)
    return make(
        mode,
        Phase(samples, local, local * workers, 5, tuple(range(workers)), prefetch="data" if ahead else "none"),
        options,
    )


def some(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.rng.choice([driver.some_take, driver.some_announce])()


@given(st.sampled_from(WITHOUT_REPLICAS), st.integers(1, 200), st.integers(1, 4), st.integers(0, 60), seeds)
def test_stopped_before_it_begins_it_is_a_shorter_phase(
    mode: str, samples: int, workers: int, batch: int, seed: int
) -> None:
    stopped = policy(mode, samples, workers)
    stopped.stop(batch)
    whole = -(-batch // workers) * workers * 4 if mode != "hop_bw" or batch else 0
    assert stopped.phase.samples == min(samples, whole)
    drivers = [Driver(stopped, random.Random(seed)), Driver(policy(mode, min(samples, whole), workers))]
    drivers[1].rng = random.Random(seed)
    for driver in drivers:
        driver.finish()
    assert (drivers[0].grants, drivers[0].steps) == (drivers[1].grants, drivers[1].steps)


@given(st.sampled_from(WITHOUT_REPLICAS), st.integers(40, 200), st.integers(0, 60), st.booleans(), seeds)
def test_stopped_on_its_way_it_ends_with_whole_steps(
    mode: str, samples: int, count: int, ahead: bool, seed: int
) -> None:
    driver = Driver(policy(mode, samples, ahead=ahead), random.Random(seed))
    some(driver, count)
    handed = max((grant.start + grant.samples for _, grant in driver.grants if grant.samples), default=0)
    driver.policy.stop()
    driver.finish()
    end = driver.policy.phase.samples
    assert handed <= end <= max(handed + 24, 12) and (end % 12 == 0 or end == samples or mode == "hop_bw")
    assert driver.policy.ledger.read == driver.policy.ledger.trained == end
    batches = sorted(member.batch for step in driver.steps for member in step.members)
    assert batches == list(range(-(-end // 4)))
    if end < samples and policy_class(mode).global_step and mode != "hop_bw":
        assert all(len(step.members) == 3 for step in driver.steps)


@given(st.sampled_from(SERVED), st.integers(0, 60), st.booleans(), st.booleans(), seeds)
def test_what_is_given_up_is_decayed_once(mode: str, count: int, death: bool, ahead: bool, seed: int) -> None:
    driver = Driver(policy(mode, 400, ahead=ahead), random.Random(seed))
    some(driver, count)
    if death:
        driver.some_kill()
    driver.policy.stop()
    while any(driver.take(worker) for worker in driver.alive):
        pass
    flying = driver.flying.copy()
    given_up = driver.policy.forgo()
    assert set(given_up) >= {batch for _, batch in flying}
    for worker, batch in flying:
        assert driver.policy.announce(worker, batch) == [], "it comes too late"
    assert driver.policy.idle and driver.policy.forgo() == []
    driver.policy.finish()
    driver.policy.ledger.check()
    assert driver.policy.ledger.decayed == sum(driver.policy.phase.size(batch) for batch in given_up)


def test_backup_workers_stop_between_two_steps_at_once() -> None:
    driver = Driver(make("hop_bw", Phase(400, 4, 12, 0, (0, 1, 2)), HopBwOptions(backup=1)))
    for worker in range(3):
        driver.take(worker)
    driver.announce(0, 0)
    driver.announce(1, 1)
    driver.policy.stop()
    assert driver.policy.phase.samples == 12, "the third is late: it will be dropped"
    driver.announce(2, 2)
    assert driver.policy.idle and driver.policy.step == 1


@pytest.mark.parametrize("mode", WITHOUT_REPLICAS)
def test_how_many_batches_make_a_step(mode: str) -> None:
    expected = None if mode == "hop_bw" else 6 if policy_class(mode).global_step else 2
    assert policy(mode, 100).batches_of(2) == expected


def test_a_dead_worker_s_batches_are_still_handed_out_after_a_stop() -> None:
    driver = Driver(policy("gba", 400))
    for worker in (0, 1, 2):
        driver.take(worker)
    driver.policy.stop()
    driver.kill(1)
    assert driver.take(0) is not None and driver.take(2) is None
    driver.finish()
    assert driver.policy.ledger.trained == 12

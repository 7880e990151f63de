"""hop_bw: when a step closes, and what becomes of who comes too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checked_dataclasses import build
from gbactl.errors import ConfigError
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Drop, Step, make
from tests.support.policy_driver import Driver, phase, run


def cluster(samples: int = 400, workers: int = 4, backup: int = 1, first: int = 0) -> Driver:
    """Batches of 4; everybody has taken one."""
    part = phase(samples, local=4, gradients=workers, first=first, workers=workers)
    driver = Driver(make("hop_bw", part, HopBwOptions(backup)))
    for worker in range(workers):
        driver.take(worker)
    return driver


def members(step: object) -> list[int]:
    assert isinstance(step, Step)
    return [member.batch for member in step.members]


def test_a_step_closes_at_the_first_of_them_in_batch_order() -> None:
    driver = cluster(first=5)
    assert [(g.batch, g.token, g.after) for _, g in driver.grants] == [(b, 5, 5) for b in range(4)]
    assert driver.announce(3, 3) == driver.announce(0, 0) == []
    [step] = driver.announce(2, 2)
    assert isinstance(step, Step)
    assert (step.step, members(step), step.divisor) == (5, [0, 2, 3], 3.0)


def test_a_late_gradient_is_dropped_and_its_worker_goes_on_with_the_newest_step() -> None:
    driver = cluster()
    for worker in (0, 1, 2):
        driver.announce(worker, worker)
    for worker in (0, 1, 2):
        driver.take(worker)
    assert driver.take(3) is None, "it still holds its batch"
    assert driver.announce(3, 3) == [Drop(3, 4)]
    assert (driver.policy.ledger.lost, driver.policy.ledger.trained) == (4, 12)
    grant = driver.take(3)
    assert grant is not None
    assert (grant.batch, grant.token, grant.after) == (7, 1, 1)
    assert driver.announce(3, 7) == []


def test_a_worker_holds_one_batch_and_delivers_one_a_step() -> None:
    driver = cluster()
    assert driver.take(0) is None
    driver.announce(0, 0)
    assert driver.take(0) is None
    driver.announce(1, 1), driver.announce(2, 2)
    assert [driver.take(worker) is not None for worker in range(4)] == [True, True, True, False]


def test_fewer_live_workers_close_a_step_that_was_waiting_for_more() -> None:
    driver = cluster()
    driver.announce(0, 0)
    driver.announce(1, 1)
    assert driver.kill(2) == [], "three live, three wanted"
    [step] = driver.kill(3)
    assert members(step) == [0, 1]
    assert isinstance(step, Step) and step.divisor == 2.0
    again = [driver.take(worker) for worker in (0, 1)]
    assert [(g.batch, g.token) for g in again if g] == [(2, 1), (3, 1)]


def test_what_a_dead_worker_has_delivered_counts() -> None:
    driver = cluster()
    driver.announce(3, 3)
    assert driver.kill(3) == []
    driver.announce(0, 0)
    [step] = driver.announce(1, 1)
    assert members(step) == [0, 1, 3]


def test_without_a_living_worker_a_step_waits_for_a_joiner() -> None:
    driver = cluster()
    driver.announce(1, 1)
    for worker in range(4):
        driver.policy.lost_worker(worker)
    assert driver.policy.poll() == []
    driver.policy.joined_worker(2)
    [step] = driver.policy.poll()
    assert members(step) == [1]


def test_a_joiner_works_on_the_newest_step_and_the_step_grows_no_larger() -> None:
    driver = cluster()
    driver.join(9)
    grant = driver.take(9)
    assert grant is not None and (grant.batch, grant.token) == (4, 0)
    driver.announce(9, 4), driver.announce(2, 2)
    [step] = driver.announce(0, 0)
    assert members(step) == [0, 2, 4]


def test_what_is_there_at_the_end_of_the_data_is_a_partial_step() -> None:
    driver = cluster(samples=4 * 3 + 4 + 3)
    for worker in (0, 1, 2):
        driver.announce(worker, worker)
    assert driver.announce(3, 3) == [Drop(3, 4)]
    assert driver.take(1) is not None
    driver.announce(1, 4)
    assert driver.policy.idle
    driver.finish()
    assert [(members(s), s.divisor, s.weight_sum) for s in driver.steps[1:]] == [([4], 0.75, 0.75)]
    assert driver.policy.finish() == []
    driver.policy.ledger.check()


def test_a_full_step_with_a_short_batch_is_divided_by_what_is_there() -> None:
    driver = cluster(samples=4 * 2 + 1, workers=3, backup=0)
    for worker in (2, 1, 0):
        driver.announce(worker, worker)
    assert [(s.divisor, [m.weight for m in s.members]) for s in driver.steps] == [(2.25, [1.0, 1.0, 0.25])]


def ahead(samples: int = 400, workers: int = 4, backup: int = 1) -> Driver:
    """As `cluster`, in a phase in which everybody's next batch is settled ahead."""
    part = phase(samples, local=4, gradients=workers, workers=workers, ahead=True)
    driver = Driver(make("hop_bw", part, HopBwOptions(backup)))
    for worker in range(workers):
        assert driver.policy.ahead == [], "not while somebody may still take a batch of this step"
        driver.take(worker)
    return driver


def test_the_next_batch_of_everybody_is_settled_as_soon_as_all_have_one() -> None:
    driver = ahead()
    assert driver.policy.ahead == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert driver.policy.ledger.read == 4 * 8
    assert driver.take(0) is None, "its rows are another step's"
    driver.announce(0, 0)
    assert driver.take(0) is None
    driver.announce(2, 2), driver.announce(1, 1)
    again = [driver.take(worker) for worker in (1, 2, 0)]
    assert [(g.batch, g.token, g.after) for g in again if g] == [(5, 1, 1), (6, 1, 1), (4, 1, 1)]
    assert driver.policy.ahead == [(0, 8), (1, 9), (2, 10)], "the fourth is late and has one"


def test_who_is_late_gets_its_batch_in_the_newest_step() -> None:
    driver = ahead()
    for _ in range(2):
        for worker in (0, 1, 2):
            driver.announce(worker, batch_of(driver, worker))
        for worker in (0, 1, 2):
            driver.take(worker)
    assert driver.announce(3, 3) == [Drop(3, 4)]
    grant = driver.take(3)
    assert grant is not None and (grant.batch, grant.token, grant.after) == (7, 2, 2)


def test_where_no_other_batch_is_left_it_goes_to_whoever_can_take_it() -> None:
    driver = ahead(samples=4 * 6)
    assert driver.policy.ahead == [(0, 4), (1, 5)]
    driver.announce(0, 0), driver.announce(1, 1)
    driver.join(9)
    grant = driver.take(9)
    assert grant is not None and (grant.batch, grant.token) == (4, 0)
    [step] = driver.announce(9, 4)
    assert members(step) == [0, 1, 4]
    grant = driver.take(0)
    assert grant is not None and (grant.batch, grant.token) == (5, 1)
    driver.finish()
    driver.policy.ledger.check()


def test_the_next_batch_of_a_dead_worker_is_handed_out_again() -> None:
    driver = ahead()
    driver.kill(3)
    for worker in (0, 1, 2):
        driver.announce(worker, worker)
    assert driver.policy.step == 1
    batches = [grant.batch for worker in (0, 1, 2) if (grant := driver.take(worker))]
    assert batches == [4, 5, 6] and driver.policy.ahead == [(0, 7), (1, 3), (2, 8)]
    driver.finish()
    driver.policy.ledger.check()
    assert driver.policy.ledger.read == 400


def batch_of(driver: Driver, worker: int) -> int:
    return next(batch for owner, batch in driver.flying if owner == worker)


@given(st.integers(1, 150), st.integers(1, 5), st.integers(2, 6), st.data(), st.integers(0, 1 << 30))
def test_settled_ahead_every_sample_has_one_fate_whoever_dies_or_is_late(
    samples: int, local: int, workers: int, data: st.DataObject, seed: int
) -> None:
    part = phase(samples, local, workers, workers=workers, ahead=True)
    driver = run("hop_bw", part, HopBwOptions(data.draw(st.integers(0, workers - 1))), seed)
    ledger = driver.policy.ledger
    ledger.check()
    assert ledger.read == samples and ledger.decayed == 0
    fates = [m.batch for step in driver.steps for m in step.members] + [drop.batch for drop in driver.drops]
    assert sorted(fates) == list(range(part.batches))
    handed = [grant.batch for _, grant in driver.grants]
    assert len(handed) - part.batches == driver.reissued
    for token in {grant.token for _, grant in driver.grants}:
        owners = [worker for worker, grant in driver.grants if grant.token == token]
        assert len(set(owners)) == len(owners) or driver.deaths, "one gradient a step and worker"


@given(st.integers(1, 120), st.integers(1, 5), st.integers(2, 6), st.data(), st.integers(0, 1 << 30))
def test_who_takes_what_was_settled_takes_that(
    samples: int, local: int, workers: int, data: st.DataObject, seed: int
) -> None:
    """Nobody dies and batches are left: what is prepared is what is handed out."""
    part = phase(10_000, local, workers, workers=workers, ahead=True)
    driver = Driver(make("hop_bw", part, HopBwOptions(data.draw(st.integers(0, workers - 1)))))
    driver.rng.seed(seed)
    settled: dict[int, int] = {}
    for _ in range(samples):
        before = len(driver.grants)
        driver.rng.choice([driver.some_take, driver.some_announce])()
        for worker, grant in driver.grants[before:]:
            assert settled.pop(worker, grant.batch) == grant.batch
            settled.update(driver.policy.ahead)
    assert settled == driver.policy.reserved


@given(st.integers(2, 6), st.data(), st.integers(0, 1 << 30))
def test_no_step_but_the_last_is_smaller_than_the_live_workers_allow(
    workers: int, data: st.DataObject, seed: int
) -> None:
    backup = data.draw(st.integers(0, workers - 1))
    driver = cluster(workers=workers, backup=backup)
    driver.rng.seed(seed)
    for _ in range(150):
        driver.rng.choice([driver.some_take, driver.some_announce, driver.some_announce])()
    assert all(len(step.members) == workers - backup == step.divisor for step in driver.steps)
    held = [worker for worker, _ in driver.flying]
    assert len(set(held)) == len(held)
    for token in {grant.token for _, grant in driver.grants}:
        owners = [worker for worker, grant in driver.grants if grant.token == token]
        assert len(set(owners)) == len(owners)


def test_somebody_is_always_waited_for() -> None:
    assert build(HopBwOptions, {"backup": 0}, "mode.") == HopBwOptions(0)
    with pytest.raises(ConfigError, match=r"mode\.backup=-1 is not a whole number from 0"):
        build(HopBwOptions, {"backup": -1}, "mode.")
    HopBwOptions(3).check_workers(4)
    with pytest.raises(ConfigError, match=r"backup=4 of cluster\.workers=4 .* type mode\.backup=3 or less"):
        make("hop_bw", phase(8, workers=4), HopBwOptions(4))

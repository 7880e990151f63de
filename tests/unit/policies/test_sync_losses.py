"""sync with workers that die and come: the steps stay what they were, others do the work."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gbactl.policies.policy import make
from tests.support.policy_driver import Driver, in_lock_step, phase, run


def content(driver: Driver) -> list[object]:
    return [(s.step, s.divisor, [(m.batch, m.weight) for m in s.members]) for s in driver.steps]


@given(st.integers(1, 150), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1 << 30))
def test_the_steps_do_not_depend_on_who_dies_or_joins(samples: int, local: int, workers: int, seed: int) -> None:
    part = phase(samples, local, workers, first=3, workers=workers)
    steps = in_lock_step("sync", part)
    assert content(run("sync", part, None, seed)) == [
        (s.step, s.divisor, [(m.batch, m.weight) for m in s.members]) for s in steps
    ]


def do(driver: Driver) -> Counter[int]:
    """One step; who has nothing to do goes on to the next. Returns who did how many batches of it."""
    step = driver.policy.step
    while driver.policy.step == step:
        for worker in driver.alive:
            if not any(owner == worker for owner, _ in driver.flying):
                driver.take(worker)
        driver.announce(*min(driver.flying, key=lambda pair: pair[1]))
    return Counter(member.worker for member in driver.steps[-1].members)


def test_some_of_those_left_do_two_and_the_divisor_stays() -> None:
    driver = Driver(make("sync", phase(400, local=4, gradients=4, workers=4)))
    assert do(driver) == {0: 1, 1: 1, 2: 1, 3: 1}
    driver.kill(1)
    assert do(driver) == {0: 2, 2: 1, 3: 1}
    driver.kill(3)
    do(driver)  # begun by three, ended by two
    assert do(driver) == {0: 2, 2: 2}
    assert [(step.divisor, len(step.members)) for step in driver.steps] == [(4.0, 4)] * 4


def test_a_batch_that_was_under_way_is_done_by_another() -> None:
    driver = Driver(make("sync", phase(40, local=4, gradients=2, workers=2)))
    driver.take(0), driver.take(1)
    driver.announce(0, 0)
    driver.kill(1)
    grant = driver.take(0)
    assert grant is not None and (grant.batch, grant.token, grant.samples) == (1, 0, 4)
    driver.announce(0, 1)
    assert [[m.batch for m in step.members] for step in driver.steps] == [[0, 1]]
    assert driver.policy.ledger.read == 8


def test_what_a_worker_owes_of_an_earlier_step_comes_first() -> None:
    driver = Driver(make("sync", phase(80, local=4, gradients=2, workers=2)))
    assert [grant.batch for _ in range(3) if (grant := driver.take(0))] == [0, 2, 4]
    driver.kill(1)
    batches = [grant.batch for _ in range(5) if (grant := driver.take(0))]
    assert batches == [1, 3, 5, 6, 7]


def test_what_a_slow_worker_inherits_of_a_later_step_comes_after_its_own_earlier_ones() -> None:
    driver = Driver(make("sync", phase(80, local=4, gradients=2, workers=2)))
    assert [grant.batch for _ in range(3) if (grant := driver.take(1))] == [1, 3, 5]
    driver.kill(1)
    tokens = [grant.token for _ in range(20) if (grant := driver.take(0))]
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]


def test_a_joiner_shares_the_steps_that_nobody_has_begun() -> None:
    driver = Driver(make("sync", phase(400, local=4, gradients=3, workers=3)))
    driver.kill(2)
    assert do(driver) == {0: 2, 1: 1}
    driver.join(5)
    assert 5 not in do(driver), "it had begun"
    assert do(driver) == {0: 1, 1: 1, 5: 1}


def test_one_worker_more_than_a_step_has_batches_only_joins_in() -> None:
    driver = Driver(make("sync", phase(80, local=4, gradients=2, workers=2)))
    driver.join(2)
    grants = [driver.take(worker) for worker in (0, 1, 2)]
    assert [(g.batch, g.samples) for g in grants if g] == [(0, 4), (1, 4), (20, 0)]


def test_who_is_in_a_step_is_owed_what_a_dead_worker_left_of_it() -> None:
    policy = make("sync", phase(60, local=4, gradients=3, workers=3))
    for worker in (0, 1, 2, 0):
        policy.take(worker)  # worker 0 is in the second step
    assert not any(policy.owes_batch(worker) for worker in range(3))
    policy.lost_worker(2)
    owed = [worker for worker in (0, 1) if policy.owes_batch(worker)]
    assert owed
    taken = {grant.batch for worker in owed for grant in [policy.take(worker)] if grant is not None}
    assert 2 in taken

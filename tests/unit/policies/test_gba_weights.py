"""gba: f(staleness), divisors and the end of a phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.policies.gba import GbaOptions, GbaPolicy
from gbactl.policies.policy import Decision, Policy, Step, make
from tests.support.policy_driver import phase


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("hard", [1, 1, 1, 0, 0]),
        ("inverse", [1, 1, 1, 1 / 2, 1 / 3]),
        ("exp", [1, 1, 1, 0.25, 0.0625]),
    ],
)
def test_decay(decay: str, expected: list[float]) -> None:
    chosen = GbaOptions(decay=decay, iota=2, decay_rate=0.25)
    assert [of(staleness, chosen) for staleness in range(5)] == expected


@given(st.sampled_from(["hard", "inverse", "exp"]), st.floats(0, 50), st.floats(0, 1), st.integers(0, 10**6))
def test_a_staler_gradient_never_counts_more(decay: str, iota: float, rate: float, staleness: int) -> None:
    chosen = GbaOptions(decay, iota, rate)
    assert 0.0 <= of(staleness + 1, chosen) <= of(staleness, chosen) <= 1.0
    assert of(0, chosen) == 1.0


def of(staleness: int, chosen: GbaOptions) -> float:
    return GbaPolicy(phase(8), chosen).factor(staleness)


def stale_by(steps: int, chosen: GbaOptions) -> tuple[Policy, Step]:
    """M = 2: batch 0 (token 0) waits while `steps` steps are made of later batches; the step it lands in."""
    policy = make("gba", phase(2 * 4 * (steps + 4), local=4, gradients=2), chosen)
    policy.take(0)
    for _ in range(2 * steps):
        grant = policy.take(1)
        assert grant is not None
        policy.announce(1, grant.batch)
    policy.announce(0, 0)
    grant = policy.take(1)
    assert grant is not None
    [step] = policy.announce(1, grant.batch)
    assert isinstance(step, Step)
    return policy, step


def test_a_gradient_past_iota_fills_its_place_but_counts_nothing() -> None:
    policy, step = stale_by(4, GbaOptions(iota=3))
    assert [(m.batch, m.weight, m.token_staleness) for m in step.members] == [(0, 0.0, 4), (9, 1.0, 0)]
    assert step.divisor == 2.0
    assert policy.ledger.decayed == 4


def test_a_gradient_at_iota_counts_in_full() -> None:
    policy, step = stale_by(3, GbaOptions(iota=3))
    assert [m.weight for m in step.members] == [1.0, 1.0]
    assert policy.ledger.decayed == 0


def test_the_accepted_divisor_is_the_sum_of_the_weights() -> None:
    _, step = stale_by(5, GbaOptions(decay="inverse", iota=3, divisor="accepted"))
    assert [m.weight for m in step.members] == [1 / 3, 1.0]
    assert step.divisor == step.weight_sum == 1 / 3 + 1.0 and step.accepted
    _, full = stale_by(5, GbaOptions(decay="inverse", iota=3, divisor="M"))
    assert full.divisor == 2.0 and not full.accepted


def test_when_all_weigh_nothing_the_step_still_happens() -> None:
    policy = make("gba", phase(40, local=4, gradients=2), GbaOptions(iota=0, divisor="accepted"))
    policy.take(0), policy.take(0)
    for _ in range(2):
        grant = policy.take(1)
        assert grant is not None
        policy.announce(1, grant.batch)
    policy.announce(0, 0)
    [step] = policy.announce(0, 1)
    assert isinstance(step, Step)
    assert (step.step, step.weight_sum, step.divisor) == (1, 0.0, 0.0)
    assert (policy.step, policy.ledger.decayed, policy.ledger.trained) == (2, 8, 8)


def test_the_end_of_a_phase_divides_what_is_left_by_what_is_there() -> None:
    policy = make("gba", phase(4 * 4 + 3, local=4, gradients=4), GbaOptions())
    steps: list[Decision] = []
    while (grant := policy.take(0)) is not None:
        steps += policy.announce(0, grant.batch)
    assert [len(s.members) for s in steps if isinstance(s, Step)] == [4]
    [last] = policy.finish()
    assert [(m.batch, m.weight) for m in last.members] == [(4, 0.75)]
    assert last.divisor == 0.75 and not last.accepted
    assert (last.shares(4), steps[0].shares(4)) == ((0.75,), ())  # type: ignore[union-attr]
    assert policy.finish() == []
    policy.ledger.check()


@pytest.mark.parametrize(("divisor", "expected"), [("M", 1.5), ("accepted", 1.0)])
def test_what_is_left_and_stale_counts_in_the_divisor_as_in_a_full_step(divisor: str, expected: float) -> None:
    policy = make("gba", phase(4 * 4 + 6, local=4, gradients=4), GbaOptions(decay="inverse", iota=0, divisor=divisor))
    policy.take(1)
    for _ in range(5):
        grant = policy.take(0)
        assert grant is not None
        policy.announce(0, grant.batch)
    policy.announce(1, 0)  # its token is one step old
    [last] = policy.finish()
    assert isinstance(last, Step)
    assert [(m.batch, m.weight) for m in last.members] == [(5, 0.5), (0, 0.5)]
    assert (last.weight_sum, last.divisor, last.accepted) == (1.0, expected, divisor == "accepted")


def test_a_full_step_with_a_short_batch_is_divided_by_what_is_there() -> None:
    policy = make("gba", phase(4 * 3 + 1, local=4, gradients=4), GbaOptions())
    for _ in range(4):
        policy.take(0)
    steps = [step for batch in range(4) for step in policy.announce(0, batch)]
    assert [s.divisor for s in steps if isinstance(s, Step)] == [3.25]


def test_async_divides_by_one_and_a_short_batch_by_its_share() -> None:
    policy = make("async", phase(6, local=4, gradients=4))
    policy.take(0), policy.take(0)
    steps = [step for batch in (0, 1) for step in policy.announce(0, batch)]
    assert [(s.divisor, s.members[0].weight) for s in steps if isinstance(s, Step)] == [(1.0, 1.0), (0.5, 0.5)]


@pytest.mark.parametrize("decay", ["hard", "inverse", "exp"])
def test_rows_get_a_weight_for_every_staleness_up_to_that_of_the_token(decay: str) -> None:
    chosen = GbaOptions(decay=decay, iota=1, row_staleness="row")
    _, step = stale_by(4, chosen)
    assert [m.row_weights for m in step.members] == [tuple(of(s, chosen) for s in range(5)), (1.0,)]
    assert all(m.row_weights[-1] == m.weight for m in step.members)
    _, plain = stale_by(4, GbaOptions(decay=decay, iota=1))
    assert [m.row_weights for m in plain.members] == [(), ()]
    assert [(m.batch, m.weight) for m in plain.members] == [(m.batch, m.weight) for m in step.members]


def test_the_rows_of_a_short_batch_weigh_its_share() -> None:
    policy = make("gba", phase(5, local=4, gradients=2), GbaOptions(row_staleness="row"))
    policy.take(0), policy.take(0)
    [step] = [step for batch in (0, 1) for step in policy.announce(0, batch)]
    assert isinstance(step, Step)
    assert [m.row_weights for m in step.members] == [(1.0,), (0.25,)]

"""The identities between modes that ALGORITHMS names, decision for decision."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from gbactl.policies.gba import GbaOptions
from gbactl.policies.hop_bs import HopBsOptions
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Phase, PolicyOptions, Step, make
from tests.support.policy_driver import in_lock_step, phase, run

NEVER_STALE = GbaOptions(iota=float("inf"))
seeds = st.integers(0, 1 << 30)


@given(
    st.integers(1, 150),
    st.integers(1, 5),
    st.integers(1, 5),
    seeds,
    st.sampled_from(["hard", "inverse", "exp"]),
)
def test_gba_without_a_limit_weighs_everything_in_full(
    samples: int, local: int, gradients: int, seed: int, decay: str
) -> None:
    chosen = GbaOptions(decay=decay, iota=float("inf"))
    cluster = run("gba", phase(samples, local, gradients), chosen, seed)
    for step in cluster.steps:
        assert all(m.weight == m.samples / local for m in step.members)
    assert cluster.policy.ledger.decayed == 0


@given(st.integers(1, 150), st.integers(1, 5), st.integers(1, 5), seeds)
def test_gba_of_one_gradient_without_a_limit_is_async(samples: int, local: int, workers: int, seed: int) -> None:
    part = phase(samples, local, 1, first=3, workers=workers)
    assert _decisions("gba", part, NEVER_STALE, seed) == _decisions("async", part, None, seed)


@given(st.integers(1, 150), st.integers(1, 5), st.integers(1, 5), seeds)
def test_gba_without_a_limit_is_bsp(samples: int, local: int, gradients: int, seed: int) -> None:
    part = phase(samples, local, gradients, first=3)
    assert _decisions("gba", part, NEVER_STALE, seed) == _decisions("bsp", part, None, seed)


@given(st.integers(1, 150), st.integers(1, 5), st.integers(1, 5), seeds)
def test_hop_bs_without_a_bound_is_async(samples: int, local: int, workers: int, seed: int) -> None:
    part = phase(samples, local, 2, first=3, workers=workers)
    unbound = HopBsOptions(bound=float("inf"))
    assert _decisions("hop_bs", part, unbound, seed) == _decisions("async", part, None, seed)


@given(st.integers(1, 150), st.integers(1, 6), st.integers(1, 6), st.booleans(), seeds)
def test_hop_bw_without_backup_is_sync_step_for_step(
    samples: int, local: int, workers: int, ahead: bool, seed: int
) -> None:
    part = Phase(samples, local, local * workers, 7, tuple(range(workers)), prefetch="data" if ahead else "none")
    bw, sync = run("hop_bw", part, HopBwOptions(backup=0), seed, deaths=False), in_lock_step("sync", part)
    assert bw.drops == []
    assert [_content(step) for step in bw.steps] == [_content(step) for step in sync]
    rounds = [{(worker, grant.token) for worker, grant in bw.grants if grant.token == s.step} for s in sync]
    assert [len(round_of) for round_of in rounds] == [len(step.members) for step in sync]


@given(st.integers(1, 5), st.integers(1, 150), st.integers(1, 6))
def test_gba_in_lock_step_is_sync_step_for_step(workers: int, samples: int, local: int) -> None:
    part = Phase(samples, local, local * workers, 7, tuple(range(workers)))
    gba, sync = in_lock_step("gba", part), in_lock_step("sync", part)
    assert _numbers(gba) == _numbers(sync)
    for ours, theirs in zip(gba, sync, strict=True):
        assert [(m.batch, m.weight, m.samples) for m in ours.members] == [
            (m.batch, m.weight, m.samples) for m in theirs.members
        ]
        assert all(m.token_staleness == 0 for m in ours.members)


def test_the_order_of_sync_is_that_of_the_batches_never_of_arrival() -> None:
    part = phase(24, local=2, gradients=3, workers=3)
    expected = in_lock_step("sync", part)
    for seed in range(20):
        steps = run("sync", part, None, seed, deaths=False).steps
        assert [tuple(m.batch for m in s.members) for s in steps] == [
            tuple(m.batch for m in s.members) for s in expected
        ]


def test_a_sync_grant_tells_the_worker_the_divisor_of_its_step() -> None:
    part = phase(3 * 4 * 2 + 6, local=4, gradients=3, first=5, workers=3)
    steps = {step.step: step for step in in_lock_step("sync", part)}
    policy = make("sync", part)
    for turn in range(3):
        for worker in part.workers:
            grant = policy.take(worker)
            assert grant is not None
            assert (grant.token, grant.after) == (5 + turn, 5 + turn)
            assert grant.divisor == steps[5 + turn].divisor
            assert grant.progress == turn * 12
            if grant.samples:
                policy.announce(worker, grant.batch)
    assert steps[7].divisor == 1.5
    assert policy.take(0) is None and policy.idle


def test_where_data_end_in_mid_step_the_others_get_an_empty_grant_that_joins_the_all_reduce() -> None:
    policy = make("sync", phase(5, local=4, gradients=3, workers=3))
    assert [(g.batch, g.samples) for w in range(3) if (g := policy.take(w))] == [(0, 4), (1, 1), (2, 0)]
    assert policy.leases.keys() == {0, 1}
    assert policy.announce(1, 1) == []
    [step] = policy.announce(0, 0)
    assert isinstance(step, Step)
    assert [m.weight for m in step.members] == [1.0, 0.25]
    assert step.divisor == 1.25


def test_sync_is_never_stale_and_waits_for_the_slowest() -> None:
    policy = make("sync", phase(24, local=4, gradients=2, workers=2))
    for _ in range(3):
        policy.take(0)
    for batch in (0, 2, 4):
        assert policy.announce(0, batch) == []
    for _ in range(3):
        policy.take(1)
    assert [s.step for s in policy.announce(1, 1) if isinstance(s, Step)] == [0]
    assert policy.announce(1, 5) == []
    assert [s.step for s in policy.announce(1, 3) if isinstance(s, Step)] == [1, 2]


def test_phase_options_do_not_leak_between_policies() -> None:
    part = phase(8)
    first, second = make("gba", part), make("gba", part)
    first.take(0)
    assert second.ledger.read == 0 and not second.leases
    assert dataclasses.replace(part, samples=9).batches == 3


def _decisions(name: str, part: Phase, options: PolicyOptions | None, seed: int) -> tuple[object, ...]:
    """What one seed's order of arrivals, deaths, joiners and duplicates leads to."""
    driver = run(name, part, options, seed)
    return driver.grants, driver.steps, driver.drops, driver.policy.ledger


def _content(step: Step) -> object:
    """All that a shard sees of a step, bit for bit."""
    return step.step, step.divisor, step.weight_sum, [(m.batch, m.weight) for m in step.members]


def _numbers(steps: list[Step]) -> list[tuple[int, float, float]]:
    return [(s.step, s.divisor, s.weight_sum) for s in steps]

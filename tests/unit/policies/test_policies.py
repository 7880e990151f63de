"""What holds for every policy in every order of arrival."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl import policies
from gbactl.errors import AccountingError, ConfigError
from gbactl.policies.gba import GbaOptions
from gbactl.policies.hop_bs import HopBsOptions
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Grant, Ledger, Member, Phase, Step, make, policy_class
from tests.support.modes import EVERY, REPLICAS, SERVED
from tests.support.policy_driver import Driver, phase, run

seeds = st.integers(0, 1 << 30)
phases = st.builds(
    phase, st.integers(1, 150), st.integers(1, 5), st.integers(1, 5), st.integers(0, 9), st.integers(2, 5)
)
OPTIONS = {name: st.none() for name in EVERY} | {
    "gba": st.builds(
        GbaOptions,
        st.sampled_from(["hard", "inverse", "exp"]),
        st.sampled_from([0, 1, 3, float("inf")]),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["M", "accepted"]),
        st.sampled_from(["token", "row"]),
    ),
    "hop_bs": st.builds(HopBsOptions, st.sampled_from([0, 1, 2, 5, float("inf")])),
    "hop_bw": st.builds(HopBwOptions, st.sampled_from([0, 1])),
}


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"mode\.name=turbo is not known.*async, bsp, .*gba, hop_bs, .*sync"):
        make("turbo", phase(8))


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EVERY)
@given(phases, st.data(), seeds)
def test_whatever_the_order_every_sample_is_counted_once(
    name: str, part: Phase, data: st.DataObject, seed: int
) -> None:
    """Duplicates, late announcements, deaths and joiners; the driver asserts what holds at every decision."""
    driver = run(name, part, data.draw(OPTIONS[name]), seed)
    ledger = driver.policy.ledger
    ledger.check()
    assert (ledger.read, driver.policy.idle) == (part.samples, True)
    members = [m for step in driver.steps for m in step.members]
    fates = [(m.batch, m.samples) for m in members] + [(drop.batch, drop.samples) for drop in driver.drops]
    assert sorted(fates) == [(batch, part.size(batch)) for batch in range(part.batches)]
    assert ledger.lost == sum(drop.samples for drop in driver.drops)
    assert ledger.decayed == sum(m.samples for m in members if m.weight == 0)
    assert ledger.effective == pytest.approx(sum(m.weight * m.samples for m in members))
    assert name == "hop_bw" or not driver.drops


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EVERY)
@given(phases, st.data(), seeds)
def test_no_sample_is_read_twice_for_a_batch_handed_out_again(
    name: str, part: Phase, data: st.DataObject, seed: int
) -> None:
    driver = run(name, part, data.draw(OPTIONS[name]), seed)
    handed = [grant.batch for _, grant in driver.grants if grant.samples]
    assert len(handed) - part.batches == driver.reissued
    assert driver.policy.ledger.read == part.samples


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", sorted(set(EVERY) - {"sync"}))
@given(phases, st.data(), seeds)
def test_tokens_never_go_backwards_even_for_batches_handed_out_again(
    name: str, part: Phase, data: st.DataObject, seed: int
) -> None:
    tokens = [grant.token for _, grant in run(name, part, data.draw(OPTIONS[name]), seed).grants]
    assert tokens == sorted(tokens)


@given(phases, seeds)
def test_the_tokens_of_sync_never_go_backwards_while_nobody_dies(part: Phase, seed: int) -> None:
    driver = run("sync", part, None, seed, deaths=False)
    for worker in part.workers:
        tokens = [grant.token for owner, grant in driver.grants if owner == worker]
        assert tokens == sorted(tokens)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EVERY)
@given(phases, st.data(), seeds)
def test_new_batches_are_handed_out_in_data_order(name: str, part: Phase, data: st.DataObject, seed: int) -> None:
    driver = run(name, part, data.draw(OPTIONS[name]), seed, deaths=False)
    batches = [grant.batch for worker, grant in driver.grants if grant.samples]
    if name == "sync":
        batches = [b for w in part.workers for owner, g in driver.grants if owner == w and (b := g.batch) >= 0]
        assert sorted(b for b in batches if b < part.batches) == list(range(part.batches))
    else:
        assert batches == list(range(part.batches))


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EVERY)
@given(phases, st.data(), seeds)
def test_weights_and_divisors_are_what_a_shard_accepts(name: str, part: Phase, data: st.DataObject, seed: int) -> None:
    for step in run(name, part, data.draw(OPTIONS[name]), seed).steps:
        assert step.members
        assert all(0.0 <= m.weight <= 1.0 for m in step.members)
        assert step.weight_sum == sum(m.weight for m in step.members)
        assert step.divisor > 0 or step.weight_sum == 0


@pytest.mark.parametrize("name", EVERY)
def test_nobody_takes_who_is_not_among_the_living(name: str) -> None:
    policy = make(name, phase(80, local=2, gradients=2))
    assert policy.take(3) is None
    policy.lost_worker(1)
    assert policy.take(1) is None and policy.live == {0, 2}
    for worker in (1, 3):
        policy.joined_worker(worker)
        assert policy.take(worker) is not None or name == "sync"
    assert policy.live == {0, 1, 2, 3}
    assert policy.poll() == []


@pytest.mark.parametrize("name", EVERY)
def test_the_last_ones_death_is_no_end_where_another_comes(name: str) -> None:
    driver = Driver(make(name, phase(41, local=4, gradients=3)))
    for worker in driver.policy.phase.workers:
        driver.take(worker)
    driver.announce(*driver.flying[0])
    for worker in driver.policy.phase.workers:
        driver.kill(worker)
    assert not driver.policy.idle
    assert len(driver.steps) == (not policy_class(name).global_step) + (name == "hop_bw")
    driver.join(9)
    driver.finish()
    driver.policy.ledger.check()
    assert driver.policy.ledger.read == 41


def test_a_batch_handed_out_again_gets_the_token_of_the_next_new_one() -> None:
    policy = make("gba", phase(40, local=2, gradients=2, first=10))
    for _ in range(7):
        policy.take(0)
    assert policy.lost_worker(0) == list(range(7))
    again = policy.take(1)
    assert again == Grant(batch=0, token=10 + 7 // 2, start=0, samples=2)


def test_a_token_is_dealt_at_the_pull_and_not_while_the_batch_waits() -> None:
    """W0 is slow: its second batch waits for its first one, while W1 computes six."""
    ages = {}
    for prefetch in ("data", "rows"):
        policy = make("gba", Phase(80, 2, 4, 10, (0, 1), prefetch=prefetch))
        policy.take(0), policy.take(0)
        for batch in range(2, 8):
            policy.take(1)
            policy.announce(1, batch)
        for batch in (0, 1):  # the pull of batch 1 is the 8th: token 10 + 7 // 2
            steps = policy.announce(0, batch)
        [step] = steps
        ages[prefetch] = [(member.batch, member.token_staleness) for member in step.members]
    assert ages == {"data": [(0, 3), (1, 0)], "rows": [(0, 3), (1, 3)]}


def test_the_batches_of_a_dead_worker_count_as_pulled_once() -> None:
    """Batch 0 was pulled and batch 1 was waiting: the pulls of 0, 1, 2, 3 make two steps of M = 2 again."""
    policy = make("gba", Phase(80, 2, 4, 0, (0, 1), prefetch="data"))
    policy.take(0), policy.take(0)
    policy.lost_worker(0)
    granted = []
    for batch in range(4):
        granted.append(policy.take(1))
        policy.announce(1, batch)
    assert [(grant.batch, grant.token) for grant in granted if grant] == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_the_late_gradient_of_a_dead_worker_is_ignored_even_after_the_batch_is_leased_again() -> None:
    policy = make("async", phase(8))
    policy.take(0)
    policy.lost_worker(0)
    assert policy.announce(0, 0) == []
    policy.take(1)
    assert policy.announce(0, 0) == []
    [step] = policy.announce(1, 0)
    assert isinstance(step, Step)
    assert [(m.worker, m.batch) for m in step.members] == [(1, 0)]


def test_a_fast_worker_takes_more() -> None:
    policy = make("gba", phase(40, local=4, gradients=2))
    slow = policy.take(0)
    assert slow is not None
    while (grant := policy.take(1)) is not None:
        policy.announce(1, grant.batch)
    assert policy.exhausted and not policy.idle
    assert policy.announce(0, slow.batch)
    assert policy.idle


def test_the_ledger_says_so_when_samples_do_not_add_up() -> None:
    ledger = Ledger(read=10)
    ledger.count_step(Step(0, (Member(0, 0, 1.0, 4, 0), Member(1, 0, 0.0, 5, 9)), 2.0))
    assert (ledger.trained, ledger.decayed, ledger.effective) == (4, 5, 4.0)
    with pytest.raises(AccountingError, match=r"read 10 is not trained 4 \+ decayed 5 \+ lost 0"):
        ledger.check()
    ledger.lost = 1
    ledger.check()
    total = Ledger(read=1, lost=1)
    total.add(ledger)
    assert (total.read, total.finished, total.effective) == (11, 11, 4.0)


def test_policies_know_no_torch_no_numpy_and_no_clock() -> None:
    code = "import sys, gbactl.policies.policy as p; p.names(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "gbactl.policies.gba" in loaded
    assert not {"torch", "numpy", "socket", "msgpack", "mlflow"} & set(loaded)
    imported = {name for path in Path(policies.__file__).parent.glob("*.py") for name in _imports(path)}
    assert {name for name in imported if not name.startswith("gbactl.")} <= {
        "__future__", "abc", "collections", "collections.abc", "dataclasses", "heapq", "typing",
    }  # fmt: skip
    known = (
        "gbactl.policies",
        "gbactl.errors",
        "gbactl.checked_dataclasses",
        "gbactl.configured_classes",
        "gbactl.conf_catalogue",
    )
    assert all(name.startswith(known) for name in imported if "gbactl" in name)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_where_the_dense_parameters_are() -> None:
    assert policy_class("sync").home == "workers"
    assert not policy_class("sync").prefetch_rows
    assert policy_class("sync").collective
    for name in REPLICAS:
        assert policy_class(name).home == "replicas" and policy_class(name).prefetch_rows
        assert policy_class(name).collective == ("easgd" not in name)
    for name in SERVED:
        assert policy_class(name).home == "servers" and not policy_class(name).collective
        assert policy_class(name).prefetch_rows == (name != "hop_bw")

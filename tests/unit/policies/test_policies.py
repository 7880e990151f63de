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
from policy_runs import phase, run

from gbactl import policies
from gbactl.errors import AccountingError, ConfigError
from gbactl.policies import GbaOptions, Grant, Ledger, Member, Phase, Step, make, names
from gbactl.policies.base import policy_class

seeds = st.integers(0, 1 << 30)
phases = st.builds(
    phase, st.integers(1, 150), st.integers(1, 5), st.integers(1, 5), st.integers(0, 9), st.integers(1, 5)
)
options = st.builds(
    GbaOptions,
    st.sampled_from(["hard", "inverse", "exp"]),
    st.sampled_from([0, 1, 3, float("inf")]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["M", "accepted"]),
)


def test_the_modes_of_this_version() -> None:
    assert set(names()) >= {"sync", "async", "gba"}


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"mode\.name=turbo is not known.*async, gba, sync"):
        make("turbo", phase(8))


@given(phases, options, seeds)
def test_whatever_the_order_every_sample_is_counted_once(
    part: Phase, chosen: GbaOptions, seed: int
) -> None:
    for name in ("sync", "async", "gba"):
        cluster = run(name, part, chosen, seed, deaths=name != "sync")
        ledger = cluster.policy.ledger
        ledger.check()
        assert (ledger.read, ledger.lost, cluster.policy.idle) == (part.samples, 0, True)
        batches = [m.batch for step in cluster.steps for m in step.members]
        assert sorted(batches) == list(range(part.batches))
        sizes = {m.batch: m.samples for step in cluster.steps for m in step.members}
        assert all(sizes[batch] == part.size(batch) for batch in sizes)
        weighed = sum(m.weight * m.samples for step in cluster.steps for m in step.members)
        assert ledger.effective == pytest.approx(weighed)


@given(phases, options, seeds)
def test_steps_are_numbered_without_a_gap(part: Phase, chosen: GbaOptions, seed: int) -> None:
    for name in ("sync", "async", "gba"):
        cluster = run(name, part, chosen, seed, deaths=False)
        numbers = [step.step for step in cluster.steps]
        assert numbers == list(range(part.first_step, part.first_step + len(numbers)))
        assert cluster.policy.step == part.first_step + len(numbers)


@given(phases, options, seeds)
def test_tokens_never_go_backwards_even_for_batches_handed_out_again(
    part: Phase, chosen: GbaOptions, seed: int
) -> None:
    for name in ("async", "gba"):
        tokens = [grant.token for grant in run(name, part, chosen, seed).grants]
        assert tokens == sorted(tokens)


@given(phases, options, seeds)
def test_weights_and_divisors_are_what_a_shard_accepts(part: Phase, chosen: GbaOptions, seed: int) -> None:
    for name in ("sync", "async", "gba"):
        for step in run(name, part, chosen, seed, deaths=False).steps:
            assert all(0.0 <= m.weight <= 1.0 for m in step.members)
            assert step.weight_sum == sum(m.weight for m in step.members)
            assert step.divisor > 0 or step.weight_sum == 0


@given(phases, seeds)
def test_a_dead_workers_batches_are_handed_out_again_and_read_once(part: Phase, seed: int) -> None:
    for name in ("async", "gba"):
        cluster = run(name, part, None, seed)
        again = len(cluster.grants) - part.batches
        assert again == cluster.reissued
        assert cluster.policy.ledger.read == part.samples


def test_a_batch_handed_out_again_gets_the_token_of_the_next_new_one() -> None:
    policy = make("gba", phase(40, local=2, gradients=2, first=10))
    for _ in range(7):
        policy.take(0)
    assert policy.lost_worker(0) == list(range(7))
    again = policy.take(1)
    assert again == Grant(batch=0, token=10 + 7 // 2, start=0, samples=2)


def test_the_late_gradient_of_a_dead_worker_is_ignored_even_after_the_batch_is_leased_again() -> None:
    policy = make("async", phase(8))
    policy.take(0)
    policy.lost_worker(0)
    assert policy.announce(0, 0) == []
    policy.take(1)
    assert policy.announce(0, 0) == []
    [step] = policy.announce(1, 0)
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
    ledger.settle(Step(0, (Member(0, 0, 1.0, 4, 0), Member(1, 0, 0.0, 5, 9)), 2.0))
    assert (ledger.trained, ledger.decayed, ledger.effective) == (4, 5, 4.0)
    with pytest.raises(AccountingError, match=r"read 10 is not trained 4 \+ decayed 5 \+ lost 0"):
        ledger.check()
    ledger.lost = 1
    ledger.check()
    total = Ledger(read=1, lost=1)
    total.add(ledger)
    assert (total.read, total.finished, total.effective) == (11, 11, 4.0)


def test_policies_know_no_torch_no_numpy_and_no_clock() -> None:
    code = "import sys, gbactl.policies as p; p.names(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "gbactl.policies.gba" in loaded
    assert not {"torch", "numpy", "socket", "msgpack", "mlflow"} & set(loaded)
    imported = {name for path in Path(policies.__file__).parent.glob("*.py") for name in _imports(path)}
    assert {name for name in imported if not name.startswith("gbactl.")} <= {
        "__future__", "abc", "collections", "collections.abc", "dataclasses", "importlib", "pkgutil", "typing",
    }  # fmt: skip
    assert all(name.startswith(("gbactl.policies", "gbactl.errors")) for name in imported if "gbactl" in name)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_where_the_dense_parameters_are() -> None:
    assert policy_class("sync").dense_on == "workers"
    assert not policy_class("sync").prefetch_rows
    for name in ("async", "gba"):
        assert policy_class(name).dense_on == "servers" and policy_class(name).prefetch_rows

"""The policy of replica modes: what its grants say, and what its options refuse."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.checked_dataclasses import build
from gbactl.errors import ConfigError
from gbactl.policies.policy import make, policy_class
from gbactl.policies.replica_modes import ReplicaPolicy
from tests.support.modes import REPLICAS
from tests.support.policy_driver import phase


@pytest.mark.parametrize("mode", REPLICAS)
def test_a_grant_tells_the_trainer_how_to_step_and_what_to_wait_for(mode: str) -> None:
    policy = make(mode, phase(10, 4, workers=2))
    first, second = policy.take(0), policy.take(1)
    assert first is not None and second is not None
    assert (first.after, first.divisor, first.progress) == (0, 1.0, 0)
    [step] = policy.announce(0, 0)
    assert step.divisor == 1.0 and len(step.members) == 1
    last = policy.take(0)
    assert last is not None
    assert (last.after, last.divisor, last.progress) == (1, 0.5, 4), "after its own last step; the batch is short"
    assert policy.take(1) is None


@pytest.mark.parametrize("mode", REPLICAS)
def test_a_dead_trainers_batches_are_handed_out_again(mode: str) -> None:
    policy = make(mode, phase(8, 4, workers=2))
    policy.take(0), policy.take(1)
    policy.announce(1, 1)
    policy.lost_worker(0)
    again = policy.take(1)
    assert again is not None and again.batch == 0
    policy.announce(1, 0)
    policy.ledger.check()
    assert policy.idle and policy.ledger.trained == 8


@pytest.mark.parametrize(
    ("mode", "values", "message"),
    [
        ("shadow_ma", {"alpha": 1.5}, "mode.alpha=1.5 is not a number from 0 to 1; type"),
        ("shadow_easgd", {"shadow_interval": -1.0}, "mode.shadow_interval=-1.0 is not a number from 0 to inf"),
        ("fr_easgd", {"k": 0}, "mode.k=0 is not a whole number from 1"),
        ("local_sgd", {"k": 0}, "mode.k=0 is not a whole number from 1"),
        ("fr_bmuf", {"block_momentum": 1.0}, "mode.block_momentum=1.0 is not a number of at least 0 and below 1"),
        ("shadow_bmuf", {"block_lr": 0.0}, "mode.block_lr=0.0 is not a number above 0 and at most 1000"),
        ("shadow_bmuf", {"alpha": -0.1}, "mode.alpha=-0.1 is not a number from 0 to 1"),
        ("fr_ma", {"hogwild_threads": 0}, "mode.hogwild_threads=0 is not a whole number from 1"),
    ],
)
def test_what_cannot_be_is_refused(mode: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(policy_class(mode).Options, values, "mode.")


def test_which_rule_each_mode_has() -> None:
    found = {mode: policy_class(mode) for mode in REPLICAS}
    assert all(issubclass(each, ReplicaPolicy) for each in found.values())
    rules = {mode: each.rule for mode, each in found.items() if issubclass(each, ReplicaPolicy)}
    assert rules == {mode: "ma" if mode == "local_sgd" else mode.partition("_")[2] for mode in REPLICAS}

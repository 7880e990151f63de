"""Policies of one's own: what breaks the contract is told in a sentence before training; what keeps it is not."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gbactl.checked_dataclasses import build
from gbactl.errors import ConfigError
from gbactl.policies.async_and_bsp import AsyncPolicy, BufferedPolicy
from gbactl.policies.dry_run import dry_run
from gbactl.policies.hop_bs import HopBsPolicy
from gbactl.policies.policy import Decision, Grant, Phase, Policy, PolicyOptions, Step, names, policy_class
from tests.support.lock_step import LockStepAsync, LockStepGba


def tried(kind: type[Policy], workers: int = 3, local: int = 5, gradients: int = 4, prefetch: str = "none") -> None:
    dry_run(kind, build(kind.Options, {}, "mode."), workers, local, local * gradients, prefetch)


@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("kind", [*map(policy_class, names()), LockStepGba, LockStepAsync])
def test_policies_that_keep_the_contract(kind: type[Policy], prefetch: str) -> None:
    for workers, local, gradients in ((3, 5, 4), (2, 1, 1), (4, 8, 4), (3, 2, 20)):
        tried(kind, workers, local, 3 if kind.in_step else gradients, prefetch)


def test_the_template_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "experiments" / "templates")
    tried(policy_class("pairs", "click_parts.pairs.PairsPolicy"))


def changed(**methods: Any) -> type[Policy]:
    return type("Own", (AsyncPolicy,), {"__module__": __name__, **methods})


class Waits(HopBsPolicy):
    """Forgets to say when a refused worker may ask again."""

    def _return(self, worker: int, batch: int) -> Grant | None:
        openings = self.openings
        grant = super()._return(worker, batch)
        self.openings = openings
        return grant

    def take(self, worker: int) -> Grant | None:
        return None if self.clocks.batches_ahead(worker) or self.leases else super().take(worker)


def kept(policy: Any, worker: int, batch: int) -> list[Decision]:
    grant = policy.leased_to(worker)[batch]
    return [Step(policy.step + 1, (), 1.0)] if grant else []


class Numpy(AsyncPolicy):
    """Has NumPy's numbers for weights, in the buffer and in steps that it makes itself."""

    def factor(self, token_staleness: int) -> Any:
        return np.float32(0.1)

    def row_factors(self, token_staleness: int) -> Any:
        return np.ones(token_staleness + 1, np.float32)

    def _close(self) -> Step:
        [member], self.buffer = self.buffer, []
        return self._emit(Step(self.step, (replace(member, weight=np.float32(0.5)),), np.int64(2)))


def test_numbers_of_numpy_become_pythons() -> None:
    tried(Numpy)
    policy = Numpy(Phase(12, 4, 4, 0, (0,)))
    policy.take(0)
    [step] = policy.announce(0, 0)
    assert isinstance(step, Step) and (step.divisor, step.weight_sum, policy.ledger.effective) == (2.0, 0.5, 2.0)
    found = (step.divisor, step.members[0].weight, *step.members[0].row_weights, policy.ledger.effective)
    assert {type(each) for each in found} == {float}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (changed(factor=lambda self, staleness: np.float32("inf")), r"returns np\.float32\(inf\), not a number from 0"),
        (changed(factor=lambda self, staleness: np.bool_(1)), r"returns np\.True_, not a number from 0"),
        (changed(factor=lambda self, staleness: "1"), r"Own\.factor\(0\) returns '1', not a number from 0 on\."),
        (changed(factor=lambda self, staleness: None), r"Own\.factor\(0\) returns None, not"),
        (changed(factor=lambda self, staleness: float("nan")), r"Own\.factor\(0\) returns nan, not"),
        (changed(factor=lambda self, staleness: 1 - staleness), r"Own\.factor\(2\) returns -1, not"),
        (changed(factor=lambda self: 1.0), r"Own fails in a dry run \(TypeError: .*positional argument"),
        (changed(buffer_size=lambda self: 0), r"Own\.buffer_size\(\) returns 0, not a whole number from 1 on\."),
        (
            changed(buffer_size=lambda self: self.bufer),
            r"'Own' object has no attribute 'bufer', in .*test_dry_run\.py:",
        ),
        (changed(__post_init__=lambda self: None), r"Own has a __post_init__ that does not call super\(\)"),
        (changed(take=lambda self, worker: None), r"Own grants no worker a batch, although 63 samples are left"),
        (changed(take=lambda self, worker: 0), r"Own\.take\(0\) returns 0, neither a Grant nor None\."),
        (changed(take=lambda self, worker: Grant(0, 0, 0, 7)), r"take\(0\) grants batch 0 of 5 samples with 7 samples"),
        (changed(take=lambda self, worker: Grant(99, 0, 0, 0)), "grants batches without samples for ever"),
        (changed(announce=lambda self, worker, batch: None), r"announce\(0, 0\) returns None, not a list of Step"),
        (changed(announce=lambda self, worker, batch: []), r"keeps batches \[0, 1, .*\] leased after their gradients"),
        (changed(announce=kept), r"announce\(0, 0\) numbers a step 1, not 0\."),
        (changed(_emit=lambda self, step: step), "numbers a step 0, not 1"),
        (changed(_divisor=lambda self, members: 0), "divides a step by 0, not by a number above 0"),
        (
            type("Own", (BufferedPolicy,), {"__module__": __name__, "finish": lambda self: []}),
            "reads 63 of 63 samples and gives a fate to 60; end steps by self._emit",
        ),
        (Waits, r"Waits grants no worker a batch, although \d+ samples are left and no gradient is on its way; let"),
    ],
)
def test_what_breaks_the_contract_is_told(kind: type[Policy], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as told:
        tried(kind)
    assert str(told.value).startswith(f"mode.target={__name__}.") and str(told.value).endswith(".")
    assert "\n" not in str(told.value)


class Bare(Policy):
    """Lacks a method."""

    def announce(self, worker: int, batch: int) -> list[Decision]:
        return []


class Undecorated(PolicyOptions):
    size: int = 2


@dataclass(frozen=True)
class Misnamed(PolicyOptions):
    size: "Cuont" = 2  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Bare, r"mode\.target=made_here\.Bare lacks the method take of a policy; write it, or derive the class from"),
        (
            changed(Options=dict),
            r"mode\.target=made_here\.Own has Options that are no subclass of gbactl.*PolicyOptions",
        ),
        (changed(Options=PolicyOptions()), "has Options that are no subclass of"),
        (changed(Options=Undecorated), r"made_here\.Undecorated has options and is no dataclass; write @dataclass\(fr"),
        (changed(Options=Misnamed), r"annotations of made_here\.Misnamed cannot be read \(NameError: .*'Cuont'"),
    ],
)
def test_a_class_that_can_be_no_policy(kind: type[Policy], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", module)
    monkeypatch.setattr(module, kind.__name__, kind, raising=False)
    for each in (kind, Undecorated, Misnamed):
        monkeypatch.setattr(each, "__module__", "made_here")
    with pytest.raises(ConfigError, match=sentence):
        tried(policy_class("own", f"made_here.{kind.__name__}"))

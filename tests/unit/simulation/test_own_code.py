"""What a user's own model or policy does wrong after the dry run is told in one sentence with its cause."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from gbactl.config import ModelConfig
from gbactl.configured_classes import own_code_told
from gbactl.errors import ClusterError, GbactlError, OwnCodeError
from tests.support.simulated_runs import config, run

PARTS = """
import torch
from gbactl.policies.async_and_bsp import AsyncPolicy

class Stops(AsyncPolicy):
    def take(self, worker):
        return None if self.next_batch >= 20 else super().take(worker)

class Raises(AsyncPolicy):
    def take(self, worker):
        if self.next_batch >= 20:
            raise ValueError("no\\nmore")
        return super().take(worker)

class Weighs(AsyncPolicy):
    def factor(self, token_staleness):
        return 1.0 if self.step < 20 else "1"

class Model(torch.nn.Module):
    seen = 0

    def __init__(self, fields, dim):
        super().__init__()
        self.last = torch.nn.Linear(fields * dim, 1)

    def forward(self, numeric, fields):
        self.seen += 1
        return self.last(fields.flatten(1))[:, 0 if self.seen < 10 else 1]

class Fails(AsyncPolicy):
    def finish(self):
        raise ERROR
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("prefetch", ["none", "data"])
def test_a_policy_that_grants_no_more_ends_the_run_at_once(data: Path, tmp_path: Path, prefetch: str) -> None:
    cfg = config("stops", target="late_parts.Stops", prefetch=prefetch)
    with pytest.raises(ClusterError) as told:
        run(cfg, data, tmp_path / "run")
    assert str(told.value).startswith(
        "mode.target=late_parts.Stops grants no worker a batch, although 860 samples are left and no gradient is on its"
    )


@pytest.mark.parametrize(
    ("mode", "model", "sentence"),
    [
        ({"target": "late_parts.Raises"}, {}, r"Raises fails \(ValueError: no more, in .*late_parts\.py:12\)"),
        ({"target": "late_parts.Weighs"}, {}, r"Weighs fails \(TypeError: can't multiply sequence .*\)"),
        ({}, {"target": "late_parts.Model"}, r"Model fails \(IndexError: index 1 .*, in .*late_parts\.py:28\)"),
    ],
)
def test_an_exception_is_told_with_its_place(
    data: Path, tmp_path: Path, mode: dict[str, Any], model: dict[str, Any], sentence: str
) -> None:
    cfg = dataclasses.replace(config("async", **mode), model=ModelConfig(dim=4, **model))
    pattern = rf"^m\w+\.target=late_parts\.{sentence}\.$"
    with pytest.raises(OwnCodeError, match=pattern) as told, own_code_told(OwnCodeError):
        run(cfg, data, tmp_path / "run")
    assert "\n" not in str(told.value)


def torch_without_memory() -> RuntimeError:
    with pytest.raises(RuntimeError) as told:
        torch.empty(1 << 50)
    return told.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "Input/output error"), GbactlError),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), GbactlError),
        (MemoryError("Unable to allocate 9 TiB"), GbactlError),
        (torch_without_memory(), GbactlError),
        (FileNotFoundError(errno.ENOENT, "No such file"), OwnCodeError),
        (RuntimeError("no"), OwnCodeError),
        (SystemExit(0), OwnCodeError),
    ],
)
def test_what_the_machine_fails_by_is_no_fault_of_the_code(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: type[GbactlError]
) -> None:
    cfg = config("async", target="late_parts.Fails")
    monkeypatch.setattr("late_parts.ERROR", error, raising=False)
    sentence = rf"^mode\.target=late_parts\.Fails fails \({type(error).__name__}: .*, in .*late_parts\.py:\d+\)\.$"
    with pytest.raises(GbactlError, match=sentence) as told, own_code_told(OwnCodeError):
        run(cfg, data, tmp_path / "run")
    assert type(told.value) is kind


def test_an_exception_of_gbactl_stays_one(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("gbactl.coordinator.live_phase.LivePhase.serve", lambda self: [][0])
    with pytest.raises(IndexError), own_code_told():
        run(config("stops", target="late_parts.Stops"), data, tmp_path / "run")

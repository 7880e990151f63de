"""Makes this folder's helpers importable; what several of its tests watch."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl import configured_classes
from gbactl.policies import async_and_bsp, gba
from gbactl.server.shard_server import Server
from tests.support.lock_step import LockStepAsync, LockStepGba


@pytest.fixture(autouse=True)
def no_class_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the users' classes of earlier tests, so that none is blamed for an exception of this one."""
    monkeypatch.setattr(configured_classes, "_FOREIGN", {})


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The shard of whoever served each index last."""
    last: dict[int, Any] = {}
    plain = Server.run

    def run(this: Any) -> None:
        last[this.index] = this.shard
        plain(this)

    monkeypatch.setattr(Server, "run", run)
    return last


@pytest.fixture
def lock_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `gba` and `async` run in lock-step."""
    monkeypatch.setattr(gba, "GbaPolicy", LockStepGba)
    monkeypatch.setattr(async_and_bsp, "AsyncPolicy", LockStepAsync)

"""Fixtures that tests of several folders use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl import configured_classes
from gbactl.policies import async_and_bsp, gba
from gbactl.server.shard_server import Server
from tests.support import small_data
from tests.support.lock_step import LockStepAsync, LockStepGba
from tests.support.thread_cluster import ThreadCluster


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


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day to train on, whose 1,500 samples are no multiple of a batch, and one to evaluate on."""
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 1500)


@pytest.fixture
def cluster(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThreadCluster:
    """A cluster of threads that trains on `data`."""
    return ThreadCluster(data, tmp_path, monkeypatch)

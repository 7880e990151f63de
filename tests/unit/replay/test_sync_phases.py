"""Replays across phases whose dense parameters the workers hold, against every checksum in the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.config import CollectiveConfig, RunConfig, SwitchConfig, check
from gbactl.coordinator import event_log
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.replay.gradient_recomputation import ReplayedReplica
from gbactl.replay.replay_command import replay, sentence
from gbactl.simulation.simulated_run import run_virtual
from tests.support.recorded import config, record

FILE: dict[str, Any] = {"local_batch": 16, "prefetch": "rows"}


def entry(unit: str, value: float, to: str, **more: Any) -> dict[str, Any]:
    return {"at": {unit: value}, "to": to, **more}


def planned(
    data: dict[str, Any], first: str, *entries: dict[str, Any], backend: str = "threads", dense: int | None = None
) -> RunConfig:
    """Three shards, four workers whose gradients are added up in their order; shuffled, batch norm, dropout."""
    cfg = config(first, data)
    name = "virtual" if backend == "virtual" else cfg.cluster.name
    cluster = dataclasses.replace(cfg.cluster, name=name, dense_servers=dense)
    files = [dict(FILE) if "workers" not in each.get("set", {}) else {} for each in entries]
    switch = SwitchConfig(schedule=list(entries), modes=files)
    return check(dataclasses.replace(cfg, cluster=cluster, switch=switch, collective=CollectiveConfig("shm")))


def recorded(cfg: RunConfig, folder: Path) -> None:
    if cfg.cluster.name == "virtual":
        folder.mkdir(exist_ok=True)
        run_virtual(cfg, open_dataset(prepare(cfg.data)), folder)
    else:
        record(cfg, folder)


ROUND = (
    entry("samples", 100, "gba"), entry("step", 12, "sync"), entry("fraction", 0.55, "async"),
    entry("samples", 1000, "sync"),
)  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize(("backend", "dense"), [("threads", None), ("virtual", None), ("threads", 1), ("virtual", 1)])
def test_there_and_back_and_there_again_comes_out(
    data: dict[str, Any], tmp_path: Path, backend: str, dense: int | None
) -> None:
    recorded(planned(data, "sync", *ROUND, backend=backend, dense=dense), tmp_path)
    records = list(event_log.read(tmp_path / "events.log"))
    sums = [r for r in records if isinstance(r, event_log.InfoRecord) and "model" in r.fields]
    assert len(sums) == 8 and all(r.fields["model"] for r in sums)
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)
    shards = sum(isinstance(r, event_log.InfoRecord) and bool({"digest", "whole"} & set(r.fields)) for r in records)
    assert verdict["checksums"] == shards + len(sums)


@pytest.mark.parametrize("backend", ["threads", "virtual"])
def test_all_of_a_sync_run_comes_out(data: dict[str, Any], tmp_path: Path, backend: str) -> None:
    """With a last step in which two workers have no batch, and one a short one."""
    recorded(planned(data, "sync", backend=backend), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"] and verdict["gradients"] == 2 * 46, sentence(verdict)


@pytest.mark.parametrize("backend", ["threads", "virtual"])
def test_workers_that_only_join_in(data: dict[str, Any], tmp_path: Path, backend: str) -> None:
    more = {"workers": 8, "local_batch": 8}
    plan = (entry("samples", 300, "gba", set=more), entry("samples", 900, "sync", set={"workers": 2}))
    recorded(planned(data, "sync", *plan, backend=backend), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)


@pytest.mark.parametrize(("first", "to"), [("sync", "gba"), ("gba", "sync"), ("sync", "sync")])
def test_an_optimizer_that_begins_anew(data: dict[str, Any], tmp_path: Path, first: str, to: str) -> None:
    plan = (entry("samples", 300, to, fresh_optimizer=True), entry("samples", 1000, "bsp"))
    recorded(planned(data, first, *plan, backend="virtual"), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)


def test_a_model_that_differs_is_noticed_at_the_switch(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next step, and named: the shards alone would not show it yet."""
    recorded(planned(data, "gba", entry("samples", 600, "sync"), entry("samples", 700, "gba")), tmp_path)

    def idle(self: ReplayedReplica, *_: Any) -> None:
        self._gradients.clear()

    monkeypatch.setattr(ReplayedReplica, "step", idle)
    verdict = replay(tmp_path)
    assert not verdict["identical"]
    assert "The model is not as logged at a switch, drained" in verdict["divergence"]["text"]


def test_what_is_kept_is_the_workers_model(data: dict[str, Any], tmp_path: Path) -> None:
    """A run that ends in sync: the dense vector of the file is the replicas', not what the shards held before."""
    recorded(planned(data, "gba", entry("samples", 600, "sync"), backend="virtual"), tmp_path)
    last = replay(tmp_path, path=tmp_path / "last.npz")
    assert last["identical"]
    before = replay(tmp_path, until=last["steps"] - 1, path=tmp_path / "before.npz")
    with np.load(last["model"]) as end, np.load(before["model"]) as one:
        assert int(end["dense_steps"][0]) == last["steps"] == int(one["dense_steps"][0]) + 1
        assert not np.array_equal(end["dense"], one["dense"])

"""Workers that die in the middle of a switch, on a cluster of threads: it is completed, or the run stays as it was."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ModelConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.event_log import InfoRecord, read
from gbactl.errors import PeerGoneError
from gbactl.wire.messages import Event, PutDense
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import Placements
from tests.support import small_data
from tests.support.memory_cluster import Killed
from tests.support.thread_cluster import ThreadCluster, clustered


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 900)


@pytest.fixture
def cluster(cluster: ThreadCluster) -> ThreadCluster:
    """What a dead worker had sent may be refused."""
    cluster.most_refused = math.inf
    return cluster


def config(first: str, to: str, lost: str = "continue") -> RunConfig:
    entry = {"at": {"samples": 300}, "to": to, "set": {"prefetch": "rows"}}
    return clustered(
        first,
        {"lost_worker": lost},
        model=ModelConfig(dim=4, hidden=[16, 8], batch_norm=True),
        train=TrainConfig(global_batch=192, eval_batch=100),
        switch=SwitchConfig(schedule=[entry]),
    )


def dies_when_moving(monkeypatch: pytest.MonkeyPatch, victim: int) -> None:
    plain = Placements.move

    def move(self: Any, home: str, gives: bool, turn: int = 0) -> None:
        if self.now.client.index == victim:
            raise Killed
        plain(self, home, gives, turn)

    monkeypatch.setattr(Placements, "move", move)


def dies_half_way(monkeypatch: pytest.MonkeyPatch, victim: int) -> None:
    """It gives one server its slice, the other one nothing."""
    plain = WorkerClient.put_dense

    def put_dense(self: Any, message: PutDense, parts: Any) -> None:
        if self.index == victim:
            self.servers[0].send(message, parts[0].view("u1"))
            raise Killed
        plain(self, message, parts)

    monkeypatch.setattr(WorkerClient, "put_dense", put_dense)


def sums(folder: Path) -> list[str]:
    return [r.fields["model"] for r in read(folder / "events.log") if isinstance(r, InfoRecord) and "model" in r.fields]


@pytest.mark.parametrize("victim", [0, 2])
def test_who_dies_when_the_workers_take_over_leaves_the_run_where_it_was(cluster: ThreadCluster, victim: int) -> None:
    dies_when_moving(cluster.patch, victim)
    result = cluster.train(config("gba", "sync"))
    [switch] = cluster.told("switch")
    assert switch["state"] == "stayed" and "died while" in switch["why"]
    assert [p["mode"] for p in result["phases"]] == ["gba", "gba"]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", [dies_when_moving, dies_half_way])
def test_who_dies_when_the_servers_take_over_is_replaced(cluster: ThreadCluster, victim: int, how: Any) -> None:
    """Worker 0 is the one that gives."""
    how(cluster.patch, victim)
    cluster.train(config("sync", "gba"))
    [switch] = cluster.told("switch")
    assert (switch["state"], switch["first_sample"]) == ("done", 384)
    before, after = sums(cluster.folder)
    assert before == after != ""
    lost = [each["process"] for each in cluster.told("lost")]
    assert lost == ([] if how is dies_half_way and victim else [f"W{victim}"])


def test_where_nobody_may_be_lost_the_run_ends(cluster: ThreadCluster) -> None:
    dies_when_moving(cluster.patch, 1)
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        cluster.train(config("gba", "sync", "end"))


def test_a_wish_before_anything_has_begun(cluster: ThreadCluster) -> None:
    """The first phase is in the mode that was asked for; a second wish comes too soon; a third is no mode."""
    cfg = config("gba", "bsp")
    wishes = [
        Event("switch", {"id": 1, "mode": {"name": "gba", "prefetch": "data"}}),
        Event("switch", {"id": 2, "mode": {"name": "async", "prefetch": "none"}}),
        Event("switch", {"id": 3, "mode": {"name": "bsp"}}),
        Event("switch", {"id": 4, "mode": {"name": "sync"}}),
        Event("switch", {"id": 5, "mode": 7}),
        Event("switch", {"id": 6, "mode": {"name": "gba", "sparse_divisor": "contributors"}}),
    ]
    result = cluster.train(cfg, wishes=wishes)
    assert [p["mode"] for p in result["phases"]] == ["async", "bsp"]
    assert result["mode"] == "gba>async@step0>bsp@samples300"
    said = {number: [s["state"] for s in cluster.told("switch") if s.get("id") == number] for number in range(1, 7)}
    assert said == {1: ["same"], 2: ["accepted", "done"], **{n: ["refused"] for n in (3, 4, 5, 6)}}


def test_sync_has_to_be_prepared_for(cluster: ThreadCluster) -> None:
    cfg = config("gba", "bsp")
    wish = [Event("switch", {"id": 1, "mode": {"name": "sync"}})]
    cluster.train(cfg, "a", wish)
    assert "switch.prepare=all" in cluster.told("switch")[0]["why"]
    prepared = dataclasses.replace(cfg, switch=dataclasses.replace(cfg.switch, prepare="all"))
    result = cluster.train(check(prepared), "b", wish)
    assert [p["mode"] for p in result["phases"]] == ["sync", "bsp"]

"""Workers that die in the middle of a switch, on a cluster of threads: it is completed, or the run stays as it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.event_log import InfoRecord, read
from gbactl.errors import PeerGoneError
from gbactl.wire.messages import Event, PutDense
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import Placements
from tests.support import small_data
from tests.support.memory_cluster import Killed, run_in_memory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 900)


def config(first: str, to: str, lost: str = "continue") -> RunConfig:
    entry = {"at": {"samples": 300}, "to": to, "set": {"prefetch": "rows"}}
    return check(
        RunConfig(
            mode=ModeConfig(first),
            model=ModelConfig(dim=4, hidden=[16, 8], batch_norm=True),
            cluster=ClusterConfig(workers=3, servers=2, lost_worker=lost),
            train=TrainConfig(global_batch=192, eval_batch=100),
            switch=SwitchConfig(schedule=[entry]),
            seed=5,
        )
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


def switches(events: list[Event]) -> list[dict[str, Any]]:
    return [event.fields for event in events if event.name == "switch"]


def sums(folder: Path) -> list[str]:
    return [r.fields["model"] for r in read(folder / "events.log") if isinstance(r, InfoRecord) and "model" in r.fields]


def adds_up(result: dict[str, Any]) -> None:
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"] == 900


@pytest.mark.parametrize("victim", [0, 2])
def test_who_dies_when_the_workers_take_over_leaves_the_run_where_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    dies_when_moving(monkeypatch, victim)
    events: list[Event] = []
    result = run_in_memory(config("gba", "sync"), data, tmp_path, events=events)
    [switch] = switches(events)
    assert switch["state"] == "stayed" and "died while" in switch["why"]
    assert [p["mode"] for p in result["phases"]] == ["gba", "gba"]
    adds_up(result)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", [dies_when_moving, dies_half_way])
def test_who_dies_when_the_servers_take_over_is_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, how: Any
) -> None:
    """Worker 0 is the one that gives."""
    how(monkeypatch, victim)
    events: list[Event] = []
    result = run_in_memory(config("sync", "gba"), data, tmp_path, events=events)
    [switch] = switches(events)
    assert (switch["state"], switch["first_sample"]) == ("done", 384)
    before, after = sums(tmp_path)
    assert before == after != ""
    adds_up(result)
    lost = [event.fields["process"] for event in events if event.name == "lost"]
    assert lost == ([] if how is dies_half_way and victim else [f"W{victim}"])


def test_where_nobody_may_be_lost_the_run_ends(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_when_moving(monkeypatch, 1)
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        run_in_memory(config("gba", "sync", "end"), data, tmp_path)


def test_a_wish_before_anything_has_begun(data: Path, tmp_path: Path) -> None:
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
    events: list[Event] = []
    result = run_in_memory(cfg, data, tmp_path, wishes, events)
    assert [p["mode"] for p in result["phases"]] == ["async", "bsp"]
    assert result["mode"] == "gba>async@step0>bsp@samples300"
    said = {number: [s["state"] for s in switches(events) if s.get("id") == number] for number in range(1, 7)}
    assert said == {1: ["same"], 2: ["accepted", "done"], **{n: ["refused"] for n in (3, 4, 5, 6)}}


def test_sync_has_to_be_prepared_for(data: Path, tmp_path: Path) -> None:
    cfg = config("gba", "bsp")
    wish = [Event("switch", {"id": 1, "mode": {"name": "sync"}})]
    events: list[Event] = []
    run_in_memory(cfg, data, tmp_path / "a", wish, events)
    assert "switch.prepare=all" in switches(events)[0]["why"]
    prepared = dataclasses.replace(cfg, switch=dataclasses.replace(cfg.switch, prepare="all"))
    result = run_in_memory(check(prepared), data, tmp_path / "b", wish)
    assert [p["mode"] for p in result["phases"]] == ["sync", "bsp"]

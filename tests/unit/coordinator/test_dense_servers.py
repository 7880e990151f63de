"""Clusters of threads in which some servers hold rows alone: they are never asked for the dense part, and nothing else
changes: bits, switches, checkpoints, servers that die."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import (
    CheckpointConfig,
    ClusterConfig,
    CollectiveConfig,
    ModeConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SwitchConfig,
    TrainConfig,
    check,
    from_dict,
)
from gbactl.coordinator.event_log import InfoRecord, read
from gbactl.coordinator.state import config_at
from gbactl.server.shard_server import Server
from gbactl.wire.messages import KIND, AddReplica, EasgdUpdate, Event, GetDense, Inspect, OrderStep, Push, PutDense
from tests.support.deaths import Victim
from tests.support.memory_cluster import run_in_memory
from tests.support.modes import CENTRED, EVERY, REPLICAS, every_k
from tests.support.small_data import prepared

SAMPLES = 1500
OF_DENSE = {KIND[kind]: kind for kind in (EasgdUpdate, GetDense, AddReplica, PutDense)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("cache"), SAMPLES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, type[Any]]]:
    """(server, kind) of what is said of the dense part alone."""
    seen: Counter[tuple[int, type[Any]]] = Counter()
    plain = Server.handle

    def handle(this: Any, channel: Any, frame: Any) -> None:
        if frame.kind in OF_DENSE:
            seen[this.index, OF_DENSE[frame.kind]] += 1
        plain(this, channel, frame)

    monkeypatch.setattr(Server, "handle", handle)
    return seen


def config(
    mode: str, dense: int | None = 1, *, servers: int = 3, prefetch: str = "rows", save: str = "none", every: int = 3,
    switches: list[dict[str, Any]] | None = None, **options: Any,
) -> RunConfig:  # fmt: skip
    return check(
        RunConfig(
            mode=ModeConfig(mode, 32, prefetch, options=options),
            model=ModelConfig(dim=4, hidden=[8], dropout=0.2, batch_norm=True),
            cluster=ClusterConfig(workers=3, servers=servers, dense_servers=dense),
            collective=CollectiveConfig(name="shm"),
            train=TrainConfig(global_batch=96, eval_batch=200),
            optim=OptimConfig(lr=0.01),
            checkpoint=CheckpointConfig(name=save, interval_steps=every, mb_per_second=0, keep=99),
            switch=SwitchConfig(schedule=switches or []),
            seed=5,
        )
    )


def adds_up(result: dict[str, Any]) -> None:
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == SAMPLES
    assert result["refused_frames"] == 0


def entry(samples: int, to: str, **values: Any) -> dict[str, Any]:
    return {"at": {"samples": samples}, "to": to, "set": {"local_batch": 32, **values}}


def bytes_of(result: dict[str, Any], kind: str) -> list[int]:
    return [result["memory"][f"S{shard}"][kind] for shard in range(3)]


@pytest.mark.quick(5)
@pytest.mark.parametrize("dense", [1, 2])
@pytest.mark.parametrize("mode", EVERY)
def test_those_that_hold_rows_alone_hear_nothing_of_the_dense_part(
    data: Path, tmp_path: Path, asked: Counter[tuple[int, type[Any]]], mode: str, dense: int
) -> None:
    result = run_in_memory(config(mode, dense, **every_k(mode)), data, tmp_path)
    adds_up(result)
    sizes = bytes_of(result, "dense")
    assert all(sizes[:dense]) and not any(sizes[dense:]) and max(sizes[:dense]) - min(sizes[:dense]) <= 4
    assert all(bytes_of(result, "table")) and result["auc"] > 0.5
    assert {shard for shard, _ in asked} <= set(range(dense))
    expected = {kind for kind, modes in ((EasgdUpdate, CENTRED), (AddReplica, REPLICAS)) if mode in modes}
    assert {kind for _, kind in asked} >= expected


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_any_number_of_them_gives_the_same_bits(data: Path, tmp_path: Path, lock_step: None, mode: str) -> None:
    runs = [run_in_memory(config(mode, n, prefetch="none"), data, tmp_path / str(n)) for n in (1, 2, None)]
    assert len({run["checksums"]["model"] for run in runs}) == 1 and runs[0]["checksums"]["model"]
    assert len({run["auc"] for run in runs}) == 1


def test_through_switches_the_bits_and_the_optimizers_steps_are_the_same(
    data: Path, tmp_path: Path, lock_step: None
) -> None:
    """Adam's next step depends on how many there were: a count from a server without a slice would be wrong."""
    switches = [
        entry(384, "gba", prefetch="none"),
        entry(768, "sync", prefetch="none"),
        entry(1152, "async", prefetch="none"),
    ]
    found = []
    for dense in (1, 2, None):
        cfg = config("sync", dense, prefetch="none", switches=switches)
        result = run_in_memory(cfg, data, tmp_path / str(dense))
        adds_up(result)
        assert [phase["mode"] for phase in result["phases"]] == ["sync", "gba", "sync", "async"]
        found.append((result["checksums"]["model"], result["auc"]))
    assert len(set(found)) == 1


def test_from_sync_to_gba_to_replicas_and_back(
    data: Path, tmp_path: Path, asked: Counter[tuple[int, type[Any]]]
) -> None:
    switches = [entry(384, "gba"), entry(768, "shadow_easgd"), entry(1152, "sync")]
    events: list[Event] = []
    result = run_in_memory(config("sync", switches=switches), data, tmp_path, events=events)
    adds_up(result)
    assert [e.fields["state"] for e in events if e.name == "switch"] == ["done"] * 3
    found = [r.fields for r in read(tmp_path / "events.log") if isinstance(r, InfoRecord) and "when" in r.fields]
    drained = [each["model"] for each in found if each["when"] == "drained"]
    assert drained == [each["model"] for each in found if each["when"] == "resumed"] and len(set(drained)) == 3
    assert {shard for shard, _ in asked} == {0}
    assert {kind for _, kind in asked} == {EasgdUpdate, GetDense, AddReplica, PutDense}


# -- servers that die -------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(("kind", "turn", "after"), [(Push, 25, True), (OrderStep, 11, True)])
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("mode", ["gba", "async", "bsp", "sync"])
def test_one_dies_and_comes_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, index: int, kind: type[Any], turn: int,
    after: bool,
) -> None:  # fmt: skip
    victim = Victim(monkeypatch, kind, turn, index, after)
    events: list[Event] = []
    result = run_in_memory(config(mode, save="cpr"), data, tmp_path, events=events)
    adds_up(result)
    assert victim.deaths == 1
    assert [event.fields["process"] for event in events if event.name == "joined"] == [f"S{index}"]
    sizes = bytes_of(result, "dense")
    assert sizes[0] and sizes[1:] == [0, 0]


@pytest.mark.parametrize("index", [0, 2])
def test_before_the_first_checkpoint_it_begins_anew(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    Victim(monkeypatch, OrderStep, 5, index)
    events: list[Event] = []
    adds_up(run_in_memory(config("async", save="cpr", every=1000), data, tmp_path, events=events))
    assert [event.fields["loaded"] for event in events if event.name == "joined"] == [-1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("first", "to", "kind", "index"),
    [
        ("gba", "sync", GetDense, 0),
        ("sync", "gba", PutDense, 0),
        ("gba", "sync", Inspect, 2),
        ("sync", "gba", Inspect, 2),
    ],
)
def test_one_dies_in_a_switch(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, to: str, kind: type[Any], index: int,
    after: bool,
) -> None:  # fmt: skip
    victim = Victim(monkeypatch, kind, 1, index, after)
    cfg = config(first, save="cpr", switches=[entry(960, to)])
    result = run_in_memory(cfg, data, tmp_path)
    adds_up(result)
    assert victim.deaths == 1 and result["phases"][-1]["mode"] == to


@pytest.mark.parametrize("index", [0, 2])
def test_everybody_goes_back(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """Of `sync`, to the bits of a run in which nobody died and all servers held some."""
    plain = run_in_memory(config("sync", None), data, tmp_path / "plain")
    Victim(monkeypatch, Push, 25, index)
    result = run_in_memory(config("sync", save="full"), data, tmp_path / "run")
    adds_up(result)
    assert result["checksums"]["model"] == plain["checksums"]["model"] and result["auc"] == plain["auc"]


# -- going on from a checkpoint ---------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(("servers", "dense"), [(2, None), (2, 1), (3, None), (4, 2)])
@pytest.mark.parametrize("save", ["full", "cpr_scar"])
def test_others_go_on_from_its_checkpoint(
    data: Path, tmp_path: Path, save: str, servers: int, dense: int | None
) -> None:
    run_in_memory(config("gba", save=save), data, tmp_path / "one")
    folder = CheckpointFolder(tmp_path / "one" / "checkpoints")
    *_, cut = folder.names()[:2]  # a busy machine may have had the time for one
    then = from_dict({**config_at(folder.verified(cut)), "resume": str(folder.path / cut)})
    cluster = dataclasses.replace(then.cluster, servers=servers, dense_servers=dense)
    result = run_in_memory(check(dataclasses.replace(then, cluster=cluster)), data, tmp_path / "two")
    adds_up(result)
    assert result["checkpoint"]["resumed_at"] == folder.chain(cut).last.step
    held = [shard for shard in range(servers) if result["memory"][f"S{shard}"]["dense"]]
    assert held == list(range(dense or servers))


@pytest.mark.parametrize(("before", "after"), [((3, 1), (2, 2)), ((2, None), (3, 1))])
def test_sync_goes_on_bit_for_bit_on_others(
    data: Path, tmp_path: Path, before: tuple[int, int | None], after: tuple[int, int | None]
) -> None:
    whole = run_in_memory(config("sync", before[1], servers=before[0], save="full"), data, tmp_path / "a")
    folder = CheckpointFolder(tmp_path / "a" / "checkpoints")
    for cut in folder.names()[:2]:
        then = from_dict({**config_at(folder.verified(cut)), "resume": str(folder.path / cut)})
        cluster = dataclasses.replace(then.cluster, servers=after[0], dense_servers=after[1])
        again = run_in_memory(check(dataclasses.replace(then, cluster=cluster)), data, tmp_path / cut)
        assert again["checksums"]["model"] == whole["checksums"]["model"] and again["auc"] == whole["auc"]

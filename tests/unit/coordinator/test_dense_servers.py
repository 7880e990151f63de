"""Clusters of threads in which some servers hold rows alone: they are never asked for the dense part, and nothing else
changes: bits, switches, checkpoints, servers that die."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from gbactl.config import (
    CheckpointConfig,
    CollectiveConfig,
    ModeConfig,
    OptimConfig,
    RunConfig,
    SwitchConfig,
    check,
    from_dict,
)
from gbactl.coordinator.event_log import InfoRecord, read
from gbactl.coordinator.state import config_at
from gbactl.server.shard_server import Server
from gbactl.wire.messages import KIND, AddReplica, EasgdUpdate, GetDense, Inspect, OrderStep, Push, PutDense
from tests.support.deaths import Victim
from tests.support.modes import CENTRED, EVERY, REPLICAS, every_k
from tests.support.thread_cluster import ThreadCluster, clustered

OF_DENSE = {KIND[kind]: kind for kind in (EasgdUpdate, GetDense, AddReplica, PutDense)}


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
    return clustered(
        ModeConfig(mode, 32, prefetch, options=options),
        {"servers": servers, "dense_servers": dense},
        collective=CollectiveConfig(name="shm"),
        optim=OptimConfig(lr=0.01),
        checkpoint=CheckpointConfig(name=save, interval_steps=every, mb_per_second=0, keep=99),
        switch=SwitchConfig(schedule=switches or []),
    )


def entry(samples: int, to: str, **values: Any) -> dict[str, Any]:
    return {"at": {"samples": samples}, "to": to, "set": {"local_batch": 32, **values}}


def bytes_of(result: dict[str, Any], kind: str) -> list[int]:
    return [result["memory"][f"S{shard}"][kind] for shard in range(3)]


@pytest.mark.quick(5)
@pytest.mark.parametrize("dense", [1, 2])
@pytest.mark.parametrize("mode", EVERY)
def test_those_that_hold_rows_alone_hear_nothing_of_the_dense_part(
    cluster: ThreadCluster, asked: Counter[tuple[int, type[Any]]], mode: str, dense: int
) -> None:
    result = cluster.train(config(mode, dense, **every_k(mode)))
    sizes = bytes_of(result, "dense")
    assert all(sizes[:dense]) and not any(sizes[dense:]) and max(sizes[:dense]) - min(sizes[:dense]) <= 4
    assert all(bytes_of(result, "table")) and result["auc"] > 0.5
    assert {shard for shard, _ in asked} <= set(range(dense))
    expected = {kind for kind, modes in ((EasgdUpdate, CENTRED), (AddReplica, REPLICAS)) if mode in modes}
    assert {kind for _, kind in asked} >= expected


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_any_number_of_them_gives_the_same_bits(cluster: ThreadCluster, lock_step: None, mode: str) -> None:
    runs = [cluster.train(config(mode, n, prefetch="none"), str(n)) for n in (1, 2, None)]
    assert len({run["checksums"]["model"] for run in runs}) == 1 and runs[0]["checksums"]["model"]
    assert len({run["auc"] for run in runs}) == 1


def test_through_switches_the_bits_and_the_optimizers_steps_are_the_same(
    cluster: ThreadCluster, lock_step: None
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
        result = cluster.train(cfg, str(dense))
        assert [phase["mode"] for phase in result["phases"]] == ["sync", "gba", "sync", "async"]
        found.append((result["checksums"]["model"], result["auc"]))
    assert len(set(found)) == 1


def test_from_sync_to_gba_to_replicas_and_back(cluster: ThreadCluster, asked: Counter[tuple[int, type[Any]]]) -> None:
    switches = [entry(384, "gba"), entry(768, "shadow_easgd"), entry(1152, "sync")]
    cluster.train(config("sync", switches=switches))
    assert [each["state"] for each in cluster.told("switch")] == ["done"] * 3
    found = [r.fields for r in read(cluster.folder / "events.log") if isinstance(r, InfoRecord) and "when" in r.fields]
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
    cluster: ThreadCluster, mode: str, index: int, kind: type[Any], turn: int, after: bool
) -> None:
    victim = Victim(cluster.patch, kind, turn, index, after)
    result = cluster.train(config(mode, save="cpr"))
    assert victim.deaths == 1
    assert [each["process"] for each in cluster.told("joined")] == [f"S{index}"]
    sizes = bytes_of(result, "dense")
    assert sizes[0] and sizes[1:] == [0, 0]


@pytest.mark.parametrize("index", [0, 2])
def test_before_the_first_checkpoint_it_begins_anew(cluster: ThreadCluster, index: int) -> None:
    Victim(cluster.patch, OrderStep, 5, index)
    cluster.train(config("async", save="cpr", every=1000))
    assert [each["loaded"] for each in cluster.told("joined")] == [-1]


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
    cluster: ThreadCluster, first: str, to: str, kind: type[Any], index: int, after: bool
) -> None:
    victim = Victim(cluster.patch, kind, 1, index, after)
    cfg = config(first, save="cpr", switches=[entry(960, to)])
    result = cluster.train(cfg)
    assert victim.deaths == 1 and result["phases"][-1]["mode"] == to


@pytest.mark.parametrize("index", [0, 2])
def test_everybody_goes_back(cluster: ThreadCluster, index: int) -> None:
    """Of `sync`, to the bits of a run in which nobody died and all servers held some."""
    plain = cluster.train(config("sync", None), "plain")
    Victim(cluster.patch, Push, 25, index)
    result = cluster.train(config("sync", save="full"), "run")
    assert result["checksums"]["model"] == plain["checksums"]["model"] and result["auc"] == plain["auc"]


# -- going on from a checkpoint ---------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(("servers", "dense"), [(2, None), (2, 1), (3, None), (4, 2)])
@pytest.mark.parametrize("save", ["full", "cpr_scar"])
def test_others_go_on_from_its_checkpoint(cluster: ThreadCluster, save: str, servers: int, dense: int | None) -> None:
    cluster.train(config("gba", save=save), "one")
    folder = cluster.checkpoints("one")
    *_, cut = folder.names()[:2]  # a busy machine may have had the time for one
    then = from_dict({**config_at(folder.verified(cut)), "resume": str(folder.path / cut)})
    nodes = dataclasses.replace(then.cluster, servers=servers, dense_servers=dense)
    result = cluster.train(check(dataclasses.replace(then, cluster=nodes)), "two")
    assert result["checkpoint"]["resumed_at"] == folder.chain(cut).last.step
    held = [shard for shard in range(servers) if result["memory"][f"S{shard}"]["dense"]]
    assert held == list(range(dense or servers))


@pytest.mark.parametrize(("before", "after"), [((3, 1), (2, 2)), ((2, None), (3, 1))])
def test_sync_goes_on_bit_for_bit_on_others(
    cluster: ThreadCluster, before: tuple[int, int | None], after: tuple[int, int | None]
) -> None:
    whole = cluster.train(config("sync", before[1], servers=before[0], save="full"), "a")
    folder = cluster.checkpoints("a")
    for cut in folder.names()[:2]:
        then = from_dict({**config_at(folder.verified(cut)), "resume": str(folder.path / cut)})
        nodes = dataclasses.replace(then.cluster, servers=after[0], dense_servers=after[1])
        again = cluster.train(check(dataclasses.replace(then, cluster=nodes)), cut)
        assert again["checksums"]["model"] == whole["checksums"]["model"] and again["auc"] == whole["auc"]

"""Servers that die or hang on a cluster of threads: others come in their place, and what that cost is counted."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder, read_manifest, write_manifest
from gbactl.checkpoint.publishing import Publication
from gbactl.config import (
    CheckpointConfig,
    CollectiveConfig,
    FaultsConfig,
    ModeConfig,
    RunConfig,
    SwitchConfig,
    TrainConfig,
    check,
)
from gbactl.coordinator import event_log
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.errors import ClusterError, EventLogError, PeerGoneError
from gbactl.replay.event_log_scan import scan
from gbactl.server import shard_server
from gbactl.server.shard_server import Server
from gbactl.wire.messages import (
    KIND,
    AdoptVersion,
    Barrier,
    BeginPhase,
    GetDense,
    Inspect,
    OrderStep,
    Pull,
    Push,
    PutDense,
    ReloadCheckpoint,
    ResetOptimizer,
    Save,
    SaveDense,
)
from gbactl.worker.client import WorkerClient
from gbactl.worker.loop import WorkerLoop
from tests.support.deaths import Orphaned, Victim, dies_when_a_server_is_lost
from tests.support.failures import logged
from tests.support.memory_cluster import Killed, run_in_memory
from tests.support.modes import SERVED, WITHOUT_REPLICAS
from tests.support.thread_cluster import ThreadCluster, clustered

SAMPLES = 1500


@pytest.fixture
def cluster(cluster: ThreadCluster) -> ThreadCluster:
    """Frames of who is gone, and its successor's first ones, may be refused."""
    cluster.most_refused = math.inf
    return cluster


def config(
    mode: str, save: str = "cpr", every: int = 3, hang: float = 10.0, servers: int = 2, **more: Any
) -> RunConfig:
    saves = CheckpointConfig(name=save, interval_steps=every, mb_per_second=0)
    nodes = {"servers": servers, "hang_seconds": hang}
    return clustered(mode, nodes, collective=CollectiveConfig(name="shm"), checkpoint=saves, **more)


def counted(result: dict[str, Any], servers: int = 2) -> dict[str, Any]:
    """The only failure of a run, a server's, whose account fits that of the whole run."""
    [failed] = result["recovery"]
    assert failed["process"][0] == "S"
    assert failed["pls"] == pytest.approx(failed["samples_undone"] / (SAMPLES * servers))
    saved = result["checkpoint"]
    assert saved["pls"] == pytest.approx(failed["pls"])
    assert failed["row_updates_undone"] <= round(saved["lost_updates"] * saved["row_updates"])
    assert 0.0 <= failed["detected_s"] <= failed["loaded_s"]
    return dict(failed)


# -- the lost server alone goes back ----------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize(("kind", "turn", "after"), [(Push, 30, False), (Push, 31, True), (OrderStep, 11, True)])
@pytest.mark.parametrize("mode", WITHOUT_REPLICAS)
def test_training_goes_on(cluster: ThreadCluster, mode: str, kind: type[Any], turn: int, after: bool) -> None:
    Victim(cluster.patch, kind, turn, after=after)
    result = cluster.train(config(mode))
    failed = counted(result)
    assert failed["failure"] == "death" and failed["useful_s"] >= failed["loaded_s"]
    assert 0 < failed["samples_undone"] < SAMPLES and failed["row_updates_undone"] > 0
    [joined] = cluster.told("joined")
    assert joined["process"] == "S0" and joined["step"] >= joined["loaded"]
    assert joined["loaded"] == -1 or joined["loaded"] % 3 == 0


def test_before_the_first_checkpoint_it_begins_anew(cluster: ThreadCluster) -> None:
    """Rows from the seed, the dense slice as it was installed."""
    Victim(cluster.patch, OrderStep, 5)
    result = cluster.train(config("async", every=1000))
    assert counted(result)["samples_undone"] >= 4 * 32
    assert cluster.told("joined")[0]["loaded"] == -1


def test_the_only_server(cluster: ThreadCluster) -> None:
    Victim(cluster.patch, Pull, 20)
    result = cluster.train(config("gba", servers=1))
    counted(result, servers=1)


@pytest.mark.parametrize("variant", ["cpr_scar", "cpr_mfu", "cpr_ssu"])
def test_rows_saved_by_priority(cluster: ThreadCluster, variant: str) -> None:
    Victim(cluster.patch, Push, 25)
    result = cluster.train(config("async", save=variant, every=16))
    assert counted(result)["row_updates_undone"] > 0


def test_it_dies_again_and_the_other_one_too(cluster: ThreadCluster) -> None:
    first = Victim(cluster.patch, Push, 12, lives=2)
    second = Victim(cluster.patch, Push, 14, index=1)
    result = cluster.train(config("gba"))
    assert (first.deaths, second.deaths) == (2, 1)
    assert sorted(failed["process"] for failed in result["recovery"]) == ["S0", "S0", "S1"]
    assert result["checkpoint"]["pls"] == pytest.approx(sum(failed["pls"] for failed in result["recovery"]))


@pytest.mark.parametrize("row_staleness", ["token", "row"])
def test_rows_with_a_staleness_of_their_own(cluster: ThreadCluster, row_staleness: str) -> None:
    Victim(cluster.patch, Push, 14, after=True)
    cfg = config("gba")
    cfg.mode = ModeConfig("gba", options={"row_staleness": row_staleness, "decay": "exp"})
    cluster.train(check(cfg))


# -- the worst moments ------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("kind", "turn"),
    [(BeginPhase, 1), (BeginPhase, 2), (Barrier, 1), (Barrier, 2), (Inspect, 1), (Inspect, 2), (Save, 2)],
)
@pytest.mark.parametrize("after", [False, True])
def test_between_phases_and_while_saving(cluster: ThreadCluster, kind: type[Any], turn: int, after: bool) -> None:
    victim = Victim(cluster.patch, kind, turn, after=after)
    result = cluster.train(config("gba"))
    assert victim.deaths == 1
    if not (after and (kind, turn) == (Inspect, 2)):  # with its last answer the run was over
        counted(result)
    assert cluster.checkpoints().newest().last.step == result["global_step"]


@pytest.mark.parametrize("save", ["cpr", "full"])
def test_while_the_end_waits_for_a_checkpoint_of_which_only_the_manifest_is_missing(
    cluster: ThreadCluster, save: str
) -> None:
    begun, ending, lost = threading.Event(), threading.Event(), threading.Event()
    wait = Checkpointing._wait

    def publishes(this: Any) -> None:
        begun.set()
        assert lost.wait(30.0)

    def pushes(this: Any, item: Any, *rest: Any) -> None:
        assert item.grant.batch < 20 or begun.wait(30.0), "all was trained before there was a checkpoint"

    def waits(this: Any) -> Any:
        ending.set()
        yield from wait(this)

    def handles(this: Any, channel: Any, frame: Any) -> None:
        if this.index == 0 and ending.is_set() and not lost.is_set():
            raise Killed

    cluster.before(Publication, "_close", publishes)
    cluster.before(WorkerClient, "push", pushes)
    cluster.patch.setattr(Checkpointing, "_wait", waits)
    cluster.before(Server, "handle", handles)
    cluster.before(Checkpointing, "on_server_failure", lambda *_: lost.set())
    result = cluster.train(config("gba", save))
    assert [failed["process"] for failed in result["recovery"]] == ["S0"]
    assert cluster.checkpoints().newest().last.step == result["global_step"]


def test_a_worker_dies_when_it_is_asked_for_the_last_dense_parameters(cluster: ThreadCluster) -> None:
    """Another one, which holds the same, is asked for them."""
    died = list[int]()

    def answers(this: Any, question: Any) -> None:
        if isinstance(question, SaveDense) and not question.step and not died:
            died.append(this.client.index)
            this.client.hub.close()
            raise Killed

    cluster.before(WorkerLoop, "_answer", answers)
    result = cluster.train(config("sync"))
    assert died == [0] and [failed["process"] for failed in result["recovery"]] == ["W0"]
    assert cluster.checkpoints().newest().last.step == result["global_step"]


def test_in_an_evaluation(cluster: ThreadCluster) -> None:
    """Pulls are asked again of whoever comes; every prediction is there once."""
    died = [0]

    def handle(this: Any, channel: Any, frame: Any) -> None:
        evaluating = this.index == 1 and this.phase == 2 and frame.kind == KIND[Pull]
        died[0] += evaluating
        if evaluating and died[0] == 3:
            raise Killed

    cluster.before(Server, "handle", handle)
    result = cluster.train(config("bsp"))
    assert counted(result)["process"] == "S1" and 0.4 < result["auc"] < 1.0


@pytest.mark.quick(3)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("first", "to", "kind"), [("gba", "sync", GetDense), ("sync", "gba", PutDense), ("gba", "sync", Inspect)]
)
def test_in_a_switch(cluster: ThreadCluster, first: str, to: str, kind: type[Any], after: bool) -> None:
    victim = Victim(cluster.patch, kind, 1, after=after)
    cfg = config(first, switch=SwitchConfig(schedule=[{"at": {"samples": 960}, "to": to}]))
    result = cluster.train(cfg)
    modes = [phase["mode"] for phase in result["phases"]]
    assert victim.deaths == 1 and modes[-1] == to and len(modes) <= 3


def test_a_worker_dies_while_a_server_is_away(cluster: ThreadCluster) -> None:
    """The new server learns to whom its door is closed, the new worker where the new server is."""
    Victim(cluster.patch, Push, 14)
    dies_when_a_server_is_lost(cluster.patch, 2)
    result = cluster.train(config("gba"))
    assert sorted(failed["process"] for failed in result["recovery"]) == ["S0", "W2"]


def test_in_a_storm(cluster: ThreadCluster) -> None:
    storm = {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
    seen = [0]

    def push(this: Any, *args: Any) -> None:
        seen[0] += this.index == 0
        if seen[0] == 14:
            seen[0] += 1
            raise Killed

    cluster.before(Server, "_push", push)
    result = cluster.train(config("gba", faults=FaultsConfig(plans=[storm])))
    counted(result)
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_damaged_or_foreign_checkpoint_costs_more(cluster: ThreadCluster, foreign: bool) -> None:
    """The one before it is used, and what lies between is counted."""
    died: list[int] = []

    def handles(this: Any, channel: Any, frame: Any) -> None:
        if this.index == 0 and frame.kind == KIND[Push] and not died and this.shard.version > 18:
            time.sleep(0.1)  # until two are complete, with other work on the machine too
            if len(cluster.checkpoints().names()) > 1:
                died.append(1)
                raise Killed

    cluster.before(Server, "handle", handles)
    plain = shard_server.load_last

    def load_last(shard: Any, folder: CheckpointFolder, resumed: Path | None) -> int:
        newest = folder.path / folder.names()[-1]
        if foreign:
            write_manifest(newest, dataclasses.replace(read_manifest(newest), identity="of another seed"))
            return plain(shard, folder, resumed)
        (path,) = newest.glob("S0.*")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        return plain(shard, folder, resumed)

    cluster.patch.setattr("gbactl.nodes.role_setup.load_last", load_last)
    result = cluster.train(config("async", every=8))
    saved = [fields["step"] for fields in cluster.told("checkpoint") if fields["state"] == "saved"]
    [joined] = cluster.told("joined")
    before = sorted(step for step in saved if step <= joined["step"])
    assert joined["loaded"] == before[-2]
    assert counted(result)["samples_undone"] >= 8 * 32


def test_without_checkpoints_the_run_ends(cluster: ThreadCluster) -> None:
    Victim(cluster.patch, Push, 5)
    with pytest.raises(PeerGoneError, match=r"S0 is gone|lost its connection to S0"):
        cluster.train(config("gba", save="none"))


def test_such_a_run_cannot_be_replayed(cluster: ThreadCluster) -> None:
    Victim(cluster.patch, Push, 14)
    cluster.train(config("gba"))
    kinds = [record.fields["state"] for record in event_log.read(cluster.folder / "events.log")
             if isinstance(record, event_log.InfoRecord) and record.kind == event_log.SERVER]  # fmt: skip
    assert kinds == ["lost", "back"]
    with pytest.raises(EventLogError, match=r"a server was lost \(S0, step \d+\); such a run cannot be replayed"):
        scan(cluster.folder / "events.log")


# -- everybody goes back ----------------------------------------------------------------------------

NORMS = TrainConfig(global_batch=96, eval_batch=200, norms_every=1)


def norms(folder: Path) -> list[dict[str, Any]]:
    """Lines of norms.jsonl, the norms of rows in an order that does not depend on the servers' speed."""
    lines = map(json.loads, (folder / "norms.jsonl").read_text().splitlines())
    return [{**line, "rows": sorted(line["rows"])} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return {**run_in_memory(config("sync", save="full", train=NORMS), data, folder), "norms": norms(folder)}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("kind", "turn", "after", "every"),
    [
        (Push, 25, False, 3), (OrderStep, 8, True, 3), (OrderStep, 8, False, 3), (Push, 9, False, 1000),
        (Inspect, 1, False, 3), (Save, 2, True, 3),
    ],
)  # fmt: skip
def test_sync_ends_with_the_bits_of_a_run_in_which_nobody_died(
    cluster: ThreadCluster, undisturbed: dict[str, Any], kind: type[Any], turn: int, after: bool, every: int
) -> None:
    Victim(cluster.patch, kind, turn, after=after)
    result = cluster.train(config("sync", save="full", every=every, train=NORMS))
    assert result["checksums"]["model"] == undisturbed["checksums"]["model"] is not None
    assert (result["auc"], result["global_step"]) == (undisturbed["auc"], undisturbed["global_step"])
    [failed] = result["recovery"]
    assert (failed["samples_undone"], failed["pls"], failed["row_updates_undone"]) == (0, 0.0, 0)
    [rewound] = cluster.told("rewound")
    assert rewound["to"] == (0 if every > 100 else rewound["to"] // 3 * 3) and rewound["samples"] >= 0
    assert failed["samples_rolled_back"] == rewound["samples"]
    again = undisturbed["norms"][rewound["to"] :]
    assert not again or norms(cluster.folder)[-len(again) :] == again


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
def test_everybody_goes_back(cluster: ThreadCluster, mode: str) -> None:
    Victim(cluster.patch, Push, 25)
    result = cluster.train(config(mode, save="full"))
    [rewound] = cluster.told("rewound")
    assert rewound["samples"] > 0 and result["checkpoint"]["pls"] == 0.0
    [failed] = result["recovery"]
    assert failed["samples_rolled_back"] == rewound["samples"] and failed["useful_s"] >= failed["loaded_s"] > 0
    if mode != "hop_bw":  # which drops what comes last
        assert result["global_step"] >= -(-SAMPLES // 96)


@pytest.mark.parametrize(("kind", "turn"), [(ReloadCheckpoint, 1), (Pull, 3)])
def test_who_dies_on_the_way_back(
    cluster: ThreadCluster, undisturbed: dict[str, Any], kind: type[Any], turn: int
) -> None:
    first = Victim(cluster.patch, Push, 25)
    died = [0]

    def handle(this: Any, channel: Any, frame: Any) -> None:
        due = this.index == 1 and first.deaths and frame.kind == KIND[kind]
        died[0] += bool(due)
        if due and died[0] == turn:
            raise Killed

    cluster.before(Server, "handle", handle)
    result = cluster.train(config("sync", save="full"))
    again = sum(rewound["samples"] for rewound in cluster.told("rewound"))
    assert 0 < again == result["samples"]["rolled_back"], "once, however many servers were lost"
    assert again == sum(failed["samples_rolled_back"] for failed in result["recovery"])
    assert died[0] >= turn and result["checksums"]["model"] == undisturbed["checksums"]["model"]


# -- hanging ----------------------------------------------------------------------------------------


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[Any]]]:
    """Server 0 stands still from its 14th push on, until the event is set; the list has it from then on."""
    awake, over, plain, pushes, who = threading.Event(), threading.Event(), Server.handle, [0], []

    def handle(this: Any, channel: Any, frame: Any) -> None:
        pushes[0] += this.index == 0 and frame.kind == KIND[Push]
        if pushes[0] == 14 and not who:
            who.append(this)
        if this in who:
            awake.wait(12)
            if over.is_set():  # else it would go on in the next test
                raise Killed
        plain(this, channel, frame)

    monkeypatch.setattr(Server, "handle", handle)
    yield awake, who
    over.set()
    awake.set()


def test_who_hangs_is_missed_and_ends_when_it_wakes_up(
    cluster: ThreadCluster, hung: tuple[threading.Event, list[Any]]
) -> None:
    awake, who = hung
    cluster.after(Server, "_adopt", lambda *_: awake.set())
    result = cluster.train(config("gba", hang=0.4))
    assert counted(result)["failure"] == "hang"
    assert counted(result)["detected_s"] > 0.2, "since it was heard of last: two beats of four before the patience ends"
    assert who[0].stopped and who[0].shard.version < result["global_step"]


def test_who_hangs_where_nobody_may_ends_the_run(
    cluster: ThreadCluster, hung: tuple[threading.Event, list[Any]]
) -> None:
    with pytest.raises(ClusterError, match=r"S0 has not answered for 0\.4 s .* type checkpoint=cpr"):
        cluster.train(config("gba", save="none", hang=0.4))


# -- and the coordinator ----------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("mode", ["gba", "async", "hop_bw", "sync"])
@pytest.mark.parametrize("later", [1, 3, 8, 40])
def test_the_coordinator_is_killed_soon_after_a_server_came_back(cluster: ThreadCluster, mode: str, later: int) -> None:
    """Within the same phase: some workers know where the shard is now, others do not."""
    Victim(cluster.patch, Push, 12)
    orphaned = Orphaned(cluster.patch, AdoptVersion, later)
    result = cluster.train(config(mode))
    assert (orphaned.deaths, {failed["process"] for failed in result["recovery"]}) == (1, {"C", "S0"})
    assert all(failed["useful_s"] is not None for failed in result["recovery"])
    assert result["refused_frames"] == 0 and result["gradients"]["applied"] <= SAMPLES // 32 + 1
    logged(cluster.folder, result)


def test_the_coordinator_is_killed_and_then_a_server(cluster: ThreadCluster) -> None:
    """What waits on the shards was announced to the coordinator before."""
    Victim(cluster.patch, OrderStep, 9)
    orphaned = Orphaned(cluster.patch, OrderStep, 40)
    result = cluster.train(config("gba"))
    assert orphaned.deaths == 1 and {failed["process"] for failed in result["recovery"]} == {"C", "S0"}


@pytest.mark.parametrize("save", ["cpr", "full"])
def test_who_loses_the_coordinator_before_a_server_is_back_ends(cluster: ThreadCluster, save: str) -> None:
    Victim(cluster.patch, Push, 12)
    Orphaned(cluster.patch, AdoptVersion, 0 if save == "cpr" else 4)
    said = "The coordinator failed before S0 had recovered from a failure; type resume="
    with pytest.raises(ClusterError, match=said):
        cluster.train(config("gba", save=save))


def test_behind_a_failover_a_successor_resets_the_optimizer_as_the_switch_did_that_it_does_not_know(
    cluster: ThreadCluster,
) -> None:
    reset = list[bool]()
    cluster.before(Server, "_adopt", lambda this, channel, message, *_: reset.append(message.fresh))
    Victim(cluster.patch, Push, 40)
    orphaned = Orphaned(cluster.patch, ResetOptimizer, 40)
    schedule = [{"at": {"samples": 384}, "to": "async", "fresh_optimizer": True}]
    result = cluster.train(config("gba", every=1000, switch=SwitchConfig(schedule=schedule)))
    assert orphaned.deaths == 1 and reset == [True]
    assert [phase.get("fresh_optimizer") for phase in result["phases"]] == [None, True]


def test_behind_a_failover_at_the_end_everybody_goes_back_and_trains_what_is_undone(cluster: ThreadCluster) -> None:
    """The coordinator and then a server are killed while the final checkpoint is saved."""
    saves = list[str]()

    def saves_last(this: Any) -> None:
        saves.append("last")
        if len(saves) == 1:
            raise Killed

    def saving(this: Any, *message: Any) -> None:
        if len(saves) == 2 and this.index == 1:
            saves.append("dead")
            raise Killed

    cluster.before(Checkpointing, "save_last", saves_last)
    cluster.before(Server, "_save", saving)
    result = cluster.train(config("gba", save="full"))
    assert saves == ["last", "last", "dead", "last"]
    assert [failed["process"] for failed in result["recovery"]] == ["C", "S1"]
    assert result["samples"]["rolled_back"] > 0


# -- exactness --------------------------------------------------------------------------------------


def no_mixture_was_saved(run_dir: Path) -> bool:
    """Where everybody goes back, it is to what was saved before the loss: what one server has afterwards is older."""
    told = [r.fields for r in event_log.read(run_dir / "events.log") if getattr(r, "kind", 0) == event_log.SERVER]
    lost, sound = -1, True
    for each in told:
        lost = each["step"] if each["state"] == "lost" and lost < 0 else lost
        if each["state"] == "rewound":
            sound, lost = sound and each["loaded"] <= lost, -1
    return sound


@pytest.mark.quick(2)
@pytest.mark.parametrize(("save", "every"), [("cpr", 3), ("cpr", 1000), ("cpr_mfu", 8), ("cpr_ssu", 16), ("full", 6)])
def test_every_update_is_there_or_counted_as_lost(
    cluster: ThreadCluster, shards: dict[int, Any], save: str, every: int
) -> None:
    """In async Adam counts the gradients that a row has had."""
    Victim(cluster.patch, Push, 12, lives=2)  # with 47 batches, of which each death may take six along
    Victim(cluster.patch, OrderStep, 17, index=1)
    result = cluster.train(config("async", save=save, every=every))
    saved = result["checkpoint"]
    there = sum(int(shard.rows.counts.sum()) for shard in shards.values())
    lost = sum(failed["row_updates_undone"] for failed in result["recovery"])
    assert len(result["recovery"]) == 3 and (lost > 0) == (save != "full")
    assert no_mixture_was_saved(cluster.folder)
    assert there + lost == saved["row_updates"] and saved["lost_updates"] == pytest.approx(lost / saved["row_updates"])


def test_it_is_when_saved_rows_are_rounded(cluster: ThreadCluster, shards: dict[int, Any]) -> None:
    Victim(cluster.patch, Push, 30)
    cfg = config("async", save="cpr_mfu", every=8)
    cfg.checkpoint.dtype = "bf16"
    result = cluster.train(cfg)
    [failed] = result["recovery"]
    there = sum(int(shard.rows.counts.sum()) for shard in shards.values())
    undone = failed["row_updates_undone"]
    assert there + undone == result["checkpoint"]["row_updates"] and undone > 0


@pytest.mark.quick
@pytest.mark.parametrize(("save", "every"), [("cpr", 3), ("cpr", 1000), ("cpr_mfu", 8)])
@pytest.mark.parametrize("deaths", [[1], [9], [60], [12, 40]])
def test_it_is_when_the_coordinator_dies_afterwards(
    cluster: ThreadCluster, shards: dict[int, Any], save: str, every: int, deaths: list[int]
) -> None:
    """What it had counted is in its notes, and what came behind the last of them in its log."""
    Victim(cluster.patch, Push, 8)
    Orphaned(cluster.patch, AdoptVersion, *deaths)
    result = cluster.train(config("async", save=save, every=every))
    saved, failed = result["checkpoint"], {"S0": 0, "C": 0}
    there = sum(int(shard.rows.counts.sum()) for shard in shards.values())
    lost = 0
    for each in result["recovery"]:
        failed[each["process"]] += 1
        lost += each["row_updates_undone"]
    assert failed == {"S0": 1, "C": len(deaths)} and lost > 0
    assert there + lost == saved["row_updates"] and saved["lost_updates"] == pytest.approx(lost / saved["row_updates"])
    assert saved["pls"] == pytest.approx(sum(each["pls"] for each in result["recovery"])) != 0


@pytest.mark.parametrize("every", [4, 1000])
def test_samples_are_lost_since_the_checkpoint_and_in_flight(cluster: ThreadCluster, every: int) -> None:
    Victim(cluster.patch, Push, 30)
    result = cluster.train(config("async", every=every))
    [gone], [joined] = cluster.told("lost"), cluster.told("joined")
    in_flight = counted(result)["samples_undone"] - 32 * (gone["step"] - max(0, joined["loaded"]))
    assert in_flight % 32 == 0 and 0 <= in_flight <= 3 * 2 * 32


@pytest.mark.parametrize("save", ["cpr", "full"])
def test_a_run_that_goes_on_from_a_checkpoint_comes_back_to_it(cluster: ThreadCluster, save: str) -> None:
    """As long as it has none of its own."""
    before, steps = config("gba", save="full", every=5), 16
    before.checkpoint.keep = 10
    while steps > 10:  # a first checkpoint that takes as long as the run leaves nothing to train
        shutil.rmtree(cluster.folder / "first", ignore_errors=True)
        cluster.train(before, "first")
        folder = cluster.checkpoints("first")
        cut = folder.path / folder.names()[0]
        steps = folder.verified(cut.name).last.step
    Victim(cluster.patch, Push, 9)
    cfg = config("gba", save=save, every=1000, resume=str(cut))
    result = cluster.train(cfg, "second")
    step = result["checkpoint"]["resumed_at"]
    assert [joined["loaded"] for joined in cluster.told("joined")] == [step] and step > 0
    assert [rewound["to"] for rewound in cluster.told("rewound")] == ([step] if save == "full" else [])

"""The coordinator dies on a cluster of threads, at any message: another one goes on, and the run replays to the bit."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import CheckpointConfig, ClusterConfig, FaultsConfig, ModeConfig, RunConfig, SwitchConfig
from gbactl.coordinator import event_log, run_context
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.event_log import InfoRecord
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.coordinator.run_context import RunContext
from gbactl.coordinator.state import OVER, FailureRecords, JournalState, writes_journal
from gbactl.data.cache import prepare
from gbactl.replay.replay_command import replay, sentence
from gbactl.wire.messages import Barrier, BeginPhase, DropSlice, Fence, Granted, OrderStep
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import ReplicatedDense
from tests.support.deaths import Death, DyingWorker
from tests.support.failures import logged
from tests.support.in_memory import MemoryChannel
from tests.support.memory_cluster import Killed
from tests.support.modes import SERVED
from tests.support.recorded import config, record, splits
from tests.support.thread_cluster import ThreadCluster

ROWS, BATCHES = 730, 46


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return splits(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture
def cluster(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThreadCluster:
    """What was sent to a dead coordinator may be refused by another one."""
    return ThreadCluster(prepare(data), tmp_path, monkeypatch, most_refused=math.inf)


def went_well(result: dict[str, Any], folder: Path, deaths: int = 1) -> None:
    gradients = result["gradients"]
    assert sum(gradients.values()) == 2 * BATCHES
    assert sum(result["staleness_histogram"].values()) == gradients["applied"] + gradients["decayed"]
    assert len(result["phases"]) >= 2 and all("auc" in phase for phase in result["phases"][-1:])
    assert result["time"]["since_second"] == 0.0
    assert all(phase["seconds"] > 0 for phase in result["phases"] if phase["samples"]), "the clock outlives it"
    mine = [failed for failed in result["recovery"] if failed["process"] == "C"]
    assert len(mine) == deaths
    assert all((each["failure"], each["samples_undone"], each["pls"]) == ("death", 0, 0.0) for each in mine)
    assert all(0.0 <= each["detected_s"] <= each["loaded_s"] for each in mine)
    verdict = replay(folder)
    assert verdict["identical"], sentence(verdict)
    assert verdict["gradients"] + verdict["dropped"] == 2 * BATCHES and verdict["steps"] == result["global_step"]


@pytest.mark.quick(4)
@pytest.mark.parametrize("turn", [1, 9, 30, 58, 97, 150])
@pytest.mark.parametrize("mode", SERVED)
def test_it_dies_at_any_message(data: dict[str, Any], cluster: ThreadCluster, mode: str, turn: int) -> None:
    cluster.patch.setattr(run_context, "TIMES_SECONDS", 0.0)  # saved with each report of progress
    death = Death(cluster.patch, cluster.folder, turn + SERVED.index(mode))
    result = cluster.train(config(mode, data))
    assert death.deaths == 1
    went_well(result, cluster.folder)
    times = result["time"]["processes"]
    known = sum(told["batches"] for name, told in times.items() if name[0] == "W")
    assert 2 * BATCHES - 20 < known <= 2 * BATCHES, "those announced since the last save are not known"


@pytest.fixture(scope="module")
def undisturbed(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(sync_of(data), tmp_path_factory.mktemp("undisturbed"))


def sync_of(data: dict[str, Any]) -> RunConfig:
    cfg = config("sync", data)
    cfg.collective.name = "shm"
    return cfg


@pytest.mark.quick(3)
@pytest.mark.parametrize("turn", [1, 7, 33, 61, 105, 140])
def test_sync_has_the_bits_of_a_run_in_which_it_lived(
    data: dict[str, Any], cluster: ThreadCluster, undisturbed: dict[str, Any], turn: int
) -> None:
    death = Death(cluster.patch, cluster.folder, turn)
    result = cluster.train(sync_of(data))
    assert death.deaths == 1
    went_well(result, cluster.folder)
    assert result["checksums"]["model"] == undisturbed["checksums"]["model"] is not None
    assert (result["auc"], result["global_step"]) == (undisturbed["auc"], undisturbed["global_step"])


@pytest.mark.parametrize("where", ["in flight", "in its queue"])
def test_a_worker_without_data_in_the_last_step_takes_that_step_though_the_coordinator_died_behind_it(
    data: dict[str, Any], cluster: ThreadCluster, undisturbed: dict[str, Any], where: str
) -> None:
    """Batches of no samples are announced by nobody: the phase may end before a worker has read or begun its own."""
    plain, empty, dead = MemoryChannel.send, list[Granted](), threading.Event()

    def send(this: Any, message: Any, payload: Any = None) -> None:
        if this._hub.me.role == "coordinator" and not dead.is_set():
            if empty and isinstance(message, BeginPhase) and not message.training:
                dead.set()
                raise Killed
            if isinstance(message, Granted) and not message.samples:
                empty.append(message)
                if where == "in flight":
                    return
        plain(this, message, payload)

    def later(this: Any) -> None:
        if where == "in its queue" and this.client.index >= 2 and this.steps.last_step == BATCHES // 4 - 2:
            assert dead.wait(30)
            time.sleep(0.2)

    cluster.patch.setattr(MemoryChannel, "send", send)
    cluster.before(ReplicatedDense, "_summed", later)
    result = cluster.train(sync_of(data))
    assert len(empty) == 2
    went_well(result, cluster.folder)
    assert result["checksums"]["model"] == undisturbed["checksums"]["model"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("mode", "turn"), [("sync", 40), ("sync", 48), ("sync", 56), ("sync", 64), ("gba", 50), ("gba", 58)]
)
def test_evaluations_within_a_day_are_made_once_whoever_dies(
    data: dict[str, Any], cluster: ThreadCluster, undisturbed: dict[str, Any], mode: str, turn: int
) -> None:
    cfg = sync_of(data) if mode == "sync" else config(mode, data)
    cfg.train.eval_every = 250
    death = Death(cluster.patch, cluster.folder, turn)
    result = cluster.train(cfg)
    assert death.deaths == 1
    went_well(result, cluster.folder)
    assert all("auc" in phase for phase in result["phases"]) and len(result["phases"]) >= 5
    if mode == "sync":
        assert result["checksums"]["model"] == undisturbed["checksums"]["model"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("turns", [(50,), (95,), (150,), (60, 70)])
def test_between_modes_with_a_home_of_their_own(
    data: dict[str, Any], cluster: ThreadCluster, turns: tuple[int, ...]
) -> None:
    schedule = [{"at": {"samples": 320}, "to": "gba"}, {"at": {"samples": 960}, "to": "sync"}]
    cfg = replace(sync_of(data), switch=SwitchConfig(schedule=schedule))
    death = Death(cluster.patch, cluster.folder, *turns)
    result = cluster.train(cfg)
    went_well(result, cluster.folder, deaths=death.deaths)
    assert death.deaths == len(turns)
    assert [phase["mode"] for phase in result["phases"]] == ["sync", "gba", "gba", "sync"]


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("kind", "turn", "mode"),
    [
        (BeginPhase, 2, "gba"),  # one server knows of the phase
        (BeginPhase, 5, "gba"),  # all servers and a worker do
        (Barrier, 1, "async"), (Granted, 1, "hop_bs"), (Granted, 4, "hop_bw"),
        (OrderStep, 2, "async"), (OrderStep, 24, "gba"),
        (OrderStep, 36, "bsp"),  # the day's last, partial step
        (DropSlice, 2, "hop_bw"),
    ],
)  # fmt: skip
def test_some_know_and_others_do_not(
    data: dict[str, Any], cluster: ThreadCluster, kind: Any, turn: int, mode: str
) -> None:
    death = Death(cluster.patch, cluster.folder, turn, of=kind)
    result = cluster.train(config(mode, data))
    if kind is not DropSlice or death.deaths:  # whether anything is dropped is the threads' affair
        assert death.deaths == 1
        went_well(result, cluster.folder)


@pytest.mark.parametrize("mode", ["gba", "async"])
def test_it_dies_again_and_again(data: dict[str, Any], cluster: ThreadCluster, mode: str) -> None:
    """The second one before everybody has come back, the third one soon after it goes on."""
    death = Death(cluster.patch, cluster.folder, 40, 3, 100)
    result = cluster.train(config(mode, data))
    assert death.deaths == 3
    back = [each["process"] for each in cluster.told("joined")]
    assert back == ["C"] * len(back) and 1 <= len(back) <= 2
    went_well(result, cluster.folder, deaths=len(back))


@pytest.mark.parametrize("split", [0, 1])
def test_an_evaluation_begins_anew(data: dict[str, Any], cluster: ThreadCluster, split: int) -> None:
    """Of the validation data, or of the test data when that is done: the scores are those of the same parameters."""
    calls = [0]

    def grant(this: Any, worker: int) -> None:
        calls[0] += this.evaluation is not None and this.record.round == 1 and this.evaluation._leases != {}
        if calls[0] == 1 + 5 * split:
            calls[0] = -1000
            raise Killed

    cluster.after(RunContext, "_take_evaluation", grant)
    result = cluster.train(config("gba", data))
    assert calls[0] < 0
    went_well(result, cluster.folder)


def test_a_worker_dies_with_it(data: dict[str, Any], cluster: ThreadCluster) -> None:
    """One server has closed its door to the worker, the others have not heard of it."""
    pushes = [0]

    def push(this: Any, item: Any, *rest: Any) -> None:
        if this.index == 1 and pushes[0] >= 0:
            pushes[0] += 1
            if pushes[0] == 4:
                pushes[0] = -1
                raise Killed

    cluster.before(WorkerClient, "push", push)
    death = Death(cluster.patch, cluster.folder, 2, of=Fence)
    cfg = config("gba", data)
    cfg.cluster.hang_seconds = 1.0
    result = cluster.train(cfg)
    assert death.deaths == 1
    went_well(result, cluster.folder)
    assert {failed["process"] for failed in result["recovery"]} == {"C", "W1"}
    logged(cluster.folder, result)


def test_what_one_has_logged_of_failures_another_does_not_log_again(
    data: dict[str, Any], cluster: ThreadCluster
) -> None:
    """It dies when all is in the log but its end."""
    DyingWorker(cluster.patch, 1, 4, "before")
    deaths = list[str]()

    def event(this: Any, name: str, fields: dict[str, Any]) -> None:
        if name == "result" and not deaths:
            deaths.append(name)
            raise Killed

    cluster.before(RunContext, "send_event", event)
    cfg = config("gba", data)
    cfg.cluster.lost_worker = "continue"
    result = cluster.train(cfg)
    assert deaths
    went_well(result, cluster.folder)
    assert [each["process"] for each in logged(cluster.folder, result)] == ["W1", "C"]


def test_the_last_checkpoint_is_that_of_the_last_round_whoever_saves_it(
    data: dict[str, Any], cluster: ThreadCluster
) -> None:
    """It dies when all is trained; the one that goes on has been asked to stop meanwhile."""
    dead = list[int]()

    def save(this: Any) -> None:
        if not dead:
            dead.append(1)
            raise Killed
        this.stop(30.0)

    cluster.before(Checkpointing, "save_last", save)
    cfg = config("gba", data)
    cfg.checkpoint = CheckpointConfig("cpr")
    result = cluster.train(cfg)
    went_well(result, cluster.folder)
    last = cluster.checkpoints().newest().last
    assert (last.position["ended"], last.position["label"]) == (True, "epoch 1")
    assert [each["state"] for each in cluster.told("stop")] == ["saved"]
    progress = cluster.told("progress")[-1]
    assert (progress["label"], progress["round"], progress["round_finished"]) == ("epoch 1", 1, ROWS)


def test_within_a_day_that_switches(data: dict[str, Any], cluster: ThreadCluster) -> None:
    schedule = [{"at": {"samples": 400}, "to": "async"}, {"at": {"samples": 900}, "to": "gba"}]
    cfg = replace(config("gba", data), switch=SwitchConfig(schedule=schedule))
    Death(cluster.patch, cluster.folder, 70, 80)
    result = cluster.train(cfg)
    went_well(result, cluster.folder, deaths=2)
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "async", "async", "gba"]
    switched = [each["to"] for each in cluster.told("switch") if each["state"] == "done"]
    assert list(dict.fromkeys(switched)) == ["async", "gba"]
    assert result["mode"] == "gba>async@samples400>gba@samples900"


def test_in_a_storm(data: dict[str, Any], cluster: ThreadCluster) -> None:
    cfg = config("async", data)
    storm = {"kind": "messages", "drop": 0.05, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
    cfg.faults = FaultsConfig(plans=[storm])
    Death(cluster.patch, cluster.folder, 300)
    result = cluster.train(cfg)
    went_well(result, cluster.folder)
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES)


def test_what_a_plan_did_is_not_done_again(data: dict[str, Any], cluster: ThreadCluster) -> None:
    cfg = config("gba", data)
    cfg.faults = FaultsConfig(plans=[{"kind": "kill", "coordinator": True, "step": 4}])

    def event(this: Any, name: str, fields: dict[str, Any]) -> None:
        if name == "inject":
            raise Killed

    cluster.after(RunContext, "send_event", event)
    result = cluster.train(cfg)
    assert [each["process"] for each in cluster.told("inject")] == ["C"]
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("C", "kill")
    assert 0.0 <= failed["detected_s"] <= failed["loaded_s"] <= failed["useful_s"]


def test_the_journal_is_kept_where_another_can_go_on(data: dict[str, Any]) -> None:
    gba, ended = config("gba", data), config("gba", data)
    ended.cluster = ClusterConfig(lost_coordinator="end")
    virtual = config("gba", data)
    virtual.cluster = ClusterConfig(name="virtual")
    sync, replicas = RunConfig(), config("gba", data)
    replicas.mode = ModeConfig("shadow_easgd")
    assert [writes_journal(cfg) for cfg in (gba, sync, replicas, ended, virtual)] == [True, True, True, False, False]


def test_a_run_without_a_death_leaves_a_journal_that_is_over(data: dict[str, Any], cluster: ThreadCluster) -> None:
    """And no note in its log, but small numbers."""
    cluster.train(config("gba", data))
    found = JournalState.of(cluster.folder, 1, 0.0)
    assert found.state.standstill.position is not None
    assert (found.state.standstill.stage, found.state.standstill.position.round) == (OVER, 2)
    assert found.state.ongoing.lives.failed_workers == [] and found.state.ongoing.failures == FailureRecords()
    infos = [record for record in event_log.read(cluster.folder / "events.log") if isinstance(record, InfoRecord)]
    notes = [record for record in infos if record.kind == event_log.NOTE]
    assert notes == []

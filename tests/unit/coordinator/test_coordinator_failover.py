"""The coordinator dies on a cluster of threads, at any message: another one goes on, and the run replays to the bit."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.config import CheckpointConfig, ClusterConfig, FaultsConfig, ModeConfig, RunConfig, SwitchConfig
from gbactl.coordinator import event_log, run_context
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.event_log import InfoRecord
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.coordinator.run_context import RunContext
from gbactl.coordinator.state import OVER, FailureRecords, JournalState, writes_journal
from gbactl.replay.replay_command import replay, sentence
from gbactl.wire.messages import Barrier, BeginPhase, DropSlice, Event, Fence, Granted, OrderStep
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import ReplicatedDense
from tests.support.deaths import Death, DyingWorker
from tests.support.failures import logged
from tests.support.in_memory import MemoryChannel
from tests.support.memory_cluster import Killed
from tests.support.memory_cluster import run_in_memory as run
from tests.support.modes import SERVED
from tests.support.recorded import config, splits

ROWS, BATCHES = 730, 46


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return splits(tmp_path_factory.mktemp("data"), ROWS)


def went_well(result: dict[str, Any], folder: Path, deaths: int = 1) -> None:
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == 2 * ROWS
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


def go(cfg: RunConfig, folder: Path, **more: Any) -> dict[str, Any]:
    from gbactl.data.cache import prepare

    return run(cfg, prepare(cfg.data), folder, **more)


@pytest.mark.quick(4)
@pytest.mark.parametrize("turn", [1, 9, 30, 58, 97, 150])
@pytest.mark.parametrize("mode", SERVED)
def test_it_dies_at_any_message(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, turn: int
) -> None:
    monkeypatch.setattr(run_context, "TIMES_SECONDS", 0.0)  # saved with each report of progress
    death = Death(monkeypatch, tmp_path, turn + SERVED.index(mode))
    result = go(config(mode, data), tmp_path)
    assert death.deaths == 1
    went_well(result, tmp_path)
    times = result["time"]["processes"]
    known = sum(told["batches"] for name, told in times.items() if name[0] == "W")
    assert 2 * BATCHES - 20 < known <= 2 * BATCHES, "those announced since the last save are not known"


@pytest.fixture(scope="module")
def undisturbed(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return go(sync_of(data), tmp_path_factory.mktemp("undisturbed"))


def sync_of(data: dict[str, Any]) -> RunConfig:
    cfg = config("sync", data)
    cfg.collective.name = "shm"
    return cfg


@pytest.mark.quick(3)
@pytest.mark.parametrize("turn", [1, 7, 33, 61, 105, 140])
def test_sync_has_the_bits_of_a_run_in_which_it_lived(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], turn: int
) -> None:
    death = Death(monkeypatch, tmp_path, turn)
    result = go(sync_of(data), tmp_path)
    assert death.deaths == 1
    went_well(result, tmp_path)
    assert result["checksums"]["model"] == undisturbed["checksums"]["model"] is not None
    assert (result["auc"], result["global_step"]) == (undisturbed["auc"], undisturbed["global_step"])


@pytest.mark.parametrize("where", ["in flight", "in its queue"])
def test_a_worker_without_data_in_the_last_step_takes_that_step_though_the_coordinator_died_behind_it(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], where: str
) -> None:
    """Batches of no samples are announced by nobody: the phase may end before a worker has read or begun its own."""
    plain, summed, empty, dead = MemoryChannel.send, ReplicatedDense._summed, list[Granted](), threading.Event()

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

    def later(this: Any) -> bool:
        if where == "in its queue" and this.client.index >= 2 and this.steps.last_step == BATCHES // 4 - 2:
            assert dead.wait(30)
            time.sleep(0.2)
        return summed(this)

    monkeypatch.setattr(MemoryChannel, "send", send)
    monkeypatch.setattr(ReplicatedDense, "_summed", later)
    result = go(sync_of(data), tmp_path)
    assert len(empty) == 2
    went_well(result, tmp_path)
    assert result["checksums"]["model"] == undisturbed["checksums"]["model"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("mode", "turn"), [("sync", 40), ("sync", 48), ("sync", 56), ("sync", 64), ("gba", 50), ("gba", 58)]
)
def test_evaluations_within_a_day_are_made_once_whoever_dies(
    data: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
    mode: str,
    turn: int,
) -> None:
    cfg = sync_of(data) if mode == "sync" else config(mode, data)
    cfg.train.eval_every = 250
    death = Death(monkeypatch, tmp_path, turn)
    result = go(cfg, tmp_path)
    assert death.deaths == 1
    went_well(result, tmp_path)
    assert all("auc" in phase for phase in result["phases"]) and len(result["phases"]) >= 5
    if mode == "sync":
        assert result["checksums"]["model"] == undisturbed["checksums"]["model"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("turns", [(50,), (95,), (150,), (60, 70)])
def test_between_modes_with_a_home_of_their_own(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: tuple[int, ...]
) -> None:
    schedule = [{"at": {"samples": 320}, "to": "gba"}, {"at": {"samples": 960}, "to": "sync"}]
    cfg = replace(sync_of(data), switch=SwitchConfig(schedule=schedule))
    death = Death(monkeypatch, tmp_path, *turns)
    result = go(cfg, tmp_path)
    went_well(result, tmp_path, deaths=death.deaths)
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
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, turn: int, mode: str
) -> None:
    death = Death(monkeypatch, tmp_path, turn, of=kind)
    result = go(config(mode, data), tmp_path)
    if kind is not DropSlice or death.deaths:  # whether anything is dropped is the threads' affair
        assert death.deaths == 1
        went_well(result, tmp_path)


@pytest.mark.parametrize("mode", ["gba", "async"])
def test_it_dies_again_and_again(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The second one before everybody has come back, the third one soon after it goes on."""
    death = Death(monkeypatch, tmp_path, 40, 3, 100)
    events: list[Event] = []
    result = go(config(mode, data), tmp_path, events=events)
    assert death.deaths == 3
    back = [event.fields["process"] for event in events if event.name == "joined"]
    assert back == ["C"] * len(back) and 1 <= len(back) <= 2
    went_well(result, tmp_path, deaths=len(back))


@pytest.mark.parametrize("split", [0, 1])
def test_an_evaluation_begins_anew(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: int
) -> None:
    """Of the validation data, or of the test data when that is done: the scores are those of the same parameters."""
    plain, calls = RunContext._take_evaluation, [0]

    def grant(this: Any, worker: int) -> None:
        plain(this, worker)
        calls[0] += this.evaluation is not None and this.record.round == 1 and this.evaluation._leases != {}
        if calls[0] == 1 + 5 * split:
            calls[0] = -1000
            raise Killed

    monkeypatch.setattr(RunContext, "_take_evaluation", grant)
    result = go(config("gba", data), tmp_path)
    assert calls[0] < 0
    went_well(result, tmp_path)


def test_a_worker_dies_with_it(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server has closed its door to the worker, the others have not heard of it."""
    plain, pushes = WorkerClient.push, [0]

    def push(this: Any, item: Any, *rest: Any) -> None:
        if this.index == 1 and pushes[0] >= 0:
            pushes[0] += 1
            if pushes[0] == 4:
                pushes[0] = -1
                raise Killed
        plain(this, item, *rest)

    monkeypatch.setattr(WorkerClient, "push", push)
    death = Death(monkeypatch, tmp_path, 2, of=Fence)
    cfg = config("gba", data)
    cfg.cluster.hang_seconds = 1.0
    result = go(cfg, tmp_path)
    assert death.deaths == 1
    went_well(result, tmp_path)
    assert {failed["process"] for failed in result["recovery"]} == {"C", "W1"}
    logged(tmp_path, result)


def test_what_one_has_logged_of_failures_another_does_not_log_again(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when all is in the log but its end."""
    DyingWorker(monkeypatch, 1, 4, "before")
    plain, deaths = RunContext.send_event, list[str]()

    def event(this: Any, name: str, fields: dict[str, Any]) -> None:
        if name == "result" and not deaths:
            deaths.append(name)
            raise Killed
        plain(this, name, fields)

    monkeypatch.setattr(RunContext, "send_event", event)
    cfg = config("gba", data)
    cfg.cluster.lost_worker = "continue"
    result = go(cfg, tmp_path)
    assert deaths
    went_well(result, tmp_path)
    assert [each["process"] for each in logged(tmp_path, result)] == ["W1", "C"]


def test_the_last_checkpoint_is_that_of_the_last_round_whoever_saves_it(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when all is trained; the one that goes on has been asked to stop meanwhile."""
    plain, dead = Checkpointing.save_last, list[int]()

    def save(this: Any) -> Any:
        if not dead:
            dead.append(1)
            raise Killed
        this.stop(30.0)
        return plain(this)

    monkeypatch.setattr(Checkpointing, "save_last", save)
    cfg, events = config("gba", data), list[Event]()
    cfg.checkpoint = CheckpointConfig("cpr")
    result = go(cfg, tmp_path, events=events)
    went_well(result, tmp_path)
    last = CheckpointFolder(tmp_path / CHECKPOINTS).newest().last
    assert (last.position["ended"], last.position["label"]) == (True, "epoch 1")
    assert [event.fields["state"] for event in events if event.name == "stop"] == ["saved"]
    progress = [event.fields for event in events if event.name == "progress"][-1]
    assert (progress["label"], progress["round"], progress["round_finished"]) == ("epoch 1", 1, ROWS)


def test_within_a_day_that_switches(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = [{"at": {"samples": 400}, "to": "async"}, {"at": {"samples": 900}, "to": "gba"}]
    cfg = replace(config("gba", data), switch=SwitchConfig(schedule=schedule))
    events: list[Event] = []
    Death(monkeypatch, tmp_path, 70, 80)
    result = go(cfg, tmp_path, events=events)
    went_well(result, tmp_path, deaths=2)
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "async", "async", "gba"]
    switched = [event.fields["to"] for event in events if event.name == "switch" and event.fields["state"] == "done"]
    assert list(dict.fromkeys(switched)) == ["async", "gba"]
    assert result["mode"] == "gba>async@samples400>gba@samples900"


def test_in_a_storm(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config("async", data)
    storm = {"kind": "messages", "drop": 0.05, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
    cfg.faults = FaultsConfig(plans=[storm])
    Death(monkeypatch, tmp_path, 300)
    result = go(cfg, tmp_path)
    went_well(result, tmp_path)
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES)


def test_what_a_plan_did_is_not_done_again(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg, events = config("gba", data), list[Event]()
    cfg.faults = FaultsConfig(plans=[{"kind": "kill", "coordinator": True, "step": 4}])
    plain = RunContext.send_event

    def event(this: Any, name: str, fields: dict[str, Any]) -> None:
        plain(this, name, fields)
        if name == "inject":
            raise Killed

    monkeypatch.setattr(RunContext, "send_event", event)
    result = go(cfg, tmp_path, events=events)
    assert [event.fields["process"] for event in events if event.name == "inject"] == ["C"]
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


def test_a_run_without_a_death_leaves_a_journal_that_is_over(data: dict[str, Any], tmp_path: Path) -> None:
    """And no note in its log, but small numbers."""
    go(config("gba", data), tmp_path)
    found = JournalState.of(tmp_path, 1, 0.0)
    assert found.state.standstill.position is not None
    assert (found.state.standstill.stage, found.state.standstill.position.round) == (OVER, 2)
    assert found.state.ongoing.lives.failed_workers == [] and found.state.ongoing.failures == FailureRecords()
    infos = [record for record in event_log.read(tmp_path / "events.log") if isinstance(record, InfoRecord)]
    notes = [record for record in infos if record.kind == event_log.NOTE]
    assert notes == []

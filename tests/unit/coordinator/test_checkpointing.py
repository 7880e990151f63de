"""The coordinator's part, with servers and workers that are told what to say."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint.folder import CheckpointFolder, write_manifest
from gbactl.checkpoint.publishing import ReplicaMean
from gbactl.checkpoint.restore import dense_state
from gbactl.config import CheckpointConfig, Round, RunConfig, mode_values
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.run_record import RunRecord
from gbactl.coordinator.state import JobPosition, RunState
from gbactl.data.dataset import Schema
from gbactl.errors import CheckpointError, DivergedError
from gbactl.wire.messages import DenseSaved, Save, Saved, SaveDense, SaveReplica
from tests.support.checkpoint_files import save, shards_of


class Channel:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Cluster:
    """As much of a run as a checkpoint needs: two servers, two workers, a clock to be set."""

    def __init__(self, run_dir: Path, mode: str, **checkpoint: Any) -> None:
        self.cfg = RunConfig(checkpoint=CheckpointConfig(**{"name": "full", "interval_steps": 2, **checkpoint}))
        self.cfg.mode.name = mode
        self.cfg.cluster.name = "virtual"  # the manifest is written within the call
        self.run_dir, self.current, self.time, self.step = run_dir, self.cfg, 0.0, 0
        self.home, self.can_save, self.server_losses = self.cfg.home, True, 0
        self.hub = SimpleNamespace(now=lambda: self.time)
        schema = Schema(0, (11,))
        self.dataset = SimpleNamespace(schema=schema, meta={}, fingerprint="data")
        day = Round(0, 0, "day 0", (1,), 1)
        self.record, self.state = RunRecord(self.hub.now, 0, [(day, 1000)]), RunState()
        self.nodes = {role: {0: Channel(), 1: Channel()} for role in ("server", "worker")}
        self.members = SimpleNamespace(channels_of=lambda role: self.nodes[role], send_to_all=self._tell, settled=True)
        self.events: list[dict[str, Any]] = []
        self.evaluation, self.training, self.taking_over = None, None, False
        self.failures = SimpleNamespace(add_loss=lambda process, loss: None)
        self.log = SimpleNamespace(flush=lambda: None)
        self.log_note = self.save_times = self.send_progress = lambda: None
        self.trainers, self.centred = list[int](), False
        self.cuts = Checkpointing(self, self._gathering)  # type: ignore[arg-type]
        self.cuts.begin(1000)
        self.phase = SimpleNamespace(phase=SimpleNamespace())
        self.cuts.watch(self.phase)  # type: ignore[arg-type]

    def position(self, step: int, training: Any = None, ended: bool = False) -> JobPosition:
        return self.record.position(training, step, mode_values(self.current), 0, ended)

    def _gathering(self) -> ReplicaMean | None:
        return ReplicaMean(self.trainers, self.centred) if self.trainers else None

    def _tell(self, role: str, message: Any) -> None:
        for channel in self.nodes[role].values():
            channel.send(message)

    def send_event(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append(fields)

    def saves(self) -> list[Save]:
        return [message for message in self.nodes["server"][0].sent if isinstance(message, Save)]

    def answer(self, number: int, *shards: int, error: str = "", finite: bool = True) -> None:
        for shard in shards:
            self.cuts.on_saved(Saved(shard, number, 10, 3, {}, error, finite=finite))


def names(run_dir: Path) -> list[str]:
    return CheckpointFolder(run_dir / "checkpoints").names()


def test_a_checkpoint_exists_when_every_server_has_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba")
    for step in (1, 2, 3, 4):
        cluster.phase.on_order(step)
    assert [save.step for save in cluster.saves()] == [2], "one at a time"
    cluster.answer(1, 0, 0)
    assert names(tmp_path) == []
    cluster.answer(7, 1)  # of another time
    assert names(tmp_path) == []
    cluster.answer(1, 1)
    assert names(tmp_path) == ["cut-000001"]
    assert [event["state"] for event in cluster.events] == ["planned", "saved"]
    for fields in (cluster.events[0], cluster.cuts.summary()["checkpoint"]):
        assert (fields["interval"], fields["expected_pls"]) == (None, None), "the seconds of two steps are not known"


def test_nothing_is_saved_between_a_loss_and_everybodys_going_back(tmp_path: Path) -> None:
    """A server that has come back is older than the others until then."""
    cluster = Cluster(tmp_path, "gba")
    cluster.can_save = False
    for step in (1, 2, 3, 4):
        cluster.phase.on_order(step)
    assert cluster.saves() == []
    cluster.can_save = True
    cluster.phase.on_order(6)
    assert [save.step for save in cluster.saves()] == [6]


def test_everybody_goes_back_to_what_the_run_has_saved_itself(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba")
    cluster.phase.on_order(2)
    cluster.answer(1, 0, 1)
    own = cluster.cuts.folder.chain("cut-000001").last
    write_manifest(cluster.cuts.folder.begin(2), dataclasses.replace(own, number=2, identity="of another seed"))
    with pytest.raises(CheckpointError, match="cut-000002 is of another run"):
        cluster.cuts.folder.chain("cut-000002")


def test_by_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba", interval_steps=None, interval_seconds=10.0)
    for step, now in ((1, 9.0), (2, 10.0), (3, 11.0)):
        cluster.time = now
        cluster.phase.on_order(step)
        cluster.answer(1, 0, 1)
    assert [save.step for save in cluster.saves()] == [2]
    cluster.time = 20.0
    cluster.phase.on_order(4)
    assert [save.step for save in cluster.saves()] == [2, 4]
    for fields in (cluster.events[0], cluster.cuts.summary()["checkpoint"]):
        assert (fields["interval"], fields["expected_pls"]) == (10.0, 0.0)


def test_in_sync_a_worker_is_asked_behind_its_batch_of_that_step(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "sync")
    cluster.phase.on_grant(1, 1)
    assert not cluster.nodes["worker"][1].sent, "another one's batch"
    cluster.phase.on_grant(0, 1)
    assert cluster.nodes["worker"][0].sent == [SaveDense(1, 2)]
    cluster.phase.on_order(1)
    assert cluster.saves() == []
    cluster.phase.on_order(2)
    assert [save[:2] for save in cluster.saves()] == [(1, 2)]
    cluster.answer(1, 0, 1)
    assert names(tmp_path) == []
    cluster.cuts.on_dense(DenseSaved(1, 2, 3), np.zeros(9, np.float32), 0)
    assert names(tmp_path) == ["cut-000001"]
    assert (tmp_path / "checkpoints" / "cut-000001" / "dense.safetensors").exists()


@pytest.mark.parametrize("opened", [False, True])
def test_the_next_one_is_tried_where_the_worker_that_was_asked_dies(tmp_path: Path, opened: bool) -> None:
    cluster = Cluster(tmp_path, "sync")
    cluster.phase.on_grant(0, 1)
    if opened:
        cluster.phase.on_order(2)
        cluster.answer(1, 0, 1)
    cluster.cuts.on_worker_failure(1)
    cluster.phase.on_grant(0, 3)
    assert len(cluster.nodes["worker"][0].sent) == 1, "it waits for the one"
    del cluster.nodes["worker"][0]
    cluster.cuts.on_worker_failure(0)
    assert list((tmp_path / "checkpoints").glob("*")) == []
    cluster.phase.on_grant(1, 3)
    assert cluster.nodes["worker"][1].sent == [SaveDense(2, 4)]


def test_a_failed_part_is_told_and_the_next_one_is_whole(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba", name="cpr_mfu", share=0.5)
    cluster.phase.on_order(1)
    assert cluster.saves()[-1].kind == "chosen"
    cluster.answer(1, 0)
    cluster.answer(1, 1, error="no room")
    assert names(tmp_path) == [] and cluster.events[-1] == {"state": "failed", "step": 1, "why": "no room"}
    assert not (tmp_path / "checkpoints" / "cut-000001").exists()
    cluster.phase.on_order(2)
    assert cluster.saves()[-1].kind == "whole"


@pytest.mark.parametrize("on_divergence", ["stop", "continue"])
@pytest.mark.parametrize("of", ["rows", "dense"])
def test_one_that_is_not_finite_never_exists_nor_removes_another(tmp_path: Path, of: str, on_divergence: str) -> None:
    cluster = Cluster(tmp_path, "shadow_ma", keep=1)
    cluster.cfg.train.on_divergence = on_divergence
    cluster.trainers = [0]
    for step, value in ((2, 1.0), (4, np.nan if of == "dense" else 1.0)):
        cluster.phase.on_order(step)
        cluster.cuts.on_dense(DenseSaved(step // 2, step, 3), replica(value), 0)
        if value == value and step == 2:
            cluster.answer(1, 0, 1)
    assert names(tmp_path) == ["cut-000001"]
    error = {"rows": "S1.safetensors is not finite", "dense": ""}[of]
    stopped: Any = pytest.raises(DivergedError, match=r"or before step 4: .*safetensors is not finite.*; type a")
    with stopped if on_divergence == "stop" else nullcontext():
        cluster.answer(2, 0)
        cluster.answer(2, 1, error=error, finite=not error)
    assert names(tmp_path) == ["cut-000001"] and not (tmp_path / "checkpoints" / "cut-000002").exists()
    assert "is not finite" in cluster.events[-1]["why"]
    cluster.phase.on_order(6)
    assert cluster.saves()[-1].kind == "whole"


def test_the_way_back_is_the_newest_good_one(tmp_path: Path) -> None:
    run = tmp_path / "é (1)"
    cluster = Cluster(run, "gba")
    assert cluster.cuts.resume_hint() == ""
    cluster.phase.on_order(2)
    cluster.answer(1, 0)
    assert cluster.cuts.resume_hint() == "", "it is not all there, and will not be"
    assert not (run / "checkpoints" / "cut-000001").exists()
    shards = shards_of(2)
    save(cluster.cuts.folder.path, shards, 2, identity=cluster.cuts.folder.identity)
    shards[0].table[0, 0] = np.inf
    save(cluster.cuts.folder.path, shards, 3, identity=cluster.cuts.folder.identity)
    assert cluster.cuts.resume_hint("optim.lr=1") == (
        "The newest good checkpoint is cut-000002, of step 3; go on from it with 'gbactl train "
        f"""'resume="{run}"' optim.lr=1'."""
    )


def test_the_mode_does_not_go_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "sync")
    cluster.record.modes = "sync"
    position = cluster.position(2)
    cluster.cuts.go_back(position)
    assert (cluster.record.modes, cluster.step) == ("sync", 2)
    cluster.current, cluster.record.modes = RunConfig(), "sync>gba@step5"
    cluster.current.mode.name = "gba"
    cluster.cuts.go_back(position)
    assert cluster.record.modes == "sync>gba@step2", "as the parameters were trained"


def test_a_lost_server_ends_the_checkpoint_and_counts_what_was_lost(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba", name="cpr_ssu", share=0.5)
    cluster.phase.on_order(1)
    cluster.answer(1, 0, 1)
    cluster.phase.on_order(2)
    cluster.answer(2, 0)
    cluster.cuts.on_server_failure(1)
    assert cluster.cuts.unsaved.count_lost(1, 500).pls == pytest.approx(500 / (2 * 1000))
    assert names(tmp_path) == ["cut-000001"] and cluster.events[-1]["state"] == "failed"
    cluster.phase.on_order(3)
    assert cluster.saves()[-1].kind == "whole"
    assert cluster.cuts.summary()["checkpoint"]["pls"] == pytest.approx(0.25)


def test_a_folder_that_cannot_be_made_costs_a_checkpoint_alone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba")
    (tmp_path / "checkpoints").write_text("in the way")
    cluster.phase.on_order(2)
    assert cluster.events[-1]["state"] == "failed" and cluster.saves() == []
    (tmp_path / "checkpoints").unlink()
    cluster.phase.on_order(4)
    cluster.answer(2, 0, 1)
    assert names(tmp_path) == ["cut-000002"]


def test_a_dense_part_that_is_not_there_ends_the_checkpoint(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "sync")
    cluster.phase.on_grant(0, 1)
    cluster.phase.on_order(2)
    cluster.cuts.on_dense(DenseSaved(1, 0, -1), np.zeros(0, np.float32), 0)
    assert cluster.events[-1]["state"] == "failed"
    cluster.phase.on_grant(0, 3)
    cluster.cuts.on_dense(DenseSaved(1, 0, -1), np.zeros(0, np.float32), 0)  # of the one before
    cluster.phase.on_order(4)
    cluster.cuts.on_dense(DenseSaved(2, 4, 3), np.zeros(9, np.float32), 0)
    cluster.answer(2, 0, 1)
    assert names(tmp_path) == ["cut-000002"]


def trainers(run_dir: Path, mode: str = "shadow_ma") -> Cluster:
    """Two of them, each of three parameters with Adam's moments; a checkpoint of step 2 is under way."""
    cluster = Cluster(run_dir, mode)
    cluster.trainers, cluster.centred = [0, 1], mode == "shadow_easgd"
    cluster.phase.on_order(2)
    return cluster


def replica(value: float) -> Any:
    return np.repeat(np.array([value, 10 * value, 100 * value], np.float32), 3)


def test_trainers_are_all_asked_and_their_mean_is_saved(tmp_path: Path) -> None:
    cluster = trainers(tmp_path)
    assert [cluster.nodes["worker"][worker].sent for worker in (0, 1)] == [[SaveReplica(1)]] * 2
    assert cluster.saves() == [Save(1, 2, "cut-000001", "whole", False, cluster.saves()[0].pace)]
    cluster.cuts.on_dense(DenseSaved(1, 7, 3), replica(1.0), 0)
    cluster.cuts.on_dense(DenseSaved(1, 7, 3), replica(9.0), 0)  # twice counts once
    cluster.answer(1, 0, 1)
    assert names(tmp_path) == [], "the other trainer has not told yet"
    cluster.cuts.on_dense(DenseSaved(1, 9, 3), replica(2.0), 1)
    state = dense_state(CheckpointFolder(tmp_path / "checkpoints").chain("cut-000001"))
    assert state["value"].tolist() == [1.5] * 3 and state["step"].tolist() == [9]
    assert sorted(values[0] for name, values in state.items() if name.startswith("moment.")) == [15.0, 150.0]


def test_of_a_centre_trainers_tell_the_optimizers_state_alone(tmp_path: Path) -> None:
    cluster = trainers(tmp_path, "shadow_easgd")
    assert cluster.saves()[0].dense, "the servers save their slices"
    cluster.cuts.on_dense(DenseSaved(1, 7, 3), replica(1.0), 0)
    cluster.cuts.on_dense(DenseSaved(1, 0, -1), np.zeros(0, np.float32), 1)  # has not begun yet
    cluster.answer(1, 0, 1)
    [entry] = [
        each for each in CheckpointFolder(tmp_path / "checkpoints").chain("cut-000001").last.files if each.shard < 0
    ]
    assert set(entry.sums) - {""} == {"dense.moment.first", "dense.moment.second", "dense.step"}


def test_a_trainer_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    cluster = trainers(tmp_path)
    cluster.answer(1, 0, 1)
    cluster.cuts.on_dense(DenseSaved(1, 7, 3), replica(1.0), 0)
    cluster.cuts.on_worker_failure(1)
    assert names(tmp_path) == ["cut-000001"]


def test_without_any_replica_there_is_no_checkpoint(tmp_path: Path) -> None:
    cluster = trainers(tmp_path)
    cluster.cuts.on_worker_failure(0)
    cluster.cuts.on_dense(DenseSaved(1, 0, -1), np.zeros(0, np.float32), 1)
    cluster.answer(1, 0, 1)
    assert names(tmp_path) == [] and cluster.events[-1]["why"] == "no trainer has a replica"
    cluster.cuts.on_dense(DenseSaved(1, 7, 3), replica(1.0), 0)
    cluster.phase.on_order(4)
    assert cluster.saves()[-1].number == 2, "the next one tries again"


@pytest.mark.parametrize("mode", ["gba", "sync"])
@pytest.mark.parametrize("name", ["none", "full"])
def test_a_run_that_is_stopped_is_saved_at_its_next_step_at_full_pace(tmp_path: Path, mode: str, name: str) -> None:
    """Also without checkpoints, and instead of one that is being written slowly."""
    cluster = Cluster(tmp_path, mode, name=name)
    for step in (2, 3):
        cluster.phase.on_grant(0, step - 1)
        cluster.phase.on_order(step)
    slow = cluster.saves()
    assert [save.pace > 0 for save in slow] == [True] * (name == "full")
    cluster.cuts.stop(30.0)
    cluster.phase.on_grant(0, 4)
    cluster.phase.on_order(5)
    [save] = cluster.saves()[len(slow) :]
    assert (save.step, save.kind, save.pace) == (5, "whole", 0.0)
    cluster.answer(save.number, 0, 1)
    if mode == "sync":
        cluster.cuts.on_dense(DenseSaved(save.number, 5, 1), np.zeros(3, np.float32), 0)
    told = cluster.events[-1]
    assert (told["state"], told["name"], told["step"]) == ("saved", save.name, 5)
    assert names(tmp_path) == [save.name]
    cluster.phase.on_grant(0, 5)
    cluster.phase.on_order(6)
    assert len(cluster.saves()) == len(slow) + 1 + (name == "full"), "that was the end of it"


def test_a_run_that_ends_waits_for_the_checkpoint_of_a_stop_and_begins_no_other(tmp_path: Path) -> None:
    """It would be written to a log that is closed."""
    cluster = Cluster(tmp_path, "gba", name="none")
    cluster.cuts.stop(30.0)
    cluster.evaluation, cluster.untrained = object(), ()
    cluster.cuts.poll()
    cluster.evaluation = None
    end = cluster.cuts.end_stop()
    wait = next(end)
    assert not wait.condition()
    cluster.answer(1, 0, 1)
    assert wait.condition() and cluster.events[-1]["state"] == "saved"
    with pytest.raises(StopIteration):
        end.send(True)
    cluster.cuts.stop(30.0)
    assert list(cluster.cuts.end_stop()) == []
    cluster.phase.on_order(7)
    assert len(cluster.saves()) == 1


def test_a_stop_is_answered_in_any_case(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "gba", name="none")
    cluster.members.settled = False
    cluster.cuts.stop(30.0)
    assert cluster.events.pop() == {"state": "nothing"}
    cluster.members.settled = True
    cluster.cuts.stop(30.0)
    cluster.phase.on_order(1)
    cluster.answer(1, 0)
    cluster.answer(1, 1, error="S1.safetensors could not be written (No space left on device).")
    assert cluster.events.pop()["why"] == "S1.safetensors could not be written (No space left on device)"
    cluster.cuts.stop(0.0)
    cluster.cuts.poll()
    assert cluster.events.pop()["why"] == "it took longer than cluster.stop_seconds=0"
    assert cluster.events == [] and names(tmp_path) == []

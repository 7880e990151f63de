"""What the coordinator does when a node is lost and another one comes, as a list of what is sent, logged and told."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gbactl.checkpoint.failure_cost_counters import UnsavedWork
from gbactl.config import CheckpointConfig, RunConfig
from gbactl.coordinator.coordinator_failover import Failover
from gbactl.coordinator.event_log import SERVER
from gbactl.coordinator.event_routing import CoordinatorCore
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.run_context import NodeRequests, RunContext
from gbactl.coordinator.state import Incarnations, JournalState, PhaseState, RunState
from gbactl.coordinator.training_phase import TrainingPhase
from gbactl.errors import ClusterError
from gbactl.policies.async_and_bsp import AsyncPolicy
from gbactl.policies.gba import GbaPolicy
from gbactl.policies.policy import Grant, Phase, Policy
from gbactl.wire.auth import Peer
from gbactl.wire.messages import (
    AdoptVersion,
    Barrier,
    BeginPhase,
    CheckpointLoaded,
    Fence,
    Fenced,
    Hello,
    ServerState,
    ShardRelocated,
    Staged,
    WorkerFailed,
)

BEGUN = BeginPhase(1, True, "gba", 0, 0, 64, 8, 0, True, False, 0, [0, 64])


class Channel:
    """A connection that keeps what is sent."""

    def __init__(self, peer: Peer, out: list[Any]) -> None:
        self.peer, self._out = peer, out

    def send(self, message: Any, payload: Any = None) -> None:
        self._out.append((str(self.peer), message))

    def close(self) -> None:
        """Nothing to close."""


class Cluster:
    """Two servers and two workers of a run that has begun. `out`: what is sent, logged and told, in its order."""

    def __init__(
        self, run_dir: Path, mode: str = "gba", checkpoint: str = "cpr", journal: JournalState | None = None
    ) -> None:
        cfg = RunConfig(checkpoint=CheckpointConfig(checkpoint))
        cfg.mode.name, cfg.cluster.workers, cfg.cluster.servers, cfg.train.global_batch = mode, 2, 2, 16
        cfg.cluster.lost_worker = "continue"
        dataset = SimpleNamespace(kind="splits", splits=[SimpleNamespace(rows=64)] * 3)
        self.out: list[Any] = []
        hub = cast(Any, SimpleNamespace(now=lambda: 5.0))
        self.run = RunContext(hub, cfg, cast(Any, dataset), run_dir, {}, journal)
        self.core = CoordinatorCore(self.run)
        self.core.checkpoints.state.unsaved = UnsavedWork.begin(64, 2)
        for role in ("server", "worker"):
            for index in (0, 1):
                self.run.members.channels[role, index] = cast(Any, Channel(Peer(role, index), self.out))
        self.run.members.settled = True
        self.run.members.informed |= {0, 1}
        self.run.phase_number = 1
        self.run.log.info = self._logged  # type: ignore[method-assign]
        self.run.send_event = self._told  # type: ignore[method-assign]

    def _logged(self, kind: int, fields: dict[str, Any]) -> None:
        told = ("log", {"shard": fields["shard"], "state": fields["state"]}) if kind == SERVER else ("note",)
        self.out.append(told)

    def _told(self, name: str, fields: dict[str, Any]) -> None:
        self.out.append(("launcher", name, fields["process"]))

    def train(self, kind: type[Policy] = GbaPolicy) -> LivePhase:
        """Both workers have a batch of eight samples, if the policy grants it."""
        policy = kind(Phase(64, 8, 16, 0, (0, 1)), kind.Options())
        phase = TrainingPhase(policy, lambda finished: 1.0, self.run.record.statistics)
        self.run.training = LivePhase(1, phase, self.run.members, self.run.log, self.run.waiting, self.run.hub.now)
        self.core.checkpoints.watch(self.run.training)
        for worker in (0, 1):
            self.run.hand_out(worker)
        self.out.clear()
        return self.run.training

    def lose(self, role: str, index: int) -> Peer:
        """The connection to a node is lost."""
        channel = self.run.members.channels[role, index]
        self.run.members.forget(channel)
        return channel.peer


def test_a_lost_server_is_told_of_and_the_next_one_brought_up_before_the_workers_turn_to_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    training = cluster.train()
    run, core = cluster.run, cluster.core
    run.begin_phase = BEGUN
    core.on_staged(Staged(1, 0, 1, 0, 0.7, 0.1, 1.0, 0, -1, 3))
    cluster.lose("server", 1)
    assert core.on_server_lost(1) and not run.can_save
    assert cluster.out == [("log", {"shard": 1, "state": "lost"}), ("launcher", "lost", "S1")]
    assert list(training.policy.leased_to(0)) == [0], "its slice has to come to the next server, too"
    cluster.out.clear()
    channel = cast(Any, Channel(Peer("server", 1, 1), cluster.out))
    run.members.hello(channel, Hello("server", 1, "over there"))
    core.on_server_loaded(channel, CheckpointLoaded(1, -1))
    assert cluster.out == [
        ("S1", BEGUN),
        ("S1", AdoptVersion(0, [], False)),
        ("note",),
        ("log", {"shard": 1, "state": "back"}),
        ("W0", ShardRelocated(1, "over there", 1, [(1, 0)])),
        ("W1", ShardRelocated(1, "over there", 1, [(1, 1)])),
        ("launcher", "joined", "S1"),
    ]
    assert run.can_save and run.server_losses == 1


def test_where_everybody_goes_back_nothing_is_saved_until_that_is_done(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, checkpoint="full")
    cluster.lose("server", 0)
    assert cluster.core.on_server_lost(0)
    channel = cast(Any, Channel(Peer("server", 0, 1), cluster.out))
    cluster.run.members.hello(channel, Hello("server", 0, "over there"))
    cluster.core.on_server_loaded(channel, CheckpointLoaded(0, -1))
    assert cluster.run.rollback_pending and not cluster.run.can_save and not cluster.run.failed_servers


def test_without_checkpoints_nobody_takes_a_servers_place(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, checkpoint="none")
    cluster.lose("server", 1)
    assert not cluster.core.on_server_lost(1)
    assert cluster.out == [] and cluster.run.failures.last("S1") is not None


@pytest.mark.parametrize(("works", "replaced"), [(False, [True, True, True, False]), (True, [True] * 4)])
def test_a_server_gets_no_further_successor_after_three_that_died_without_work(
    tmp_path: Path, works: bool, replaced: list[bool]
) -> None:
    cluster = Cluster(tmp_path)
    core, members = cluster.core, cluster.run.members
    found: list[bool] = []
    for incarnation in range(1, 5):
        cluster.lose("server", 1)
        found.append(core.on_server_lost(1))
        if found[-1]:
            channel = cast(Any, Channel(Peer("server", 1, incarnation), cluster.out))
            members.hello(channel, Hello("server", 1, "over there"))
            core.on_server_loaded(channel, CheckpointLoaded(1, -1))
        if works:
            core.on_staged(Staged(1, 0, 1, 0, 0.7, 0.1, 1.0, 0, -1, 3))
    assert found == replaced


def test_a_lost_workers_batches_are_handed_out_again_once_every_server_refuses_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.train()
    assert cluster.core.on_worker_lost(cluster.lose("worker", 1))
    assert cluster.out == [
        ("S0", Fence(1, 1, [1], 0)), ("S1", Fence(1, 1, [1], 0)), ("note",), ("W0", WorkerFailed(1)),
        ("launcher", "lost", "W1"),
    ]  # fmt: skip
    cluster.out.clear()
    cluster.core.on_fenced(Fenced(0, 1))
    cluster.run.hand_out(0)
    assert [message.batch for _, message in cluster.out] == [2], "the other server may still take what W1 says"
    cluster.out.clear()
    cluster.core.on_fenced(Fenced(1, 1))
    cluster.run.hand_out(0)
    assert [(to, message.batch) for to, message in cluster.out] == [("W0", 1)]


class Refuses(AsyncPolicy):
    """A user's policy that grants no batch."""

    def take(self, worker: int) -> Grant | None:
        return None


@pytest.mark.parametrize("lost_worker", ["continue", "replace"])
def test_a_policy_that_refuses_the_workers_left_ends_the_run_unless_a_successor_comes(
    tmp_path: Path, lost_worker: Any
) -> None:
    cluster = Cluster(tmp_path)
    cluster.run.cfg.cluster.lost_worker = lost_worker
    cluster.train(Refuses).serve()
    cluster.core.on_worker_lost(cluster.lose("worker", 1))
    for shard in (0, 1):
        cluster.core.poll()  # not before every server refuses it
        cluster.core.on_fenced(Fenced(shard, 1))
    ends = pytest.raises(ClusterError, match="Refuses grants no worker a batch")
    with ends if lost_worker == "continue" else nullcontext():
        cluster.core.poll()


def test_a_servers_successor_refuses_the_workers_that_failed_before_the_coordinator_did(tmp_path: Path) -> None:
    """W0 has a successor, W1 has none."""
    lives = Incarnations(failed_workers=[1], workers={0: 1, 1: 0})
    cluster = Cluster(tmp_path, journal=JournalState(RunState(ongoing=PhaseState(lives)), [], 0))
    cluster.run.fencing.tell_successor(cast(Any, Channel(Peer("server", 1, 1), cluster.out)))
    assert cluster.out == [("S1", Fence(0, -1, [], 0)), ("S1", Fence(1, -1, [], 0))]


def test_a_failover_does_not_go_on_without_a_server_that_it_lost_while_it_waited_for_the_workers(
    tmp_path: Path,
) -> None:
    journal = JournalState(RunState(), [], 0)
    cluster = Cluster(tmp_path, journal=journal)
    run, failover = cluster.run, Failover(cluster.core, journal)
    run.members.settled, run.launcher = False, cast(Any, Channel(Peer("launcher", 0), cluster.out))
    for shard in (0, 1):
        failover.server_state(ServerState(shard, journal.term, 0, 1))
    waits = failover.gather()
    until = next(waits)
    while until.condition():
        until = waits.send(True)
    assert failover.on_lost(run.members.channels["server", 1])
    with pytest.raises(ClusterError, match="S1 did not reconnect"):
        waits.send(False)  # no worker has come either, in the time that there is for it


def test_a_failover_waits_for_no_worker_where_a_server_did_not_come(tmp_path: Path) -> None:
    journal = JournalState(RunState(), [], 0)
    cluster = Cluster(tmp_path, journal=journal)
    failover = Failover(cluster.core, journal)
    cluster.run.members.settled, cluster.run.launcher = False, cast(Any, Channel(Peer("launcher", 0), cluster.out))
    failover.server_state(ServerState(0, journal.term, 0, 1))
    waits = failover.gather()
    next(waits)
    with pytest.raises(ClusterError, match="S1 did not reconnect"):
        waits.send(False)


def test_the_last_worker_is_not_done_without(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert cluster.core.on_worker_lost(cluster.lose("worker", 0))
    assert not cluster.core.on_worker_lost(cluster.lose("worker", 1))


def test_who_takes_a_servers_place_is_asked_what_that_has_not_answered(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asked: list[bool] = []
    questions = NodeRequests(cluster.run, asked.append)
    waiting = questions.barrier(3)
    until = next(waiting)
    assert cluster.out == [("S0", Barrier(3)), ("S1", Barrier(3))] and not until.condition()
    cluster.out.clear()
    questions.on_answer(0)
    for shard in (0, 1):
        questions.repeat(cluster.run.members.channels["server", shard])
    assert cluster.out == [("S1", Barrier(3))]
    questions.on_answer(1)
    assert until.condition()
    with pytest.raises(StopIteration):
        waiting.send(True)
    questions.repeat(cluster.run.members.channels["server", 0])
    assert len(cluster.out) == 1 and asked == [False, False]

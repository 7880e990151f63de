"""Workers that die or hang on a cluster of threads: others go on, another one comes, nothing is lost or done twice."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import CollectiveConfig, FaultsConfig, ModeConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.training_phase import ApplyStep
from gbactl.errors import ClusterError, PeerGoneError
from gbactl.faults.message_faults import MessageFaultStream
from gbactl.nodes import worker_process as node
from gbactl.replay.replay_command import replay, sentence
from gbactl.server.shard_server import Server
from gbactl.wire.reliable import ReliableHub
from gbactl.worker.client import WorkerClient
from gbactl.worker.loop import WorkerLoop
from tests.support import small_data
from tests.support.deaths import DyingWorker as Victim
from tests.support.memory_cluster import Killed, run_in_memory
from tests.support.modes import SERVED
from tests.support.simulated_runs import model
from tests.support.thread_cluster import ThreadCluster, clustered


@pytest.fixture
def cluster(cluster: ThreadCluster) -> ThreadCluster:
    """Frames of who is gone, and its successor's first ones, may be refused."""
    cluster.most_refused = math.inf
    return cluster


def config(mode: str, workers: int = 3, lost: str = "replace", hang: float = 10.0, **more: Any) -> RunConfig:
    nodes = {"workers": workers, "lost_worker": lost, "hang_seconds": hang}
    return clustered(mode, nodes, collective=CollectiveConfig(name="shm"), **more)


@pytest.mark.quick
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("mode", SERVED)
def test_the_others_go_on_and_every_sample_counts_once(cluster: ThreadCluster, mode: str, when: str) -> None:
    Victim(cluster.patch, 1, 3, when)
    result = cluster.train(config(mode))
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("W1", "death") and 0.0 < failed["detected_s"] < 2.0
    assert (failed["samples_undone"], failed["pls"]) == (0, 0.0)
    assert [each["process"] for each in cluster.told("lost")] == ["W1"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
def test_the_only_worker_is_waited_for(cluster: ThreadCluster, mode: str) -> None:
    """Nobody else can finish the run, so the successor did."""
    Victim(cluster.patch, 0, 4, "before")
    options = {"backup": 0} if mode == "hop_bw" else {}
    cfg = config("async", workers=1)
    cfg.mode = ModeConfig(mode, options=options)
    result = cluster.train(check(cfg))
    assert [each["process"] for each in cluster.told("joined")] == ["W0"]
    [failed] = result["recovery"]
    assert 0.0 <= failed["detected_s"] <= failed["loaded_s"] <= failed["useful_s"]


def test_who_dies_before_it_has_joined_is_replaced_again(cluster: ThreadCluster) -> None:
    """Its connection breaks; the run still waits for somebody."""
    Victim(cluster.patch, 0, 4, "before")
    tries = []
    cluster.before(node, "warm_up", lambda *_: tries.append(1))
    cluster.train(config("gba", workers=1))
    assert len(tries) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_gets_no_further_successor_after_three_that_died_without_work(
    cluster: ThreadCluster, workers: int
) -> None:
    """The other one finishes the run; where there is none, the run ends."""
    tries, enough = list[int](), threading.Event()

    def train(self: Any, item: Any) -> None:
        if self.client.index == workers - 1:
            tries.append(1)
            if len(tries) == 4:
                enough.set()
            raise Killed
        assert enough.wait(30.0)

    cluster.before(WorkerLoop, "_train", train)
    if workers == 1:
        with pytest.raises(PeerGoneError, match=r"W0 is gone\."):
            cluster.train(config("gba", workers=1))
    else:
        cluster.train(config("gba", workers=2))
        lost = [each["replaced"] for each in cluster.told("lost")]
        assert lost == [True, True, True, False]
    assert len(tries) == 4


def test_without_replacement_those_left_finish(cluster: ThreadCluster) -> None:
    Victim(cluster.patch, 2, 2, "before")
    result = cluster.train(config("gba", lost="continue"))
    assert [each["process"] for each in cluster.told("joined")] == [] and result["recovery"][0]["loaded_s"] is None


@pytest.mark.parametrize(("mode", "lost"), [("gba", "end"), ("sync", "end")])
def test_where_nobody_may_be_lost_the_run_ends(cluster: ThreadCluster, mode: str, lost: str) -> None:
    Victim(cluster.patch, 1, 3, "before")
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        cluster.train(config(mode, lost=lost))


# -- sync -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_memory(config("sync"), data, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.quick
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("turn", [1, 3, 16])
@pytest.mark.parametrize("lost", ["continue", "replace"])
def test_sync_ends_with_the_bits_of_a_run_in_which_nobody_died(
    cluster: ThreadCluster, undisturbed: dict[str, Any], victim: int, when: str, turn: int, lost: str
) -> None:
    """The dead worker's part of the sum is there (it pushes after it): its rows came to no, one or all servers."""
    Victim(cluster.patch, victim, turn, when)
    result = cluster.train(config("sync", lost=lost, train=TrainConfig(96, eval_batch=200, norms_every=1)))
    assert model(result) == model(undisturbed)
    norms = map(json.loads, (cluster.folder / "norms.jsonl").read_text().splitlines())
    assert [line["step"] for line in norms] == list(range(result["global_step"]))
    assert (result["auc"], result["global_step"]) == (undisturbed["auc"], undisturbed["global_step"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_where_a_ring_breaks_all_get_the_same_parameters_again(
    cluster: ThreadCluster, undisturbed: dict[str, Any], when: str
) -> None:
    Victim(cluster.patch, 0, 4, when)
    cfg = config("sync")
    cfg.collective.name = "gloo"
    result = cluster.train(cfg)
    assert model(result) == model(undisturbed)
    assert len(result["phases"]) >= 2


@pytest.mark.parametrize("turn", [2, 9])
def test_sync_where_the_dead_workers_part_of_the_sum_is_missing(
    cluster: ThreadCluster, undisturbed: dict[str, Any], turn: int
) -> None:
    """It dies with a bucket put in and another one not."""
    from tests.support.in_memory_collective import MemoryCollective

    starts = [0]

    def start(self: Any, name: str, buffer: Any) -> None:
        if self.rank == 1 and starts[0] >= 0:
            starts[0] += 1
            if starts[0] == 2 * turn:
                starts[0] = -1
                raise Killed

    cluster.before(MemoryCollective, "start", start)
    result = cluster.train(config("sync"))
    assert model(result) == model(undisturbed) and len(result["recovery"]) == 1


def test_a_successor_takes_part_in_sync(cluster: ThreadCluster, undisturbed: dict[str, Any]) -> None:
    """The others wait for it before they go on, so that it comes in time."""
    Victim(cluster.patch, 1, 3, "before")
    there = threading.Event()

    def push(self: Any, item: Any, *rest: Any) -> None:
        if item.grant.token > 5:
            there.wait(8)

    cluster.after(node, "warm_up", lambda *_: there.set())
    cluster.before(WorkerClient, "push", push)
    cfg = config("sync", data={**small_data.options(1500), "cache": str(cluster.data.parent)})
    result = cluster.train(cfg)
    verdict = replay(cluster.folder)
    assert verdict["identical"], sentence(verdict)
    assert [each["process"] for each in cluster.told("joined")] == ["W1"] and model(result) == model(undisturbed)
    [failed] = result["recovery"]
    assert failed["useful_s"] is not None
    assert [phase["mode"] for phase in result["phases"]] == ["sync", "sync"]


@pytest.mark.parametrize(("first", "to"), [("sync", "gba"), ("gba", "sync")])
def test_a_successor_before_a_switch(cluster: ThreadCluster, first: str, to: str) -> None:
    Victim(cluster.patch, 1, 2, "before")
    cfg = config(first, switch=SwitchConfig(schedule=[{"at": {"samples": 960}, "to": to}]))
    cluster.train(cfg)


# -- messages ---------------------------------------------------------------------------------------

STORM = {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
def test_lost_doubled_late_and_overtaken_messages_change_no_account(cluster: ThreadCluster, mode: str) -> None:
    result = cluster.train(config(mode, faults=FaultsConfig(plans=[STORM])))
    assert sum(result["gradients"].values()) == -(-1500 // 32)
    assert result["refused_frames"] == 0
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES)


def test_sync_has_the_same_bits_in_a_storm(cluster: ThreadCluster, undisturbed: dict[str, Any]) -> None:
    result = cluster.train(config("sync", faults=FaultsConfig(plans=[STORM])))
    assert model(result) == model(undisturbed) and set(result["messages"]) == set(MESSAGE_OUTCOMES)


@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_a_storm_begins_at_a_step(cluster: ThreadCluster, undisturbed: dict[str, Any], mode: str) -> None:
    """The servers' end, the workers' and the coordinator's, each by what it hears; none before that step is ordered."""
    ordered, met, hubs = [0], list[int](), list[ReliableHub]()
    draw = MessageFaultStream.draw

    def orders(this: Any, command: ApplyStep) -> None:
        ordered[0] = command.step.step + 1

    def draws(this: Any, on: Any) -> Any:
        now, fate = ordered[0], draw(this, on)
        met.extend([now] if fate.names else ())
        return fate

    cluster.before(LivePhase, "_order", orders)
    cluster.patch.setattr(MessageFaultStream, "draw", draws)
    cluster.after(ReliableHub, "__init__", lambda this, *_: hubs.append(this))
    result = cluster.train(config(mode, faults=FaultsConfig(plans=[{**STORM, "step": 6}])))
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES) and min(met) >= 6
    ends = {hub.me.role for hub in hubs if hub.counts.total() > hub.counts["retried"]}
    assert ends == {"coordinator", "server", "worker"}
    assert mode != "sync" or model(result) == model(undisturbed)


def test_a_worker_dies_in_a_storm(cluster: ThreadCluster) -> None:
    Victim(cluster.patch, 1, 3, "after")
    result = cluster.train(config("gba", faults=FaultsConfig(plans=[STORM])))
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES)


# -- hanging ----------------------------------------------------------------------------------------


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Worker 1 stands still in all its threads, from its third push on, until the event is set."""
    awake, stopped = threading.Event(), threading.Event()
    handle, push, count, first = WorkerClient._handle, WorkerClient.push, [0], []

    def stands(this: Any) -> None:
        if this.index == 1 and stopped.is_set() and this is first[0]:
            awake.wait(12)

    def handles(this: Any, channel: Any, frame: Any) -> None:
        stands(this)
        handle(this, channel, frame)

    def pushes(this: Any, *args: Any) -> None:
        if this.index == 1:
            first.append(this)
            count[0] += 1
            if count[0] == 3:
                stopped.set()
        stands(this)
        push(this, *args)

    monkeypatch.setattr(WorkerClient, "_handle", handles)
    monkeypatch.setattr(WorkerClient, "push", pushes)
    yield awake
    awake.set()


def test_who_hangs_is_missed_and_refused_when_it_wakes_up(cluster: ThreadCluster, hung: threading.Event) -> None:
    """It wakes up when its successor works, and pushes what it had: the servers do not take it."""
    cluster.after(node, "warm_up", lambda *_: hung.set())
    refused = threading.Event()

    def handled(server: Server, *_: Any) -> None:
        if server.fenced_frames:
            refused.set()

    def push(self: Any, item: Any, *rest: Any) -> None:
        if item.grant.batch > 60:
            refused.wait(8)  # the run does not end before

    cluster.after(Server, "handle", handled)
    cluster.before(WorkerClient, "push", push)
    result = cluster.train(config("gba", hang=0.4))
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("W1", "hang")
    assert result["fenced_frames"] > 0


def test_who_hangs_where_nobody_may_ends_the_run(cluster: ThreadCluster, hung: threading.Event) -> None:
    with pytest.raises(ClusterError, match=r"W1 has not answered for 0\.4 s .* type cluster\.hang_seconds=0\.8"):
        cluster.train(config("gba", lost="end", hang=0.4))

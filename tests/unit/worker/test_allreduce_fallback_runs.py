"""Runs whose workers share no memory and whose ring is gone: the first server sums, whoever dies, that one too."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.collective.base import as_array
from gbactl.collective.fault_tolerant import FaultTolerantCollective
from gbactl.config import CheckpointConfig, CollectiveConfig, ModeConfig, RunConfig, SwitchConfig
from gbactl.coordinator.event_log import DENSE_LOST, MOVED, InfoRecord, OrderRecord, read
from gbactl.coordinator.failure_recovery import LostDenseGradients
from gbactl.errors import ClusterError, EventLogError
from gbactl.nodes import worker_process as node
from gbactl.replay.replay_command import replay
from gbactl.server.shard_server import Server
from gbactl.wire.messages import KIND, MoveDense, RingBroken, Sum, Summand, WorkerFailed
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import ReplicatedDense
from tests.support import memory_cluster
from tests.support.deaths import DyingWorker, Orphaned, Victim
from tests.support.in_memory_collective import MemoryGroup
from tests.support.memory_cluster import Killed, run_in_memory
from tests.support.modes import AVERAGED, REPLICAS, every_k
from tests.support.thread_cluster import ThreadCluster, clustered

SAMPLES = 1500
BUCKETS = CollectiveConfig().buckets


def config(mode: str, lost: str = "replace", name: str = "gloo", workers: int = 3, **more: Any) -> RunConfig:
    chosen = ModeConfig(mode, 32 if mode in REPLICAS else None, options=every_k(mode, 2))
    nodes = {"workers": workers, "lost_worker": lost, "hang_seconds": 10.0}
    return clustered(chosen, nodes, collective=CollectiveConfig(name=name), **more)


class Ring:
    """One of memory, that breaks for all with the first that leaves it, and gives nobody more sums than it `has`. Where
    it `hangs` it does not break then before it is given up."""

    def __init__(self, group: MemoryGroup, rank: int, has: int, hangs: bool) -> None:
        self.hangs, self.given_up = hangs, threading.Event()
        self.of_memory = group.member(rank)
        self.rank, self.size = rank, group.size
        self.sums, self.has = 0, has

    def start(self, name: str, buffer: Any) -> Any:
        return self.of_memory.start(name, as_array(buffer))

    def wait(self, handle: Any) -> None:
        if self.sums == self.has:
            assert not self.hangs or self.given_up.wait(20)
            raise ClusterError("The ring is broken.")
        self.of_memory.wait(handle)
        self.sums += 1

    def abandon(self) -> None:
        self.given_up.set()
        self.of_memory.close()  # all leave it: nobody waits for who has gone before

    def close(self) -> None:
        self.of_memory.close()


class NoGroup:
    """Workers bring what they sum with."""

    def __init__(self, size: int, item: int) -> None:
        pass

    def member(self, rank: int) -> None:
        return None


Rings = Callable[..., list[Ring]]


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    """Workers' rings, or none from the beginning, with the server under them. `deaf`: who dies before it could hear
    that others' rings are broken."""

    def make(size: int = 3, broken: bool = False, has: int = -1, hangs: int = -1, deaf: int = -1) -> list[Ring]:
        group, made = MemoryGroup(size, timeout=20), []

        def connect(late: bool, elsewhere: Any, item: int) -> FaultTolerantCollective:
            [exchange] = elsewhere.args
            ring = None if late or broken else Ring(group, exchange.index, has, exchange.index == hangs)
            made.extend([] if ring is None else [ring])
            made_of: FaultTolerantCollective = elsewhere(exchange.index, size)
            made_of.use_ring(ring)
            if exchange.index == deaf and not late:
                monkeypatch.setattr(made_of, "fall_back", lambda: None)
            return made_of

        monkeypatch.setattr(memory_cluster, "MemoryGroup", NoGroup)
        monkeypatch.setattr(node, "connect", connect)
        return made

    return make


def model(result: dict[str, Any]) -> Any:
    return result["checksums"]["model"]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_memory(config("sync", name="shm"), data, tmp_path_factory.mktemp("undisturbed"))


def test_sums_of_a_server_have_the_bits_of_all_others(
    cluster: ThreadCluster, rings: Rings, undisturbed: dict[str, Any]
) -> None:
    rings(broken=True)
    result = cluster.train(config("sync", name="shm"))
    assert model(result) == model(undisturbed) and result["auc"] == undisturbed["auc"]


@pytest.mark.quick
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize(("victim", "turn"), [(0, 1), (1, 3), (0, 16)])
@pytest.mark.parametrize("lost", ["continue", "replace"])
def test_and_so_they_have_where_somebody_dies(
    cluster: ThreadCluster, rings: Rings, undisturbed: dict[str, Any], victim: int, when: str, turn: int, lost: str
) -> None:
    rings(broken=True)
    DyingWorker(cluster.patch, victim, turn, when)
    result = cluster.train(config("sync", lost, "shm"))
    assert model(result) == model(undisturbed)
    assert (result["auc"], result["global_step"]) == (undisturbed["auc"], undisturbed["global_step"])


@pytest.mark.quick(4)
@pytest.mark.parametrize(("lost", "turn"), [("continue", 4), ("replace", 1), ("replace", 16)])
@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_ring_that_breaks_leaves_its_sums_to_the_server(
    cluster: ThreadCluster, rings: Rings, undisturbed: dict[str, Any], when: str, turn: int, lost: str
) -> None:
    """Its last sum may have reached some: all get the same parameters again, with a new phase."""
    made = rings()
    DyingWorker(cluster.patch, 1, turn, when)
    result = cluster.train(config("sync", lost))
    assert result["global_step"] == undisturbed["global_step"] and abs(result["auc"] - undisturbed["auc"]) < 0.02
    assert len(made) == 3 and all(ring.sums >= turn - 1 for ring in made)


@pytest.mark.quick
@pytest.mark.parametrize("when", ["before", "half", "after", "announced"])
@pytest.mark.parametrize(("lost", "turn"), [("continue", 4), ("replace", 4), ("replace", 16)])
def test_a_sum_that_reached_nobody_is_made_again_of_what_there_is(
    cluster: ThreadCluster, rings: Rings, when: str, turn: int, lost: str
) -> None:
    """The dead one's batch is computed again, rows and dense part, unless its rows were announced: then its dense part
    is gone, which is said. Turn 16 is the last step. Who dies before its turn, or in it while the others are slow, may
    be the only one that had the sum of the turn before."""
    rings(has=BUCKETS * (turn - 1), deaf=1)
    DyingWorker(cluster.patch, 1, turn, when)
    result = cluster.train(config("sync", lost))
    assert (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)
    [failed] = result["recovery"]
    told = [
        each for each in read(cluster.folder / "events.log") if isinstance(each, InfoRecord) and each.kind == DENSE_LOST
    ]
    steps = [each.fields["step"] for each in told]
    assert failed["samples_undone"] == (28 if steps == [15] else 32 * len(steps))
    before = [], [turn - 2]
    assert steps in {"announced": ([turn - 1],), "after": (*before, [turn - 1])}.get(when, before)


@pytest.mark.parametrize("mode", ["sync", "shadow_ma"])
@pytest.mark.parametrize("hangs", [0, 2])
def test_a_ring_that_hangs_is_given_up_when_it_breaks_elsewhere(
    cluster: ThreadCluster, rings: Rings, mode: str, hangs: int
) -> None:
    made = rings(has=BUCKETS * 3, hangs=hangs)
    result = cluster.train(config(mode))
    assert result["samples"]["trained"] == SAMPLES and "lost_workers" not in result
    assert all(ring.given_up.is_set() and ring.sums == ring.has for ring in made)


@pytest.mark.parametrize("later", range(4))
def test_and_so_it_is_where_the_coordinator_dies_meanwhile(cluster: ThreadCluster, rings: Rings, later: int) -> None:
    """The one before had told nobody, or some."""
    made = rings(has=BUCKETS * 3, hangs=2)
    death = Orphaned(cluster.patch, RingBroken, later)
    cluster.most_refused = math.inf
    result = cluster.train(config("sync"))
    assert death.deaths == 1 and all(ring.given_up.is_set() for ring in made)
    assert (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)


@pytest.mark.quick
@pytest.mark.parametrize("lost", ["continue", "replace"])
@pytest.mark.parametrize("later", [1, 3, 6, 10])
def test_another_coordinator_goes_on_where_the_ring_is_broken(
    cluster: ThreadCluster, rings: Rings, lost: str, later: int
) -> None:
    """All workers get the same parameters when the phase ends, not in the middle of its steps."""
    rings()
    DyingWorker(cluster.patch, 1, 4, "before")
    death = Orphaned(cluster.patch, WorkerFailed, later)
    cluster.most_refused = math.inf  # a replacement that greeted the dead coordinator is; another one comes
    result = cluster.train(config("sync", lost))
    assert death.deaths == 1
    assert (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)
    ended = [record for record in read(cluster.folder / "events.log") if isinstance(record, (InfoRecord, OrderRecord))]
    moves = [place for place, record in enumerate(ended) if isinstance(record, InfoRecord) and record.kind == MOVED]
    assert moves
    for place in moves:
        assert ended[place].fields["step"] == sum(isinstance(record, OrderRecord) for record in ended[:place])


@pytest.mark.quick(3)
@pytest.mark.parametrize("lost", ["continue", "replace"])
@pytest.mark.parametrize("later", range(6))
def test_a_coordinator_that_dies_while_all_get_the_same_again(
    cluster: ThreadCluster, rings: Rings, lost: str, later: int
) -> None:
    """Who forms the new group has to learn from the next one who is missing."""
    rings()
    DyingWorker(cluster.patch, 1, 4, "before")
    death = Orphaned(cluster.patch, MoveDense, later)
    cluster.most_refused = 1 if lost == "replace" else 0  # one that greeted the dead coordinator; another one comes
    result = cluster.train(config("sync", lost))
    assert death.deaths == 1 and (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)


@pytest.mark.parametrize(("name", "lost"), [("gloo", "continue"), ("gloo", "replace"), ("shm", "replace")])
def test_another_one_that_dies_while_all_get_the_same_again(
    cluster: ThreadCluster, rings: Rings, undisturbed: dict[str, Any], name: str, lost: str
) -> None:
    """Where sums never were a ring's, no bit of them changes."""
    rings(broken=name == "shm")
    dying = DyingWorker(cluster.patch, 1, 4, "before")
    deaths = [0]

    def take_over(this: Any, turn: int) -> None:
        if this.client.index == 2 and dying.pushes == dying.turn and not deaths[0]:
            deaths[0] += 1
            raise Killed

    cluster.before(ReplicatedDense, "take_over", take_over)
    result = cluster.train(config("sync", lost, name))
    assert deaths == [1] and (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)
    assert {failed["process"] for failed in result["recovery"]} == {"W1", "W2"}
    assert abs(result["auc"] - undisturbed["auc"]) < 0.02
    assert name != "shm" or model(result) == model(undisturbed)


@pytest.mark.parametrize("turn", [4, 16])
@pytest.mark.parametrize("counted", [False, True])
def test_another_coordinator_counts_what_is_gone_once(
    cluster: ThreadCluster, rings: Rings, turn: int, counted: bool
) -> None:
    """The one before dies when it hears of it, before or after it has noted that. Turn 16: in the evaluation."""
    rings(has=BUCKETS * (turn - 1), deaf=1)
    DyingWorker(cluster.patch, 1, turn, "announced")
    plain, deaths = LostDenseGradients.add, [0]

    def heard(this: Any, *args: Any) -> None:
        if counted or deaths[0]:
            plain(this, *args)
        if not deaths[0]:
            deaths[0] += 1
            raise Killed

    cluster.patch.setattr(LostDenseGradients, "add", heard)
    result = cluster.train(config("sync", "continue"))
    assert (result["global_step"], result["samples"]["trained"]) == (16, SAMPLES)
    lost = {failed["process"]: failed["samples_undone"] for failed in result["recovery"]}
    assert lost == {"W1": 28 if turn == 16 else 32, "C": 0}


def test_a_run_whose_dense_gradients_are_gone_cannot_be_replayed(cluster: ThreadCluster, rings: Rings) -> None:
    rings(size=2, has=BUCKETS * 3, deaf=1)
    DyingWorker(cluster.patch, 1, 4, "announced")
    cluster.train(config("sync", workers=2))
    told = "a worker failed while the dense gradients of step 3 were being summed; such a run cannot be replayed"
    with pytest.raises(EventLogError, match=told):
        replay(cluster.folder)


@pytest.mark.quick
@pytest.mark.parametrize("lost", ["continue", "replace"])
@pytest.mark.parametrize("mode", AVERAGED)
def test_replicas_go_on_without_the_dead_trainer_and_with_another_one(
    cluster: ThreadCluster, rings: Rings, mode: str, lost: str
) -> None:
    rings()
    DyingWorker(cluster.patch, 1, 3, "before")
    result = cluster.train(config(mode, lost))
    assert result["samples"]["trained"] == SAMPLES
    names = [event.name for event in cluster.events if event.name in ("lost", "joined")]
    assert names == ["lost", "joined"][: 1 + (lost == "replace")]


@pytest.mark.parametrize("mode", ["sync", "shadow_ma", "fr_bmuf"])
def test_the_server_that_sums_may_die_too(cluster: ThreadCluster, rings: Rings, mode: str) -> None:
    """In its first life, with some parts of a round."""
    rings(broken=True)
    Victim(cluster.patch, Summand, 20)
    saves = CheckpointConfig(name="cpr", interval_steps=4, mb_per_second=0)
    result = cluster.train(config(mode, name="shm", checkpoint=saves))
    assert [failed["process"] for failed in result["recovery"]] == ["S0"]


def test_a_successor_is_in_the_sums_after_a_switch(cluster: ThreadCluster, rings: Rings) -> None:
    """It came while servers held everything, and never had a ring. The others wait for it before they go on."""
    made = rings()
    DyingWorker(cluster.patch, 1, 2, "before")
    there = threading.Event()

    def push(self: Any, item: Any, *rest: Any) -> None:
        if item.grant.batch > 5:
            assert there.wait(30)

    cluster.after(node, "warm_up", lambda *_: there.set())
    cluster.before(WorkerClient, "push", push)
    cfg = config("gba", switch=SwitchConfig(schedule=[{"at": {"samples": 960}, "to": "sync"}]))
    result = cluster.train(cfg)
    assert [event.name for event in cluster.events if event.name in ("lost", "joined")] == ["lost", "joined"]
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "sync"]
    assert not any(ring.sums for ring in made)


def test_nothing_goes_to_the_server_while_the_ring_holds(cluster: ThreadCluster, rings: Rings) -> None:
    heard: list[int] = []
    cluster.before(Server, "handle", lambda this, channel, frame: heard.append(frame.kind))
    made = rings()
    cluster.train(config("sync"))
    assert not {KIND[Summand], KIND[Sum]} & set(heard) and all(ring.sums for ring in made)

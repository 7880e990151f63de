"""Replica modes on a cluster of threads: what is saved, going on from it, and servers that die."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint.restore import dense_state
from gbactl.config import (
    CheckpointConfig,
    ModeConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SwitchConfig,
    TrainConfig,
    check,
    from_dict,
)
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.message_loop import Coordinator
from gbactl.coordinator.state import config_at
from gbactl.data.dataset import Dataset
from gbactl.launch.checkpoint_command import export
from gbactl.nodes import role_setup
from gbactl.server.replica_averaging import EasgdHandlers
from gbactl.server.shard_server import Server
from gbactl.trainer.hogwild_training import ComputeThread, TrainerDense
from gbactl.trainer.replica_exchange import CentreSlices, EasgdExchange
from gbactl.trainer.trainer_core import TrainerCore
from gbactl.wire.messages import (
    AddReplica,
    AdoptVersion,
    AverageReplicas,
    EasgdUpdate,
    OrderStep,
    Pull,
    Push,
    Save,
    SaveReplica,
)
from gbactl.wire.startup_document import StartupDocument
from gbactl.worker.client import WorkerClient
from tests.support.deaths import Death, Orphaned, Victim, dies_when_a_server_is_lost
from tests.support.memory_cluster import Killed
from tests.support.modes import CENTRED, REPLICAS, every_k
from tests.support.small_data import prepared
from tests.support.thread_cluster import ThreadCluster, clustered

ROWS, DAYS = 900, 3
SAMPLES = ROWS * (DAYS - 1)  # two days of training, evaluated after each


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("cache"), ROWS, DAYS)


def config(
    mode: str, save: str = "cpr", every: int = 8, *, workers: int = 3, servers: int = 2, batch: int = 32,
    switches: list[dict[str, Any]] | None = None, optimizer: str = "adam", resume: str | None = None, **options: Any,
) -> RunConfig:  # fmt: skip
    return clustered(
        ModeConfig(mode, batch, prefetch="rows", options={**every_k(mode), **options}),
        {"workers": workers, "servers": servers, "hang_seconds": 10.0},
        model=ModelConfig(dim=4, hidden=[8], batch_norm=True, dropout=0.1),
        train=TrainConfig(global_batch=96, eval_batch=100),
        optim=OptimConfig(optimizer, lr=0.01),
        checkpoint=CheckpointConfig(name=save, interval_steps=every, keep=99, mb_per_second=0),
        switch=SwitchConfig(schedule=switches or []),
        resume=resume,
    )


@pytest.fixture
def saved_early(cluster: ThreadCluster) -> None:
    """Training does not go beyond a day's 20th batch before there is a checkpoint, however slow the disk is."""
    saved = threading.Event()

    def pushes(this: Any, item: Any, *rest: Any) -> None:
        assert item.grant.batch < 20 or saved.wait(50.0), "no checkpoint came to be"

    cluster.before(Checkpointing, "_count_saved", lambda *_: saved.set())
    cluster.before(WorkerClient, "push", pushes)


# -- what is saved ----------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.usefixtures("saved_early")
@pytest.mark.parametrize("mode", REPLICAS)
def test_every_mode_saves_while_it_trains_and_goes_on_from_it(cluster: ThreadCluster, mode: str) -> None:
    """In the same mode and one of two others, on other numbers of trainers and shards; and exports."""
    result = cluster.train(config(mode, "full"), "one")
    saved = [fields for fields in cluster.told("checkpoint") if fields["state"] == "saved"]
    assert len(saved) >= 2 and result["checkpoint"]["failed"] == 0
    folder = cluster.checkpoints("one")
    chain = folder.verified(folder.names()[0])
    assert export(chain, cluster.folder / "export")[0].is_file()
    other = (("gba", 3, 1), ("sync", 3, 2))[REPLICAS.index(mode) % 2]
    for then, workers, servers in ((mode, 2, 3), other):
        values = {**config_at(chain), "resume": str(chain.folder / chain.last.name)}
        changed = config(then, "none", workers=workers, servers=servers)
        cfg = dataclasses.replace(
            from_dict(values), mode=changed.mode, cluster=changed.cluster, checkpoint=changed.checkpoint
        )
        again = cluster.train(check(cfg), Path(then, mode))
        assert again["checkpoint"]["resumed_at"] == chain.last.step
        sentences = [fields["sentence"] for fields in cluster.told("checkpoint") if fields["state"] == "resumed"]
        which = "the centre" if mode in CENTRED else "the mean of the replicas"
        assert sentences == ([f"Every replica begins with {which} of step {chain.last.step}."] if then == mode else [])


def test_a_trainer_that_fails_to_send_its_replica_is_replaced(cluster: ThreadCluster) -> None:
    """Else the checkpoint would wait for the replica to the end of the run."""
    failed = list[int]()

    def packs(this: Any, number: int, trains: bool) -> None:
        if this.index == 1 and not failed:
            failed.append(number)
            raise Killed

    cluster.before(TrainerCore, "packed_replica", packs)
    cluster.train(config("shadow_ma"))
    assert failed and [fields["process"] for fields in cluster.told("lost")] == ["W1"]


@pytest.mark.usefixtures("saved_early")
@pytest.mark.parametrize("first", ["sync", "gba"])
def test_trainers_go_on_from_a_checkpoint_of_another_mode(cluster: ThreadCluster, first: str) -> None:
    cluster.train(config(first, "full", every=3), "one")
    folder = cluster.checkpoints("one")
    chain = folder.verified(folder.names()[0])
    values = {**config_at(chain), "resume": str(chain.folder / chain.last.name)}
    cfg = dataclasses.replace(from_dict(values), mode=config("fr_ma").mode, checkpoint=CheckpointConfig())
    cluster.train(check(cfg), "two")


@pytest.mark.usefixtures("saved_early")
@pytest.mark.quick
@pytest.mark.parametrize("mode", ["shadow_ma", "shadow_easgd"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_dense_part_is_the_mean_of_what_trainers_told_or_the_centre(
    cluster: ThreadCluster, mode: str, optimizer: str
) -> None:
    given: dict[int, dict[int, Any]] = {}
    centres: dict[int, dict[int, Any]] = {}

    def on_dense_saved(this: Any, channel: Any, message: Any, frame: Any) -> None:
        values = frame.payload.view(np.float32).copy()
        given.setdefault(message.number, {})[channel.peer.index] = (message.step, message.params, values)

    def saves(this: Any, channel: Any, message: Any, frame: Any) -> None:
        centres.setdefault(message.number, {})[this.index] = this.shard.dense.value.copy()

    cluster.before(Coordinator, "_on_dense_saved", on_dense_saved)
    cluster.before(Server, "_save", saves)
    cluster.train(config(mode, "full", optimizer=optimizer))
    folder, seen = cluster.checkpoints(), 0
    for name in folder.names():
        chain = folder.verified(name)
        state, told = dense_state(chain), given.get(chain.last.number)
        if chain.last.position["ended"]:
            assert told is None, "the servers hold what the replicas have come to"
            continue
        assert told is not None and set(told) == {0, 1, 2}
        told = {worker: each for worker, each in told.items() if each[1] >= 0}  # else it had not begun yet
        size, params = len(state["value"]), next(iter(told.values()))[1]
        mean = np.mean([values.astype(np.float64) for _, _, values in told.values()], axis=0)
        centre = np.concatenate([part for _, part in sorted(centres[chain.last.number].items())])
        expected = centre if mode == "shadow_easgd" else mean[:size]
        assert np.allclose(state["value"], expected, atol=1e-6)
        moments = [values for key, values in sorted(state.items()) if key.startswith("moment.")]
        assert len(moments) == (2 if optimizer == "adam" else 0)
        if moments:
            assert np.allclose(np.concatenate(moments), mean[size : size + 2 * params], atol=1e-6)
        assert int(state["step"][0]) == max(step for step, _, _ in told.values())
        seen += 1
    assert seen >= 1


@pytest.mark.usefixtures("saved_early")
def test_threads_on_one_replica_save_it_too(cluster: ThreadCluster) -> None:
    result = cluster.train(config("fr_easgd", "full", workers=2, hogwild_threads=3))
    assert result["checkpoint"]["saved"] >= 2 and result["checkpoint"]["failed"] == 0


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
def test_a_trainer_that_dies_while_it_is_asked_is_in_no_mean(cluster: ThreadCluster, mode: str) -> None:
    died = []

    def save(this: Any, message: SaveReplica) -> None:
        if this.client.index == 1 and not died:
            died.append(message.number)
            this.client.hub.close()
            raise Killed

    cluster.before(TrainerDense, "_save", save)
    result = cluster.train(config(mode, "full"))
    assert died and cluster.told("lost")[0]["process"] == "W1"
    assert result["checkpoint"]["failed"] == 0
    assert cluster.checkpoints().verified(f"cut-{died[0]:06d}")


# -- the lost server alone goes back ----------------------------------------------------------------


@pytest.mark.quick(4)
@pytest.mark.parametrize(("kind", "turn", "after"), [(Push, 30, False), (OrderStep, 21, True)])
@pytest.mark.parametrize("mode", REPLICAS)
def test_training_goes_on_and_every_update_is_there_or_counted(
    cluster: ThreadCluster, shards: dict[int, Any], mode: str, kind: type[Any], turn: int, after: bool
) -> None:
    """W0 is slower than the others, and does fewer batches."""
    cluster.before(ComputeThread, "finish", lambda this, *_: time.sleep(0.01 * (this.trainer.client.index == 0)))
    Victim(cluster.patch, kind, turn, after=after)
    result = cluster.train(config(mode))
    assert result["samples"]["trained"] == SAMPLES
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("S0", "death")
    assert 0 < failed["samples_undone"] < SAMPLES and failed["row_updates_undone"] > 0
    assert failed["pls"] == pytest.approx(failed["samples_undone"] / (SAMPLES * 2))
    there = sum(int(shard.rows.counts.sum()) for shard in shards.values())
    assert there + failed["row_updates_undone"] == result["checkpoint"]["row_updates"]
    [joined] = cluster.told("joined")
    assert joined["step"] >= joined["loaded"] and (joined["loaded"] == -1 or joined["loaded"] % 8 == 0)
    assert result["auc"] > 0.5


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd"])
@pytest.mark.parametrize("servers", [1, 2])
def test_whom_a_trainer_exchanges_with_dies(cluster: ThreadCluster, mode: str, servers: int) -> None:
    Victim(cluster.patch, EasgdUpdate, 5, lives=2)
    result = cluster.train(config(mode, servers=servers, hogwild_threads=2))
    assert len(result["recovery"]) == 2 and result["replicas"]["exchanges"] > 5


def test_a_trainer_hears_of_a_successor_that_is_dead_already(cluster: ThreadCluster) -> None:
    """The next one listens by then, and serves only later; what the trainer has computed meanwhile must not be lost."""
    listens, heard = threading.Event(), threading.Event()
    plain = WorkerClient._relocated

    def relocated(this: Any, message: Any) -> None:
        late = (this.index, message.incarnation) == (1, 1)
        if late:
            assert listens.wait(20.0), "the first successor has not died"
        plain(this, message)
        if late:
            heard.set()

    def shard_again(boot: StartupDocument, dataset: Dataset) -> None:
        if boot.incarnation == 2:
            listens.set()
            assert heard.wait(20.0)

    cluster.patch.setattr(WorkerClient, "_relocated", relocated)
    cluster.before(role_setup, "_shard_again", shard_again)
    Victim(cluster.patch, EasgdUpdate, 5, lives=2)
    result = cluster.train(config("shadow_easgd", servers=1, hogwild_threads=2))
    assert heard.is_set() and len(result["recovery"]) == 2


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("kind", "turn", "after"),
    [
        (AddReplica, 2, False),
        (AddReplica, 3, True),
        (AverageReplicas, 1, False),
        (AverageReplicas, 2, True),
        (Save, 2, True),
        (Pull, 60, False),
    ],
)
@pytest.mark.parametrize("save", ["cpr", "full"])
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
def test_a_server_dies_at_the_end_of_a_phase(
    cluster: ThreadCluster, mode: str, save: str, kind: type[Any], turn: int, after: bool
) -> None:
    victim = Victim(cluster.patch, kind, turn, after=after)
    result = cluster.train(config(mode, save))
    assert victim.deaths == 1 and [failed["process"] for failed in result["recovery"]] == ["S0"]
    assert result["auc"] > 0.5


@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma"])
def test_what_a_lost_server_was_given_all_give_again(cluster: ThreadCluster, mode: str) -> None:
    """It dies when two of three have given: the mean is that of all three all the same."""
    settled: list[int] = []
    cluster.before(EasgdHandlers, "_average", lambda this, *_: settled.append(this._count))
    Victim(cluster.patch, AddReplica, 2, after=True)
    cluster.train(config(mode))
    assert settled == [3] * 4, "two servers, two days"


def test_an_exchange_does_not_wait_for_a_server_that_is_away(cluster: ThreadCluster) -> None:
    """Nobody takes its place before the trainers have exchanged with the other server again."""
    met, away = threading.Event(), threading.Event()
    plain = EasgdExchange.__call__

    def exchange(this: Any, replica: Any, alpha: float) -> Any:
        gone = away.is_set()
        found = plain(this, replica, alpha)
        if gone and found is not None:
            met.set()
        return found

    def run(this: Any) -> None:
        if away.is_set():
            assert met.wait(20.0), "the exchange waits for who is away"

    cluster.patch.setattr(EasgdExchange, "__call__", exchange)
    cluster.before(CentreSlices, "on_server_lost", lambda *_: away.set())
    cluster.before(Server, "run", run)
    Victim(cluster.patch, Push, 20)
    cluster.train(config("shadow_easgd"))
    assert met.is_set()


# -- everybody goes back ----------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize("every", [8, 1000])
@pytest.mark.parametrize("mode", REPLICAS)
def test_everybody_goes_back(cluster: ThreadCluster, shards: dict[int, Any], mode: str, every: int) -> None:
    Victim(cluster.patch, Push, 22)
    result = cluster.train(config(mode, "full", every))
    [rewound] = cluster.told("rewound")
    assert rewound["samples"] > 0 and rewound["to"] % 8 == 0 and result["checkpoint"]["pls"] == 0.0
    [failed] = result["recovery"]
    assert failed["samples_rolled_back"] == rewound["samples"] and failed["row_updates_undone"] == 0
    there = sum(int(shard.rows.counts.sum()) for shard in shards.values())
    assert there == result["checkpoint"]["row_updates"]


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_bmuf"])
def test_replicas_go_back_to_what_was_saved(cluster: ThreadCluster, mode: str) -> None:
    taken: list[Any] = []
    cluster.after(
        TrainerDense, "take_over", lambda this, *_: taken.append((this.replica.value.copy(), this.replica.block.step))
    )
    Victim(cluster.patch, Push, 12, saved=cluster.folder / "checkpoints" / "cut-000001" / "manifest.json")
    cluster.train(config(mode, "full"))
    [rewound] = cluster.told("rewound")
    folder = cluster.checkpoints()
    [chain] = [c for c in map(folder.verified, folder.names()) if c.last.step == rewound["to"]]
    state = dense_state(chain)
    assert len(taken) == 3
    for value, step in taken:
        assert np.array_equal(value, state["value"]) and step == int(state["step"][0])


def test_a_server_dies_in_a_switch_to_and_from_trainers(cluster: ThreadCluster) -> None:
    steps = [
        {"at": {"samples": 384}, "to": "shadow_ma", "set": {"local_batch": 32}},
        {"at": {"samples": 1200}, "to": "gba", "set": {"local_batch": 32}},
    ]
    Victim(cluster.patch, Push, 25, lives=2)
    result = cluster.train(config("gba", switches=steps))
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "shadow_ma", "shadow_ma", "gba"]
    assert len(result["recovery"]) == 2


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
def test_a_worker_dies_while_a_server_is_away(cluster: ThreadCluster, mode: str) -> None:
    Victim(cluster.patch, Push, 14)
    dies_when_a_server_is_lost(cluster.patch, 2)
    result = cluster.train(config(mode))
    assert sorted(failed["process"] for failed in result["recovery"]) == ["S0", "W2"]


# -- and the coordinator ----------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
@pytest.mark.parametrize("later", [1, 8, 40])
def test_the_coordinator_is_killed_soon_after_a_server_came_back(cluster: ThreadCluster, mode: str, later: int) -> None:
    Victim(cluster.patch, Push, 12)
    orphaned = Orphaned(cluster.patch, AdoptVersion, later)
    result = cluster.train(config(mode))
    assert orphaned.deaths == 1 and {failed["process"] for failed in result["recovery"]} == {"C", "S0"}


@pytest.mark.quick(4)
@pytest.mark.parametrize("turn", [1, 12, 45, 90, 130, 170])
@pytest.mark.parametrize("mode", REPLICAS)
def test_the_coordinator_dies_at_any_message(cluster: ThreadCluster, mode: str, turn: int) -> None:
    """While a checkpoint is under way, too."""
    death = Death(cluster.patch, cluster.folder, turn + 3 * REPLICAS.index(mode))
    result = cluster.train(config(mode))
    assert death.deaths == 1 and [failed["process"] for failed in result["recovery"]] == ["C"]
    assert result["samples"]["trained"] == SAMPLES and result["gradients"]["applied"] == 2 * -(-ROWS // 32)
    assert len(result["phases"]) == 2 and result["replicas"]["exchanges"] > 0 and result["auc"] > 0.5


@pytest.mark.quick
@pytest.mark.parametrize("turn", [20, 60, 110])
@pytest.mark.parametrize("mode", ["shadow_ma", "fr_easgd"])
def test_whose_trainers_have_more_threads(cluster: ThreadCluster, mode: str, turn: int) -> None:
    """They ask for as many batches as before, and for no more in the mode after it."""
    death = Death(cluster.patch, cluster.folder, turn)
    steps = [{"at": {"samples": 1200}, "to": "gba", "set": {"local_batch": 32}}]
    result = cluster.train(config(mode, hogwild_threads=3, switches=steps))
    assert death.deaths == 1 and result["samples"]["trained"] + result["samples"]["decayed"] == SAMPLES


@pytest.mark.quick(3)
@pytest.mark.parametrize("turns", [(40,), (62,), (75,), (90,), (120,), (150,), (60, 70)])
def test_the_coordinator_dies_between_modes(cluster: ThreadCluster, turns: tuple[int, ...]) -> None:
    """On the way to trainers, and back from them."""
    steps = [
        {"at": {"samples": 384}, "to": "fr_ma", "set": {"local_batch": 32, "k": 3}},
        {"at": {"samples": 768}, "to": "gba", "set": {"local_batch": 32}},
        {"at": {"samples": 1200}, "to": "shadow_easgd", "set": {"local_batch": 32}},
    ]
    death = Death(cluster.patch, cluster.folder, *turns)
    result = cluster.train(config("gba", switches=steps))
    assert death.deaths == len(turns)
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "fr_ma", "gba", "gba", "shadow_easgd"]


@pytest.mark.parametrize("mode", ["shadow_bmuf", "fr_easgd"])
def test_a_trainer_dies_and_then_the_coordinator(cluster: ThreadCluster, mode: str) -> None:
    died = []

    def finish(this: Any, item: Any, gradient: Any) -> None:
        if this.trainer.client.index == 1 and item.grant.batch >= 8 and not died:
            died.append(1)
            raise Killed

    cluster.before(ComputeThread, "finish", finish)
    Death(cluster.patch, cluster.folder, 120)
    result = cluster.train(config(mode))
    assert {failed["process"] for failed in result["recovery"]} == {"C", "W1"}

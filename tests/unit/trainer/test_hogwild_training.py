"""Replica modes on a cluster of threads: accounting, what is evaluated, identities, switches, a trainer that dies."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ModeConfig, ModelConfig, OptimConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.event_log import SWITCH, InfoRecord, read
from gbactl.errors import PeerGoneError
from gbactl.trainer.hogwild_training import ComputeThread, TrainerDense
from gbactl.trainer.replica_exchange import AveragingRounds
from gbactl.wire.messages import Event
from tests.support import small_data
from tests.support.in_memory_collective import MemoryGroup
from tests.support.memory_cluster import Killed
from tests.support.modes import AVERAGED, CENTRED, FOREGROUND, REPLICAS, every_k
from tests.support.slow import slow
from tests.support.thread_cluster import ThreadCluster, clustered

SAMPLES = 1800  # two days of training, evaluated after each


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 900, 3)


def config(
    mode: str, workers: int = 3, *, servers: int = 2, prefetch: str = "rows", batch_norm: bool = True,
    lost: str = "end", switches: list[dict[str, Any]] | None = None, local_batch: int = 32, **options: Any,
) -> RunConfig:  # fmt: skip
    return clustered(
        ModeConfig(mode, local_batch, prefetch, options=options),
        {"workers": workers, "servers": servers, "lost_worker": lost},
        model=ModelConfig(dim=4, hidden=[16, 8], batch_norm=batch_norm, dropout=0.1),
        train=TrainConfig(global_batch=32 * workers if mode == "sync" else 96, eval_batch=100),
        optim=OptimConfig(lr=0.01),
        switch=SwitchConfig(schedule=switches or []),
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("mode", REPLICAS)
def test_every_mode_trains_and_counts(cluster: ThreadCluster, mode: str) -> None:
    result = cluster.train(config(mode, **every_k(mode)))
    told = result["replicas"]
    assert told["evaluated"] == ("centre" if mode in CENTRED else "mean of the replicas")
    assert (told["trainers"], told["elp"]) == (3, 96)
    assert told["exchanges"] > 0 and told["bytes_exchanged"] > 0 and told["distance"]
    assert (told["foreground_seconds"] > 0) == (mode in FOREGROUND)
    if mode in ("fr_easgd", "fr_ma"):
        assert told["sync_gap"]["p99"] == 3.0
    assert [phase["replicas"]["evaluated"] for phase in result["phases"]] == [told["evaluated"]] * 2
    assert result["auc"] > 0.55
    assert set(result["checksums"]) == {"S0", "S1", "model"}, "replicas differ; the servers hold what is judged"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("mode", "options", "batch_norm"),
    [
        ("shadow_bmuf", {"shadow_interval": float("inf")}, False), slow("shadow_ma", {"alpha": 0.0}, False),
        ("fr_bmuf", {"k": 100_000}, True),
    ],
)  # fmt: skip
def test_one_trainer_without_synchronisation_is_plain_training_bit_for_bit(
    cluster: ThreadCluster, mode: str, options: dict[str, Any], batch_norm: bool
) -> None:
    plain = cluster.train(config("sync", 1, prefetch="none", batch_norm=batch_norm), "sync")
    alone = cluster.train(config(mode, 1, prefetch="none", batch_norm=batch_norm, **options), mode)
    assert alone["checksums"]["model"] == plain["checksums"]["model"]
    assert alone["auc"] == plain["auc"]


def entry(samples: int, to: str, **values: Any) -> dict[str, Any]:
    return {"at": {"samples": samples}, "to": to, "set": {"local_batch": 32, **values}}


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_bmuf"])
def test_from_sync_to_replicas_to_gba_and_back(cluster: ThreadCluster, mode: str) -> None:
    """Nothing changes in a switch: the model sums before and after are the same."""
    own = {"block_momentum": 0.5, **every_k(mode)} if mode == "fr_bmuf" else {}
    steps = [entry(384, mode, **own), entry(768, "gba"), entry(1200, mode, **own), entry(1500, "sync")]
    result = cluster.train(config("sync", switches=steps))
    done = cluster.told("switch")
    assert [each["state"] for each in done] == ["done"] * 4
    kept = "centre" if mode == "shadow_easgd" else "mean of the replicas"
    assert [each.get("dense") for each in done] == [None, kept, None, kept], "what became the dense parameters"
    assert [p["mode"] for p in result["phases"]] == ["sync", mode, "gba", "gba", mode, "sync"]
    found = [r.fields for r in read(cluster.folder / "events.log") if isinstance(r, InfoRecord) and "when" in r.fields]
    drained = [each["model"] for each in found if each["when"] == "drained"]
    assert drained == [each["model"] for each in found if each["when"] == "resumed"] and len(set(drained)) == 4
    switched = [r.fields for r in read(cluster.folder / "events.log") if isinstance(r, InfoRecord) and r.kind == SWITCH]
    assert [each.get("dense") for each in switched] == [None, kept, None, kept]
    assert [bool(phase.get("replicas")) for phase in result["phases"]] == [p["mode"] == mode for p in result["phases"]]


def test_more_trainers_later_and_another_rule(cluster: ThreadCluster) -> None:
    """Who did not train before begins with what the replicas had come to; who trains no more answers all the same."""
    steps = [entry(384, "shadow_ma", workers=3), entry(1300, "fr_ma", workers=1, k=2), entry(1500, "fr_easgd", k=2)]
    result = cluster.train(config("shadow_ma", 2, switches=steps))
    assert [p["replicas"]["trainers"] for p in result["phases"]] == [2, 3, 3, 1, 2]
    assert set(result["per_worker"]) == {"W0", "W1", "W2"}


def dies_at(monkeypatch: pytest.MonkeyPatch, victim: int, batch: int, once: bool = False) -> None:
    plain, dead = TrainerDense.finish, threading.Event()

    def finish(self: Any, item: Any, gradient: Any) -> None:
        if self.client.index == victim and item.grant.batch >= batch and not (once and dead.is_set()):
            dead.set()
            time.sleep(0.2)  # the others have run out of data, if that was the end of it
            raise Killed
        if item.grant.batch >= batch - 6 and not dead.is_set():
            time.sleep(0.03 * (self.client.index != victim))  # the victim has to come by such a batch
        plain(self, item, gradient)

    monkeypatch.setattr(TrainerDense, "finish", finish)


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd"])
def test_with_a_centre_the_others_go_on_without_a_dead_trainer(cluster: ThreadCluster, mode: str) -> None:
    dies_at(cluster.patch, 1, 8)
    result = cluster.train(config(mode, lost="continue", **every_k(mode)))
    assert [each["process"] for each in cluster.told("lost")] == ["W1"]
    assert result["auc"] > 0.55


@pytest.mark.quick(4)
@pytest.mark.parametrize("batch", [8, 25])
@pytest.mark.parametrize("mode", AVERAGED)
def test_in_rounds_a_dead_trainer_is_dropped_from_the_mean(cluster: ThreadCluster, mode: str, batch: int) -> None:
    """In the middle of a day, and with its last batches, when the others are out of data: they are trained on too."""
    dies_at(cluster.patch, 1, batch)
    result = cluster.train(config(mode, lost="continue", **every_k(mode)))
    assert [each["process"] for each in cluster.told("lost")] == ["W1"]
    assert result["samples"]["trained"] == SAMPLES and result["auc"] > 0.55


@pytest.mark.parametrize("mode", ["shadow_ma", "fr_bmuf"])
def test_in_rounds_another_one_takes_its_place_with_a_new_phase(cluster: ThreadCluster, mode: str) -> None:
    dies_at(cluster.patch, 1, 8, once=True)
    result = cluster.train(config(mode, lost="replace", **every_k(mode)))
    assert [event.name for event in cluster.events if event.name in ("lost", "joined")] == ["lost", "joined"]
    assert result["samples"]["trained"] == SAMPLES and result["auc"] > 0.55


@pytest.mark.parametrize("mode", ["shadow_bmuf", "fr_ma"])
def test_one_that_dies_while_all_evaluate_is_not_waited_for_the_next_day(cluster: ThreadCluster, mode: str) -> None:

    def load(self: Any, item: Any) -> None:
        if self.client.index == 1 and not item.phase.training:
            raise Killed

    cluster.before(TrainerDense, "load", load)
    result = cluster.train(config(mode, lost="continue", **every_k(mode)))
    assert result["samples"]["trained"] == SAMPLES and [p["samples"] for p in result["phases"]] == [900, 900]


def test_without_a_trainer_left_the_run_ends(cluster: ThreadCluster) -> None:
    """The one that lives is no trainer in this phase."""
    dies_at(cluster.patch, 0, 20)
    steps = [entry(384, "shadow_ma", workers=1)]
    with pytest.raises(PeerGoneError, match=r"W0 is gone\."):
        cluster.train(config("shadow_ma", 2, lost="continue", switches=steps))


def test_a_switch_to_rounds_needs_nobody_who_died_before(cluster: ThreadCluster) -> None:
    dies_at(cluster.patch, 1, 4)
    steps = [entry(384, "gba"), entry(900, "fr_ma", k=2)]
    result = cluster.train(config("fr_easgd", lost="continue", switches=steps, k=2))
    assert [phase["mode"] for phase in result["phases"]] == ["fr_easgd", "gba", "fr_ma"]


def test_a_shadow_exchange_that_stands_still_does_not_stop_the_training(cluster: ThreadCluster) -> None:
    """The first averaging gets no answer until a trainer has done 15 iterations: they are done all the same."""
    done = threading.Event()

    def take(self: Any, key: Any, out: Any) -> None:
        assert done.wait(30.0), "the training waits for its shadow"

    def finish(self: Any, item: Any, gradient: Any) -> None:
        if self.replica.iterations >= 15:
            done.set()

    cluster.before(MemoryGroup, "take", take)
    cluster.after(TrainerDense, "finish", finish)
    cluster.train(config("shadow_ma", 2))


def test_replica_modes_need_their_all_reduce_prepared_but_a_centre_is_always_there(cluster: ThreadCluster) -> None:
    cfg = config("gba")
    wishes = [
        Event("switch", {"id": 1, "mode": {"name": "shadow_ma", "local_batch": 32}}),
        Event("switch", {"id": 2, "mode": {"name": "fr_easgd", "local_batch": 32, "k": 2}}),
    ]
    result = cluster.train(cfg, "a", wishes)
    states = [(e.fields.get("id"), e.fields["state"]) for e in cluster.events if e.name == "switch"]
    assert states == [(1, "refused"), (2, "accepted"), (2, "done")]
    assert [p["mode"] for p in result["phases"]] == ["fr_easgd", "fr_easgd"]
    prepared = check(dataclasses.replace(cfg, switch=dataclasses.replace(cfg.switch, prepare="all")))
    result = cluster.train(prepared, "b", wishes[:1])
    assert [p["mode"] for p in result["phases"]] == ["shadow_ma", "shadow_ma"]


@pytest.mark.parametrize(("mode", "batch_norm"), [("shadow_ma", True), ("fr_ma", False), ("fr_easgd", True)])
def test_threads_on_one_replica(cluster: ThreadCluster, mode: str, batch_norm: bool) -> None:
    """And one thread again in the mode after it."""
    steps = [entry(1300, "async", workers=2)]
    cfg = config(mode, 2, batch_norm=batch_norm, switches=steps, hogwild_threads=3, **every_k(mode))
    result = cluster.train(cfg)
    told = result["replicas"]
    assert (told["hogwild_threads"], told["elp"]) == (3, 192)
    assert result["auc"] > 0.55


def test_an_error_in_an_exchange_of_a_trainer_out_of_data_ends_the_run(cluster: ThreadCluster) -> None:
    """W1 comes to its k-th iteration when W0 has computed the rest: it would wait for ever for W0's answer."""
    k, steps, replicas = 20, Counter[int](), dict[int, Any]()
    arrived, failed = threading.Event(), threading.Event()

    def exchanges(this: Any, leaving: bool) -> None:
        if this.statistics.idle and this.replica is replicas[0]:
            failed.set()
            raise ValueError("no mean")

    def finishes(this: Any, item: Any, gradient: Any) -> None:
        index, replicas[this.client.index] = this.client.index, this.replica
        steps[index] += 1
        if (index, steps[index]) == (0, 2):
            assert arrived.wait(30.0)
        if (index, steps[index]) == (1, k):
            arrived.set()
            assert failed.wait(30.0)

    cluster.before(AveragingRounds, "exchange_once", exchanges)
    cluster.before(TrainerDense, "finish", finishes)
    with pytest.raises(ValueError, match="no mean"):
        cluster.train(config("fr_ma", 2, k=k))


@pytest.mark.parametrize("mode", ["fr_ma", "fr_easgd"])
def test_an_error_in_a_further_thread_ends_the_run(cluster: ThreadCluster, mode: str) -> None:
    """An exchange that has begun to pause all threads does not wait for the one that is gone."""
    pausing = threading.Event()

    def pauses(this: Any) -> None:
        if this.client.index == 0:
            pausing.set()

    def loads(this: Any, item: Any) -> None:
        if (this.trainer.client.index, this.thread) == (0, 1):
            assert pausing.wait(30.0)
            raise ValueError("no gradient")

    cluster.before(TrainerDense, "_threads_paused", pauses)
    cluster.after(ComputeThread, "load", loads)
    with pytest.raises(ValueError, match="no gradient"):
        cluster.train(config(mode, hogwild_threads=2, **every_k(mode)))

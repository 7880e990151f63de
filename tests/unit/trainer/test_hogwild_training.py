"""Replica modes on a cluster of threads: accounting, what is evaluated, identities, switches, a trainer that dies."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import (
    ClusterConfig,
    ModeConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SwitchConfig,
    TrainConfig,
    check,
)
from gbactl.coordinator.event_log import SWITCH, InfoRecord, read
from gbactl.errors import PeerGoneError
from gbactl.trainer.hogwild_training import ComputeThread, TrainerDense
from gbactl.trainer.replica_exchange import AveragingRounds
from gbactl.wire.messages import Event
from tests.support import small_data
from tests.support.in_memory_collective import MemoryGroup
from tests.support.memory_cluster import Killed, run_in_memory
from tests.support.modes import AVERAGED, CENTRED, FOREGROUND, REPLICAS, every_k
from tests.support.slow import slow

SAMPLES = 1800  # two days of training, evaluated after each


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 900, 3)


def config(
    mode: str, workers: int = 3, *, servers: int = 2, prefetch: str = "rows", batch_norm: bool = True,
    lost: str = "end", switches: list[dict[str, Any]] | None = None, local_batch: int = 32, **options: Any,
) -> RunConfig:  # fmt: skip
    return check(
        RunConfig(
            mode=ModeConfig(mode, local_batch, prefetch, options=options),
            model=ModelConfig(dim=4, hidden=[16, 8], batch_norm=batch_norm, dropout=0.1),
            cluster=ClusterConfig(workers=workers, servers=servers, lost_worker=lost),
            train=TrainConfig(global_batch=32 * workers if mode == "sync" else 96, eval_batch=100),
            optim=OptimConfig(lr=0.01),
            switch=SwitchConfig(schedule=switches or []),
            seed=5,
        )
    )


def adds_up(result: dict[str, Any], samples: int = SAMPLES) -> None:
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == samples
    assert result["refused_frames"] == 0


@pytest.mark.quick(4)
@pytest.mark.parametrize("mode", REPLICAS)
def test_every_mode_trains_and_counts(data: Path, tmp_path: Path, mode: str) -> None:
    result = run_in_memory(config(mode, **every_k(mode)), data, tmp_path)
    adds_up(result)
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
    data: Path, tmp_path: Path, mode: str, options: dict[str, Any], batch_norm: bool
) -> None:
    plain = run_in_memory(config("sync", 1, prefetch="none", batch_norm=batch_norm), data, tmp_path / "sync")
    alone = run_in_memory(config(mode, 1, prefetch="none", batch_norm=batch_norm, **options), data, tmp_path / mode)
    assert alone["checksums"]["model"] == plain["checksums"]["model"]
    assert alone["auc"] == plain["auc"]


def entry(samples: int, to: str, **values: Any) -> dict[str, Any]:
    return {"at": {"samples": samples}, "to": to, "set": {"local_batch": 32, **values}}


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_bmuf"])
def test_from_sync_to_replicas_to_gba_and_back(data: Path, tmp_path: Path, mode: str) -> None:
    """Nothing changes in a switch: the model sums before and after are the same."""
    own = {"block_momentum": 0.5, **every_k(mode)} if mode == "fr_bmuf" else {}
    steps = [entry(384, mode, **own), entry(768, "gba"), entry(1200, mode, **own), entry(1500, "sync")]
    events: list[Event] = []
    result = run_in_memory(config("sync", switches=steps), data, tmp_path, events=events)
    adds_up(result)
    done = [e.fields for e in events if e.name == "switch"]
    assert [each["state"] for each in done] == ["done"] * 4
    kept = "centre" if mode == "shadow_easgd" else "mean of the replicas"
    assert [each.get("dense") for each in done] == [None, kept, None, kept], "what became the dense parameters"
    assert [p["mode"] for p in result["phases"]] == ["sync", mode, "gba", "gba", mode, "sync"]
    found = [r.fields for r in read(tmp_path / "events.log") if isinstance(r, InfoRecord) and "when" in r.fields]
    drained = [each["model"] for each in found if each["when"] == "drained"]
    assert drained == [each["model"] for each in found if each["when"] == "resumed"] and len(set(drained)) == 4
    switched = [r.fields for r in read(tmp_path / "events.log") if isinstance(r, InfoRecord) and r.kind == SWITCH]
    assert [each.get("dense") for each in switched] == [None, kept, None, kept]
    assert [bool(phase.get("replicas")) for phase in result["phases"]] == [p["mode"] == mode for p in result["phases"]]


def test_more_trainers_later_and_another_rule(data: Path, tmp_path: Path) -> None:
    """Who did not train before begins with what the replicas had come to; who trains no more answers all the same."""
    steps = [entry(384, "shadow_ma", workers=3), entry(1300, "fr_ma", workers=1, k=2), entry(1500, "fr_easgd", k=2)]
    result = run_in_memory(config("shadow_ma", 2, switches=steps), data, tmp_path)
    adds_up(result)
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
def test_with_a_centre_the_others_go_on_without_a_dead_trainer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    dies_at(monkeypatch, 1, 8)
    events: list[Event] = []
    result = run_in_memory(config(mode, lost="continue", **every_k(mode)), data, tmp_path, events=events)
    adds_up(result)
    assert [event.fields["process"] for event in events if event.name == "lost"] == ["W1"]
    assert result["auc"] > 0.55


@pytest.mark.quick(4)
@pytest.mark.parametrize("batch", [8, 25])
@pytest.mark.parametrize("mode", AVERAGED)
def test_in_rounds_a_dead_trainer_is_dropped_from_the_mean(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, batch: int
) -> None:
    """In the middle of a day, and with its last batches, when the others are out of data: they are trained on too."""
    dies_at(monkeypatch, 1, batch)
    events: list[Event] = []
    result = run_in_memory(config(mode, lost="continue", **every_k(mode)), data, tmp_path, events=events)
    adds_up(result)
    assert [event.fields["process"] for event in events if event.name == "lost"] == ["W1"]
    assert result["samples"]["trained"] == SAMPLES and result["auc"] > 0.55


@pytest.mark.parametrize("mode", ["shadow_ma", "fr_bmuf"])
def test_in_rounds_another_one_takes_its_place_with_a_new_phase(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    dies_at(monkeypatch, 1, 8, once=True)
    events: list[Event] = []
    result = run_in_memory(config(mode, lost="replace", **every_k(mode)), data, tmp_path, events=events)
    adds_up(result)
    assert [event.name for event in events if event.name in ("lost", "joined")] == ["lost", "joined"]
    assert result["samples"]["trained"] == SAMPLES and result["auc"] > 0.55


@pytest.mark.parametrize("mode", ["shadow_bmuf", "fr_ma"])
def test_one_that_dies_while_all_evaluate_is_not_waited_for_the_next_day(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    plain = TrainerDense.load

    def load(self: Any, item: Any) -> None:
        if self.client.index == 1 and not item.phase.training:
            raise Killed
        plain(self, item)

    monkeypatch.setattr(TrainerDense, "load", load)
    result = run_in_memory(config(mode, lost="continue", **every_k(mode)), data, tmp_path)
    adds_up(result)
    assert result["samples"]["trained"] == SAMPLES and [p["samples"] for p in result["phases"]] == [900, 900]


def test_without_a_trainer_left_the_run_ends(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that lives is no trainer in this phase."""
    dies_at(monkeypatch, 0, 20)
    steps = [entry(384, "shadow_ma", workers=1)]
    with pytest.raises(PeerGoneError, match=r"W0 is gone\."):
        run_in_memory(config("shadow_ma", 2, lost="continue", switches=steps), data, tmp_path)


def test_a_switch_to_rounds_needs_nobody_who_died_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_at(monkeypatch, 1, 4)
    steps = [entry(384, "gba"), entry(900, "fr_ma", k=2)]
    result = run_in_memory(config("fr_easgd", lost="continue", switches=steps, k=2), data, tmp_path)
    adds_up(result)
    assert [phase["mode"] for phase in result["phases"]] == ["fr_easgd", "gba", "fr_ma"]


def test_a_shadow_exchange_that_stands_still_does_not_stop_the_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first averaging gets no answer until a trainer has done 15 iterations: they are done all the same."""
    done, plain = threading.Event(), MemoryGroup.take

    def take(self: Any, key: Any, out: Any) -> None:
        assert done.wait(30.0), "the training waits for its shadow"
        plain(self, key, out)

    step = TrainerDense.finish

    def finish(self: Any, item: Any, gradient: Any) -> None:
        step(self, item, gradient)
        if self.replica.iterations >= 15:
            done.set()

    monkeypatch.setattr(MemoryGroup, "take", take)
    monkeypatch.setattr(TrainerDense, "finish", finish)
    result = run_in_memory(config("shadow_ma", 2), data, tmp_path)
    adds_up(result)


def test_replica_modes_need_their_all_reduce_prepared_but_a_centre_is_always_there(data: Path, tmp_path: Path) -> None:
    cfg = config("gba")
    wishes = [
        Event("switch", {"id": 1, "mode": {"name": "shadow_ma", "local_batch": 32}}),
        Event("switch", {"id": 2, "mode": {"name": "fr_easgd", "local_batch": 32, "k": 2}}),
    ]
    events: list[Event] = []
    result = run_in_memory(cfg, data, tmp_path / "a", wishes, events)
    states = [(e.fields.get("id"), e.fields["state"]) for e in events if e.name == "switch"]
    assert states == [(1, "refused"), (2, "accepted"), (2, "done")]
    assert [p["mode"] for p in result["phases"]] == ["fr_easgd", "fr_easgd"]
    prepared = check(dataclasses.replace(cfg, switch=dataclasses.replace(cfg.switch, prepare="all")))
    result = run_in_memory(prepared, data, tmp_path / "b", wishes[:1])
    assert [p["mode"] for p in result["phases"]] == ["shadow_ma", "shadow_ma"]


@pytest.mark.parametrize(("mode", "batch_norm"), [("shadow_ma", True), ("fr_ma", False), ("fr_easgd", True)])
def test_threads_on_one_replica(data: Path, tmp_path: Path, mode: str, batch_norm: bool) -> None:
    """And one thread again in the mode after it."""
    steps = [entry(1300, "async", workers=2)]
    cfg = config(mode, 2, batch_norm=batch_norm, switches=steps, hogwild_threads=3, **every_k(mode))
    result = run_in_memory(cfg, data, tmp_path)
    adds_up(result)
    told = result["replicas"]
    assert (told["hogwild_threads"], told["elp"]) == (3, 192)
    assert result["auc"] > 0.55


def test_an_error_in_an_exchange_of_a_trainer_out_of_data_ends_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1 comes to its k-th iteration when W0 has computed the rest: it would wait for ever for W0's answer."""
    k, steps, replicas = 20, Counter[int](), dict[int, Any]()
    exchange, finish = AveragingRounds.exchange_once, TrainerDense.finish
    arrived, failed = threading.Event(), threading.Event()

    def exchanges(this: Any, leaving: bool) -> bool:
        if this.statistics.idle and this.replica is replicas[0]:
            failed.set()
            raise ValueError("no mean")
        return exchange(this, leaving)

    def finishes(this: Any, item: Any, gradient: Any) -> None:
        index, replicas[this.client.index] = this.client.index, this.replica
        steps[index] += 1
        if (index, steps[index]) == (0, 2):
            assert arrived.wait(30.0)
        if (index, steps[index]) == (1, k):
            arrived.set()
            assert failed.wait(30.0)
        finish(this, item, gradient)

    monkeypatch.setattr(AveragingRounds, "exchange_once", exchanges)
    monkeypatch.setattr(TrainerDense, "finish", finishes)
    with pytest.raises(ValueError, match="no mean"):
        run_in_memory(config("fr_ma", 2, k=k), data, tmp_path)


@pytest.mark.parametrize("mode", ["fr_ma", "fr_easgd"])
def test_an_error_in_a_further_thread_ends_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """An exchange that has begun to pause all threads does not wait for the one that is gone."""
    pause, load, pausing = TrainerDense._threads_paused, ComputeThread.load, threading.Event()

    def pauses(this: Any) -> Any:
        if this.client.index == 0:
            pausing.set()
        return pause(this)

    def loads(this: Any, item: Any) -> None:
        load(this, item)
        if (this.trainer.client.index, this.thread) == (0, 1):
            assert pausing.wait(30.0)
            raise ValueError("no gradient")

    monkeypatch.setattr(TrainerDense, "_threads_paused", pauses)
    monkeypatch.setattr(ComputeThread, "load", loads)
    with pytest.raises(ValueError, match="no gradient"):
        run_in_memory(config(mode, hogwild_threads=2, **every_k(mode)), data, tmp_path)

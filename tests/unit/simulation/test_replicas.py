"""Replica modes on a virtual clock: counted, the same twice, plain training where nothing is exchanged, in time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ModelConfig
from gbactl.data.cache import prepare
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.server import VirtualServer
from gbactl.wire.messages import EasgdUpdate
from tests.support.modes import CENTRED, FOREGROUND, REPLICAS, every_k
from tests.support.simulated_runs import config, model, run

SLOW_REDUCE = {"allreduce_us": 1e6}
OWN_CORES = {"workers_per_host": 1, "servers_on": "own", "cores": 8}


def replicas(
    mode: str, workers: int = 3, *, prefetch: str = "none", cost: dict[str, Any] | None = None, hard: bool = True,
    global_batch: int = 128, dense: int | None = None, **options: Any,
) -> Any:  # fmt: skip
    more = {"workers": workers, "prefetch": prefetch, "cost": cost, "hard": hard, "global_batch": global_batch}
    more["dense"] = dense
    return config(mode, local_batch=32, options={**every_k(mode), **options}, **more)


@pytest.mark.quick(4)
@pytest.mark.parametrize("mode", REPLICAS)
def test_every_mode_counts_and_is_the_same_twice(data: Path, tmp_path: Path, mode: str) -> None:
    cfg = replicas(mode, prefetch="rows", cost={"spread": "lognormal", "spread_scale": 0.5})
    first, second = run(cfg, data, tmp_path / "a"), run(cfg, data, tmp_path / "b")
    assert model(first) == model(second) and first["replicas"] == second["replicas"]
    told = first["replicas"]
    assert told["evaluated"] == ("centre" if mode in CENTRED else "mean of the replicas")
    assert told["exchanges"] > 0 and told["distance"] and (told["trainers"], told["elp"]) == (3, 96)
    assert (told["foreground_seconds"] > 0) == (mode in FOREGROUND)
    assert first["auc"] > 0.5


@pytest.mark.quick(3)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("mode", "options"),
    [("shadow_ma", {"shadow_interval": float("inf")}), ("shadow_bmuf", {"alpha": 0.0}), ("local_sgd", {"k": 10_000})],
)
def test_one_trainer_without_synchronisation_is_plain_training_bit_for_bit(
    data: Path, tmp_path: Path, mode: str, options: dict[str, Any], hard: bool
) -> None:
    plain = run(config("sync", workers=1, global_batch=32, hard=hard), data, tmp_path / "sync")
    alone = run(replicas(mode, 1, global_batch=32, hard=hard, **options), data, tmp_path / mode)
    assert model(alone) == model(plain) and alone["auc"] == plain["auc"]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 250 batches of 32."""
    from tests.support.simulated_runs import DATA

    return prepare({**DATA, "rows_per_day": 8000, "cache": str(tmp_path_factory.mktemp("cache"))})


def test_what_a_ring_takes_of_a_trainer_s_core_it_does_not_compute_with(long: Path, tmp_path: Path) -> None:
    """Not where it has cores to spare."""
    speed = {}
    for cores in (1, 8):
        for work in (0.0, 20_000.0):
            cost = {**OWN_CORES, "cores": cores, "allreduce_work_us": work}
            cfg = replicas("shadow_ma", 4, cost=cost, hard=False)
            speed[cores, work] = run(cfg, long, tmp_path / f"{cores}-{work}")["eps"]
    assert speed[1, 20_000.0] < 0.8 * speed[1, 0.0]
    assert speed[8, 20_000.0] > 0.97 * speed[8, 0.0]


def test_a_shadow_exchange_of_a_second_costs_no_speed_but_one_in_the_foreground_does(
    long: Path, tmp_path: Path
) -> None:
    speed: dict[tuple[str, str], float] = {}
    for mode in ("shadow_ma", "fr_ma"):
        for name, cost in (("usual", {}), ("slow", SLOW_REDUCE)):
            cfg = replicas(mode, 4, cost={**OWN_CORES, **cost}, hard=False)
            speed[mode, name] = run(cfg, long, tmp_path / f"{mode}-{name}")["eps"]
    assert speed["shadow_ma", "slow"] > 0.97 * speed["shadow_ma", "usual"]
    assert speed["fr_ma", "slow"] < 0.1 * speed["fr_ma", "usual"]


def test_threads_on_a_replica_add_up_where_there_are_cores(long: Path, tmp_path: Path) -> None:
    speed = {
        threads: run(
            replicas("shadow_easgd", 2, cost=OWN_CORES, hard=False, hogwild_threads=threads, shadow_interval=0.05),
            long, tmp_path / str(threads),
        )
        for threads in (1, 4)
    }  # fmt: skip
    assert speed[4]["eps"] > 3.0 * speed[1]["eps"]
    assert speed[4]["replicas"]["elp"] == 4 * speed[1]["replicas"]["elp"] == 256


@pytest.mark.parametrize("mode", ["fr_easgd", "fr_ma"])
def test_threads_stand_still_for_an_exchange_in_the_foreground(data: Path, tmp_path: Path, mode: str) -> None:
    result = run(replicas(mode, 2, hogwild_threads=3, prefetch="rows", cost=OWN_CORES), data, tmp_path)
    assert result["replicas"]["sync_gap"]["mean"] == pytest.approx(3.0, abs=2.0)


def test_workers_with_several_threads_take_no_time_slots_of_a_core(data: Path, tmp_path: Path) -> None:
    """So it is with real workers. One with one thread waits for its turn on the core that two share."""
    waited = {}
    for threads in (1, 2):
        cfg = replicas("fr_easgd", 4, hogwild_threads=threads, cost={"cores": 2})
        times = run(cfg, data, tmp_path / str(threads))["time"]["processes"]
        waited[threads] = sum(times[f"W{worker}"]["turn"] for worker in range(4))
    assert waited[1] > 0 and waited[2] == 0


@pytest.mark.parametrize("mode", ["fr_easgd", "fr_ma"])
def test_iterations_between_two_exchanges_are_counted_over_days(four_days: Path, tmp_path: Path, mode: str) -> None:
    """A day has 6 or 7 iterations for each of 3 trainers."""
    told = run(replicas(mode, k=9), four_days, tmp_path)["replicas"]
    assert told["exchanges"] >= 3 * 2 and told["sync_gap"]["p99"] == 9.0


def test_a_centre_on_one_of_the_servers_takes_that_one_all_the_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and exchanges are the same; where an exchange takes a server long, trainers queue for the one."""
    heard: list[tuple[int, int]] = []
    plain = VirtualServer._seconds

    def seconds(self: Any, channel: Any, frame: Any) -> float:
        if isinstance(frame.message, EasgdUpdate):
            heard.append((self.index, self.dense_size))
        return plain(self, channel, frame)

    monkeypatch.setattr(VirtualServer, "_seconds", seconds)
    cost = {**OWN_CORES, "dense_pull_ns": 1e5}  # milliseconds for a slice of 100 values
    found: dict[int | None, Any] = {}
    for dense in (1, None):
        heard.clear()
        found[dense] = run(replicas("fr_easgd", 4, cost=cost, hard=False, dense=dense), data, tmp_path / str(dense))
        assert {server for server, _ in heard} == ({0} if dense else {0, 1}) and all(size for _, size in heard)
    for key in ("exchanges", "bytes_exchanged"):
        assert found[1]["replicas"][key] == found[None]["replicas"][key]
    assert found[1]["replicas"]["foreground_seconds"] > 1.5 * found[None]["replicas"]["foreground_seconds"]
    assert found[1]["eps"] < found[None]["eps"]


def test_exchanges_with_a_pause_come_one_after_the_other(long: Path, tmp_path: Path) -> None:
    """Those that began together would share the centre's line, end together, and pause as long as each other."""
    took = {}
    for trainers in (1, 4):
        cost = {**OWN_CORES, "bandwidth_gbit": 0.02, "batch_us": 20_000.0}
        cfg = replicas("shadow_easgd", trainers, cost=cost, hard=False, dense=1, shadow_interval=0.2)
        wide = dataclasses.replace(cfg, model=ModelConfig(dim=4, hidden=[64]))
        told = run(wide, long, tmp_path / str(trainers))["replicas"]
        assert told["exchanges"] >= 4 * trainers
        took[trainers] = told["exchange_ms"]
    assert took[4] < 1.5 * took[1]


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma", "sync", "gba"])
def test_a_server_takes_no_time_for_a_dense_step_that_is_not_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    stepped: set[int] = set()
    plain = CostModel.apply

    def apply(self: CostModel, rows: int, gradients: int, floats: int) -> float:
        stepped.add(floats)
        return plain(self, rows, gradients, floats)

    monkeypatch.setattr(CostModel, "apply", apply)
    cfg = config(mode, workers=4) if mode in ("sync", "gba") else replicas(mode, 4)
    result = run(cfg, data, tmp_path)
    held = {result["memory"][name]["dense"] // 4 for name in ("S0", "S1")}
    assert stepped == (held if mode == "gba" else {0})


@pytest.mark.quick
@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_bmuf", "fr_ma"])
@pytest.mark.parametrize("dense", [None, 1])
def test_from_sync_to_replicas_to_gba_and_back(four_days: Path, tmp_path: Path, mode: str, dense: int | None) -> None:
    options = {"local_batch": 32, **every_k(mode), **({"block_momentum": 0.5} if "bmuf" in mode else {})}
    switches = [
        {"at": {"samples": 384}, "to": mode, "set": {**options, "hogwild_threads": 2}},
        {"at": {"samples": 1000}, "to": "gba", "set": {"local_batch": 32}},
        {"at": {"samples": 1500}, "to": mode, "set": {**options, "workers": 2}},
        {"at": {"samples": 2000}, "to": "sync"},
    ]
    result = run(config("sync", workers=4, switches=switches, dense=dense), four_days, tmp_path)
    assert [p["mode"] for p in result["phases"] if p["mode"] != "sync"] == [mode, mode, "gba", "gba", mode, mode]
    assert result["checksums"]["model"]

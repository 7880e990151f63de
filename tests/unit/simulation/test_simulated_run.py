"""What a modelled cluster does: who waits for whom, what saturates, and that a thousand workers fit."""

from __future__ import annotations

import dataclasses
import gc
import math
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.simulation.simulated_run import VirtualCluster, place, run_virtual
from gbactl.simulation.worker import VirtualWorker
from gbactl.wire.messages import Granted
from gbactl.worker.loop import MappedBatchSource
from tests.support.modes import EVERY
from tests.support.simulated_runs import adds_up, config, model, run

# computing takes 1 ms a batch and nothing else takes any time worth mention
FREE: dict[str, Any] = {
    "cores": 64, "batch_us": 1000.0, "sample_us": 0.0, "server_message_us": 0.0, "row_pull_ns": 0.0,
    "row_apply_ns": 0.0, "dense_pull_ns": 0.0, "dense_apply_ns": 0.0, "dense_step_ns": 0.0,
    "coordinator_message_us": 0.0, "local_latency_us": 0.0, "latency_us": 0.0, "local_bandwidth_gbit": 1e6,
    "bandwidth_gbit": 1e6, "allreduce_us": 0.0,
}  # fmt: skip
BATCH = 10


def a_day(samples: int, cache: Path) -> Path:
    data = {"name": "synthetic", "rows_per_day": samples, "days": 2, "numeric": 2, "fields": 3, "max_cardinality": 50}
    rest = {"skew": 1.05, "signal": 1.6, "noise": 0.3, "drift": 0.1, "ctr": 0.3, "seed": 1}
    return prepare({**data, **rest, "cache": str(cache)})


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 4,000 samples."""
    return a_day(4000, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 800 samples."""
    return a_day(800, tmp_path_factory.mktemp("cache"))


def eps(mode: str, data: Path, folder: Path, workers: int, cost: dict[str, Any], **more: Any) -> float:
    """Samples per virtual second with local batches of BATCH."""
    cfg = config(mode, workers=workers, global_batch=BATCH * workers, hard=False, cost={**FREE, **cost}, **more)
    result = run(cfg, data, folder / f"{mode}-{workers}-{len(list(folder.iterdir())) if folder.exists() else 0}")
    rate = result["eps"]
    assert isinstance(rate, float)
    return rate


@pytest.mark.quick(5)
@pytest.mark.parametrize("mode", EVERY)
def test_where_only_computing_takes_time_workers_add_up(short: Path, tmp_path: Path, mode: str) -> None:
    """And no more than that is counted, however early batches are handed out: the clock ends with the last gradient."""
    # where exchanges cost nothing, a pause between them only saves the simulation events
    own = {"hop_bw": {"backup": 0}}.get(mode, {"shadow_interval": 0.002} if mode.startswith("shadow") else {})
    more = {"options": own} if own else {}
    for workers, prefetch in ((1, "rows"), (4, "none"), (8, "rows")):
        rate = eps(mode, short, tmp_path, workers, {}, prefetch=prefetch, **more)
        without_pause = workers * BATCH / 1e-3
        assert without_pause * 0.99 <= rate <= without_pause


def test_eight_workers_on_two_cores_are_as_fast_as_two(short: Path, tmp_path: Path) -> None:
    two, eight = (eps("async", short, tmp_path, workers, {"cores": 2}) for workers in (2, 8))
    assert eight == pytest.approx(two, rel=0.03)


@pytest.mark.slow
def test_a_saturated_server_flattens_eps_as_workers_grow(long: Path, tmp_path: Path) -> None:
    """1 ms of computing against .2 ms of serving a batch: five workers keep one server busy."""
    cost = {"server_message_us": 200.0 / 3, "servers_on": "own"}  # pull, push and order
    rates = {n: eps("async", long, tmp_path, n, cost, servers=1) for n in (1, 2, 8, 16, 32)}
    assert rates[2] > 1.7 * rates[1]
    limit = BATCH / 200e-6
    assert all(0.9 * limit < rates[n] < 1.15 * limit for n in (8, 16))
    assert rates[32] < 1.1 * rates[16]


@pytest.mark.slow
def test_a_saturated_interface_flattens_eps_and_own_hosts_for_workers_do_not_help(long: Path, tmp_path: Path) -> None:
    cost = {"bandwidth_gbit": 0.02, "workers_per_host": 1, "servers_on": "own", "batch_us": 100.0}
    rates = [eps("async", long, tmp_path, n, cost, servers=1) for n in (1, 8, 16)]
    assert rates[1] > 1.2 * rates[0]
    assert rates[2] < 1.1 * rates[1]


def test_latency_is_waited_for_where_rows_are_not_prefetched(short: Path, tmp_path: Path) -> None:
    late = {"local_latency_us": 500.0}
    plain = eps("gba", short, tmp_path, 2, late, prefetch="none")
    ahead = eps("gba", short, tmp_path, 2, late, prefetch="rows")
    assert ahead > 1.5 * plain
    assert ahead <= 2 * BATCH / 1e-3 * 1.02


@pytest.mark.parametrize(("prefetch", "backup", "late"), [("none", 1, 4000 / 32), ("data", 1, 4), ("data", 0, 5)])
def test_backup_workers_have_the_data_of_their_next_batch_before_it_is_granted(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: str, backup: int, late: int
) -> None:
    """All but the first, and the last of all, for which all ask. Rows are pulled when the step has
    begun: no gradient is stale."""
    calls: Counter[str] = Counter()
    granted, prepared = VirtualWorker._granted, MappedBatchSource.prepare

    def counted(self: MappedBatchSource, grant: Any) -> Any:
        assert self.phase is not None
        calls["prepared"] += self.phase.training
        return prepared(self, grant)

    def timed(self: VirtualWorker, grant: Granted) -> None:
        before = calls["prepared"]
        granted(self, grant)
        calls["late"] += calls["prepared"] > before

    monkeypatch.setattr(MappedBatchSource, "prepare", counted)
    monkeypatch.setattr(VirtualWorker, "_granted", timed)
    slow = [{"kind": "constant", "workers": [0], "factor": 4.0}] if backup else []
    cfg = config("hop_bw", faults=slow, hard=False, prefetch=prefetch, options={"backup": backup})
    result = run(cfg, long, tmp_path)
    assert result["staleness"]["mean"] == 0
    assert calls["late"] == late


def test_one_slow_worker_holds_up_sync_and_not_gba(long: Path, tmp_path: Path) -> None:
    faults = [{"kind": "constant", "workers": [0], "factor": 4.0}]
    sync, gba = (eps(mode, long, tmp_path, 8, {}, faults=faults) for mode in ("sync", "gba"))
    assert sync == pytest.approx(8 * BATCH / 4e-3, rel=0.05)
    assert gba == pytest.approx(7.25 * BATCH / 1e-3, rel=0.05)


def test_a_slow_worker_that_shares_its_core_is_slow_by_its_own_time_alone(long: Path, tmp_path: Path) -> None:
    """Two workers take turns on a core: a slowed one waits a turn, computes for 1 ms, and is late by 3 ms."""
    faults = [{"kind": "constant", "workers": [1], "factor": 4.0}]
    rate = eps("sync", long, tmp_path, 4, {"cores": 2}, faults=faults)
    assert 4 * BATCH / 5e-3 * 0.99 <= rate <= 4 * BATCH / 4e-3
    uneven = eps("sync", long, tmp_path, 3, {"cores": 2}, faults=faults)  # no slots: cores are shared equally
    assert uneven == pytest.approx(3 * BATCH / (4 * 1.5e-3), rel=0.02)


def test_a_worker_that_dies_in_its_time_slot_releases_the_core(long: Path, tmp_path: Path) -> None:
    faults = [{"kind": "kill", "workers": [0], "time": 0.0305}]
    cost = {"cores": 2, "restart_us": 1000.0}
    assert eps("gba", long, tmp_path, 4, cost, faults=faults) > 0.5 * 2 * BATCH / 1e-3


def test_a_slowed_worker_does_as_much_less(long: Path, tmp_path: Path) -> None:
    faults = [{"kind": "constant", "workers": [1], "factor": 3.0}]
    result = run(config("async", workers=4, global_batch=40, faults=faults, cost=FREE), long, tmp_path)
    workers = result["per_worker"]
    assert workers["W0"]["compute_eps"] == pytest.approx(3 * workers["W1"]["compute_eps"])
    assert workers["W0"]["batches"] == pytest.approx(3 * workers["W1"]["batches"], abs=4)


def test_who_runs_where() -> None:
    from gbactl.simulation.discrete_events import EventQueue

    shared = place(config("gba", workers=8, servers=2, cost={"workers_per_host": 2}), EventQueue())
    assert len({id(h) for h in shared.workers}) == 4
    assert [shared.workers.index(h) for h in shared.servers] == [0, 4]
    own = place(config("gba", workers=8, servers=2, cost={"workers_per_host": 8, "servers_on": "own"}), EventQueue())
    assert len({id(h) for h in (*own.workers, *own.servers, own.coordinator)}) == 4
    one = place(config("gba", workers=8, servers=2), EventQueue())
    assert len({id(h) for h in (*one.workers, *one.servers, one.coordinator)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_a_thousand_workers_run_and_nothing_of_theirs_is_left(long: Path, tmp_path: Path, mode: str) -> None:
    cfg = config(mode, workers=1000, global_batch=2000, cost={"workers_per_host": 1, "spread": "lognormal"})
    cluster = VirtualCluster(cfg, open_dataset(long), tmp_path)
    result = cluster.run()
    adds_up(result, 4000)
    assert len(result["per_worker"]) == 1000
    assert all(server.shard.staged == () for server in cluster.servers)
    assert all(not worker.core.queue and not worker.core.pulls for worker in cluster.workers)


def test_a_finished_cluster_is_freed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, usual = [], VirtualCluster.__init__

    def noted(self: VirtualCluster, *args: Any) -> None:
        made.append(weakref.ref(self))
        usual(self, *args)

    monkeypatch.setattr(VirtualCluster, "__init__", noted)
    run(config("gba"), data, tmp_path)
    gc.collect()
    assert [each() for each in made] == [None]


def test_progress_is_told_by_samples_and_ends_at_all_of_them(long: Path, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    cfg = config("gba", global_batch=40)
    run_virtual(cfg, open_dataset(long), tmp_path, lambda e: told.append(e.fields) if e.name == "progress" else None)
    samples = [fields["samples"] for fields in told]
    assert samples == sorted(samples) and samples[-1] == 4000
    assert 40 <= len(samples) <= 52


@pytest.mark.parametrize("mode", ["sync", "gba", "shadow_easgd"])
def test_evaluations_within_a_day_are_points_of_its_curve(four_days: Path, tmp_path: Path, mode: str) -> None:
    """600 samples a day, evaluated at the whole steps after 200 and 400; sync computes the same bits as without."""
    cfg = config(mode, switches=[{"at": {"day": 2}, "to": "async"}] if mode == "gba" else None)
    within = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, eval_every=200))
    plain, result = run(cfg, four_days, tmp_path / "plain"), run(within, four_days, tmp_path / "within")
    assert all(math.isfinite(phase["auc"]) and phase["evaluated_on"] for phase in result["phases"])
    assert len(result["phases"]) >= 12 and [r["day"] for r in result["rounds"]] == [r["day"] for r in plain["rounds"]]
    assert {phase["samples"] for phase in result["phases"] if phase["mode"] == "sync"} <= {256, 128, 216, 88, 600}
    if mode == "sync":
        assert model(result) == model(plain) and result["global_step"] == plain["global_step"]


@pytest.mark.parametrize("mode", ["async", "shadow_easgd"])
def test_an_evaluation_within_a_day_waits_for_every_gradient(four_days: Path, tmp_path: Path, mode: str) -> None:
    """Only a switch gives up after its deadline what is in flight."""
    cfg = config(mode)
    cfg.train.eval_every, cfg.switch.drain_seconds = 200, 0.0
    result = run(cfg, four_days, tmp_path)
    assert len(result["phases"]) >= 12 and result["samples"]["decayed"] == 0


@pytest.mark.quick(4)
@pytest.mark.parametrize("mode", EVERY)
def test_every_mode_has_curves_of_loss_and_progressive_auc(data: Path, tmp_path: Path, mode: str) -> None:
    result = run(config(mode, global_batch=32, local_batch=8), data, tmp_path)
    curve = result["curve"]
    assert len(curve) >= 30 and curve[-1]["samples"] == 1500
    assert all(0 <= point["auc"] <= 1 and point["loss"] > 0 for point in curve)
    assert [point["training_seconds"] for point in curve] == sorted(point["training_seconds"] for point in curve)
    assert set(curve[-1]["speeds"]) <= {"W0", "W1", "W2", "W3"} and curve[-1]["speeds"]

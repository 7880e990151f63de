"""What must be the same to the last bit: modes on the virtual cluster, and the virtual cluster and a real one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import TransportConfig
from tests.support.memory_cluster import run_in_memory
from tests.support.modes import WITHOUT_REPLICAS
from tests.support.simulated_runs import config, model, run

UNEVEN: dict[str, Any] = {"spread": "lognormal", "spread_scale": 1.0}
SLOW = [{"kind": "constant", "workers": [1], "factor": 4.0}]


@pytest.mark.quick(3)
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
def test_sync_is_that_of_a_cluster_of_threads(data: Path, tmp_path: Path, servers: int, prefetch: str) -> None:
    cfg = config("sync", servers=servers, prefetch=prefetch, cost=UNEVEN, faults=SLOW)
    virtual, threads = run(cfg, data, tmp_path / "virtual"), run_in_memory(cfg, data, tmp_path / "threads")
    assert virtual["checksums"] == threads["checksums"]
    assert (virtual["auc"], virtual["logloss"]) == (threads["auc"], threads["logloss"])
    assert virtual["samples"] == threads["samples"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_values_are_rounded_as_in_a_cluster_of_threads(
    data: Path, tmp_path: Path, lock_step: None, mode: str, name: str
) -> None:
    exact = config(mode, servers=2, cost=UNEVEN)
    cfg = dataclasses.replace(exact, transport=TransportConfig(wire_dtype=name))
    virtual, threads = run(cfg, data, tmp_path / "virtual"), run_in_memory(cfg, data, tmp_path / "threads")
    assert virtual["checksums"] == threads["checksums"] and virtual["auc"] == threads["auc"]
    assert model(virtual) != model(run(exact, data, tmp_path / "exact"))


@pytest.mark.parametrize("hard", [True, False])
def test_lock_step_gba_is_that_of_a_cluster_of_threads(data: Path, tmp_path: Path, lock_step: None, hard: bool) -> None:
    """The servers hold the dense vector: with and without a copy of it."""
    cfg = config("gba", servers=1, hard=hard, cost=UNEVEN)
    virtual, threads = run(cfg, data, tmp_path / "virtual"), run_in_memory(cfg, data, tmp_path / "threads")
    assert virtual["checksums"] == threads["checksums"]
    assert virtual["auc"] == threads["auc"]


def test_gba_in_lock_step_is_sync(data: Path, tmp_path: Path, lock_step: None) -> None:
    results = [run(config(mode, cost=UNEVEN), data, tmp_path / mode) for mode in ("sync", "gba")]
    assert model(results[0]) == model(results[1])
    assert results[0]["auc"] == results[1]["auc"] and results[0]["samples"] == results[1]["samples"]


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_any_number_of_servers_gives_the_same_bits(data: Path, tmp_path: Path, lock_step: None, mode: str) -> None:
    results = [run(config(mode, servers=n, cost=UNEVEN), data, tmp_path / str(n)) for n in (1, 2, 3)]
    assert len({model(r) for r in results}) == 1
    assert len({r["auc"] for r in results}) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", ["sync", "gba"])
@pytest.mark.parametrize("hard", [True, False])
def test_any_number_of_them_with_dense_parameters_gives_the_same_bits(
    data: Path, tmp_path: Path, lock_step: None, mode: str, hard: bool
) -> None:
    cfgs = [config(mode, servers=3, dense=n, hard=hard, cost=UNEVEN) for n in (None, 1, 2)]
    results = [run(cfg, data, tmp_path / str(n)) for n, cfg in enumerate(cfgs)]
    assert len({model(r) for r in results}) == 1 and len({r["auc"] for r in results}) == 1


NO_TIME: dict[str, Any] = {
    **{key: 0.0 for key in ("server_message_us", "row_pull_ns", "row_apply_ns", "dense_pull_ns", "dense_apply_ns")},
    "dense_step_ns": 0.0, "bandwidth_gbit": 1e12, "local_bandwidth_gbit": 1e12,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["gba", "async"])
def test_where_serving_takes_no_time_stale_gradients_are_the_same_too(data: Path, tmp_path: Path, mode: str) -> None:
    """Where it does, one server with all of the dense part is later than three with a third each: gradients then
    pull other versions, and arrive in another order."""
    more: dict[str, Any] = {"cost": {**UNEVEN, **NO_TIME}, "faults": SLOW, "prefetch": "rows"}
    one, all_ = (run(config(mode, servers=3, dense=n, **more), data, tmp_path / str(n)) for n in (1, None))
    assert model(one) == model(all_) and one["staleness"] == all_["staleness"]
    assert one["staleness"]["mean"] > 0


@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
def test_gba_that_forgives_everything_is_bsp(data: Path, tmp_path: Path, prefetch: str) -> None:
    """Stragglers make gradients arrive in an order of their own, the same in both."""
    make: dict[str, Any] = {"cost": UNEVEN, "faults": SLOW, "prefetch": prefetch}
    gba = run(config("gba", options={"iota": float("inf")}, **make), data, tmp_path / "gba")
    bsp = run(config("bsp", **make), data, tmp_path / "bsp")
    assert model(gba) == model(bsp) and gba["staleness"] == bsp["staleness"]
    assert gba["staleness"]["mean"] > 0


HALVED: dict[str, Any] = {"decay": "exp", "iota": 0, "divisor": "accepted"}  # by powers of two, which round nothing


@pytest.mark.parametrize(
    ("other", "options"),
    [
        ("gba", {"options": {"iota": float("inf")}}),
        ("gba", {"options": {"iota": float("inf")}, "sparse_divisor": "contributors"}),
        ("gba", {"options": HALVED}),
        ("gba", {"options": HALVED | {"row_staleness": "row"}}),
        ("gba", {"options": HALVED | {"row_staleness": "row"}, "sparse_divisor": "contributors"}),
        ("hop_bs", {"options": {"bound": float("inf")}}),
    ],
)
def test_one_gradient_a_step_is_async(data: Path, tmp_path: Path, other: str, options: dict[str, Any]) -> None:
    """Also the short one at the day's end, and one that is decayed where it is divided by its own weight."""
    make: dict[str, Any] = {"cost": UNEVEN, "faults": SLOW, "local_batch": 128, "prefetch": "rows"}
    results = [
        run(config("async", **make), data, tmp_path / "async"),
        run(config(other, **options, **make), data, tmp_path / other),
    ]
    assert model(results[0]) == model(results[1])
    assert results[0]["staleness_histogram"] == results[1]["staleness_histogram"]


@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
def test_backup_workers_without_a_backup_are_sync(data: Path, tmp_path: Path, prefetch: str) -> None:
    """The same steps; the sum runs in batch order on the servers too."""
    sync = run(config("sync", cost=UNEVEN, prefetch=prefetch), data, tmp_path / "sync")
    make: dict[str, Any] = {"options": {"backup": 0}, "cost": UNEVEN, "prefetch": prefetch}
    backup = run(config("hop_bw", **make), data, tmp_path / "hop_bw")
    assert model(sync) == model(backup)


@pytest.mark.quick
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("mode", WITHOUT_REPLICAS)
def test_every_sample_has_one_fate(data: Path, tmp_path: Path, mode: str, prefetch: str) -> None:
    """Uneven batches, three shards, a straggler, batch norm and dropout."""
    result = run(config(mode, servers=3, prefetch=prefetch, cost=UNEVEN, faults=SLOW), data, tmp_path)
    assert (result["samples"]["lost"] > 0) == (mode == "hop_bw")
    assert result["phases"][0]["seconds"] > 0


@pytest.mark.parametrize("mode", ["sync", "gba", "async"])
def test_a_seed_and_its_clock_are_the_same_every_time(data: Path, tmp_path: Path, mode: str) -> None:
    cfg = config(mode, prefetch="rows", cost=UNEVEN, faults=SLOW)
    first, second = (run(cfg, data, tmp_path / name) for name in "ab")
    assert first == second
    logs = [(tmp_path / name / "events.log").read_bytes() for name in "ab"]
    assert logs[0] == logs[1]
    other = run(config(mode, prefetch="rows", cost=UNEVEN, faults=SLOW, seed=4), data, tmp_path / "c")
    assert model(other) != model(first) and other["virtual_seconds"] != first["virtual_seconds"]


SWITCHES = [{"at": {"day": 1}, "to": "gba"}, {"at": {"day": 2}, "to": "sync"}, {"at": {"day": 3}, "to": "gba"}]


@pytest.mark.quick(2)
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("servers", [1, 3])
def test_a_switch_moves_the_dense_vector_as_a_cluster_of_threads_does(
    four_days: Path, tmp_path: Path, lock_step: None, servers: int, hard: bool
) -> None:
    cfg = config("sync", servers=servers, hard=hard, switches=SWITCHES, prefetch="rows")
    virtual, threads = run(cfg, four_days, tmp_path / "virtual"), run_in_memory(cfg, four_days, tmp_path / "threads")
    assert model(virtual) == model(threads)
    assert [phase["mode"] for phase in virtual["phases"]] == ["sync", "gba", "sync", "gba"]
    assert [phase["auc"] for phase in virtual["phases"]] == [phase["auc"] for phase in threads["phases"]]


def test_switching_between_lock_step_modes_changes_nothing(four_days: Path, tmp_path: Path, lock_step: None) -> None:
    made = [config("sync", cost=UNEVEN), config("sync", switches=SWITCHES, cost=UNEVEN)]
    plain, switched = (run(cfg, four_days, tmp_path / str(i)) for i, cfg in enumerate(made))
    assert model(plain) == model(switched)


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_gradient_norms_are_those_of_a_cluster_of_threads(
    data: Path, tmp_path: Path, lock_step: None, mode: str
) -> None:
    cfg = config(mode, norms_every=2)
    run(cfg, data, tmp_path / "virtual")
    run_in_memory(cfg, data, tmp_path / "threads")
    virtual, threads = (
        [json.loads(line) for line in (tmp_path / name / "norms.jsonl").read_text().splitlines()]
        for name in ("virtual", "threads")
    )
    assert len(virtual) == 6
    assert [(n["step"], n["dense"], sorted(n["rows"])) for n in virtual] == [
        (n["step"], pytest.approx(n["dense"], rel=1e-12), sorted(n["rows"])) for n in threads
    ]

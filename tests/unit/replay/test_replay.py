"""Recorded runs come out again to the last bit: from threads, from virtual time, from an order drawn by lot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.config import FaultsConfig, RunConfig, SwitchConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, ForgoRecord, GrantRecord, OrderRecord, StopRecord
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.errors import EventLogError, UsageError
from gbactl.hashes_and_random_numbers import digest
from gbactl.kernels.native import flushes
from gbactl.replay import replay_command
from gbactl.replay.replay_command import failed, replay, sentence
from gbactl.simulation.simulated_run import run_virtual
from tests.support.hand_made import HandMade
from tests.support.modes import SERVED
from tests.support.recorded import config, record, splits

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((mode, {}) for mode in SERVED),
    ("gba", {"iota": 0, "decay": "exp", "divisor": "accepted"}),
    ("gba", {"iota": 0, "sparse_divisor": "contributors"}),
    ("gba", {"iota": 1, "row_staleness": "row"}),
    ("gba", {"iota": 0, "decay": "exp", "divisor": "accepted", "row_staleness": "row"}),
    ("gba", {"iota": 0, "decay": "inverse", "row_staleness": "row", "sparse_divisor": "contributors"}),
    ("hop_bw", {"backup": 2}),
]
BATCHES = 46  # 730 samples by 16: the last is short, and two are left over from steps of four


def counting(run_dir: Path, steps: int) -> int:
    """How many of the first `steps` ordered have a gradient of weight > 0: others leave the parameters alone."""
    orders = [record for record in event_log.read(run_dir / "events.log") if isinstance(record, OrderRecord)]
    assert [order.step for order in orders[:steps]] == list(range(steps))
    return sum(any(weight > 0 for _, weight in order.members) for order in orders[:steps])


@pytest.mark.quick(5)
@pytest.mark.parametrize(("mode", "options"), VARIANTS)
def test_a_run_in_threads_comes_out_again(
    data: dict[str, Any], tmp_path: Path, mode: str, options: dict[str, Any]
) -> None:
    result = record(config(mode, data, **options), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"] and not failed(verdict), sentence(verdict)
    assert verdict["steps"] == result["global_step"]
    assert verdict["gradients"] + verdict["dropped"] == 2 * BATCHES
    assert verdict["checksums"] == 3 * (result["global_step"] // 5 + 2)
    assert sentence(verdict).startswith(f"bit-identical: {verdict['steps']} steps, ")


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
@pytest.mark.parametrize("plans", [[], [{"kind": "kill", "coordinator": True, "step": 5}]])
def test_a_virtual_run_comes_out_again(data: dict[str, Any], tmp_path: Path, mode: str, plans: list[Any]) -> None:
    """Also where the coordinator died."""
    cfg = config(mode, data)
    cluster, faults = dataclasses.replace(cfg.cluster, name="virtual"), FaultsConfig(plans=plans)
    cfg = dataclasses.replace(cfg, cluster=cluster, faults=faults)
    run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)
    assert verdict["gradients"] + verdict["dropped"] == 2 * BATCHES


@pytest.mark.quick(5)
@pytest.mark.parametrize(("mode", "options"), VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_deaths_joins_and_lagging_shards_come_out_again(
    data: dict[str, Any], tmp_path: Path, mode: str, options: dict[str, Any], seed: int
) -> None:
    """Rows and dense slices read at different versions of every shard; batches handed out twice."""
    made = HandMade(config(mode, data, **options), tmp_path, seed)
    made.write()
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)


def test_a_log_of_an_older_format_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    """It lacks records that decide: ends of phases, hand-outs of no samples."""
    HandMade(config("gba", data), tmp_path, seed=0).write()
    log = tmp_path / "events.log"
    content = bytearray(log.read_bytes())
    content[8] = event_log.FORMAT - 1
    log.write_bytes(content)
    with pytest.raises(EventLogError, match=f"this gbactl reads {event_log.FORMAT}; use the one that wrote it"):
        replay(tmp_path)


@pytest.mark.quick(2)
@pytest.mark.parametrize("backend", ["local", "virtual"])
@pytest.mark.parametrize("mode", SERVED)
def test_with_servers_that_hold_rows_alone_it_comes_out_again(
    data: dict[str, Any], tmp_path: Path, mode: str, backend: str
) -> None:
    cfg = config(mode, data)
    cfg = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name=backend, dense_servers=1))
    if backend == "virtual":
        run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path)
    else:
        record(cfg, tmp_path)
    verdict = replay(tmp_path, path=tmp_path / "m.npz")
    assert verdict["identical"], sentence(verdict)
    with np.load(verdict["model"]) as model:
        assert len(model["dense"]) > 0 and int(model["dense_steps"][0]) == counting(tmp_path, verdict["steps"])


def test_batches_are_really_handed_out_again(data: dict[str, Any], tmp_path: Path) -> None:
    reissued = 0
    for mode in SERVED:
        made = HandMade(config(mode, data), tmp_path / mode, seed=1, deaths=3)
        made.write()
        granted = [r.batch for r in event_log.read(tmp_path / mode / "events.log") if isinstance(r, GrantRecord)]
        assert len(granted) == 2 * BATCHES + made.reissued
        reissued += made.reissued
        assert replay(tmp_path / mode)["identical"]
    assert reissued >= len(SERVED)


@pytest.mark.parametrize(("servers", "dense"), [(1, None), (2, None), (3, 1)])
def test_any_number_of_servers_and_options_of_the_optimizer(
    data: dict[str, Any], tmp_path: Path, servers: int, dense: int | None
) -> None:
    cfg = config("async", data, servers)
    cfg = dataclasses.replace(
        cfg, optim=dataclasses.replace(cfg.optim, name="rowwise_adagrad", row_l2="all", row_weight_decay=0.01),
        cluster=dataclasses.replace(cfg.cluster, dense_servers=dense),
    )  # fmt: skip
    record(cfg, tmp_path)
    assert replay(tmp_path)["identical"]


def test_a_switch_between_modes_of_the_servers_comes_out_again(data: dict[str, Any], tmp_path: Path) -> None:
    switch = SwitchConfig(
        schedule=[{"at": {"epoch": 1}, "to": "async"}], modes=[{"local_batch": 32, "prefetch": "rows"}]
    )
    result = record(dataclasses.replace(config("gba", data), switch=switch), tmp_path)
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "async"]
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)
    assert verdict["gradients"] == 46 + 23


def test_a_kept_model_is_the_runs(recorded: Path, tmp_path: Path) -> None:
    verdict = replay(recorded, path=tmp_path / "m.npz")
    result = json.loads((recorded / "result.json").read_text())
    with np.load(verdict["model"]) as model:
        cut = model["dense"].shape[0]
        assert int(model["step"]) == result["global_step"]
        assert json.loads(str(model["config"]))["seed"] == 3
        for s in range(3):
            own = [np.ascontiguousarray(model[n][s::3]) for n in ("rows", "row_first", "row_second", "row_counts")]
            low, high = cut * s // 3, cut * (s + 1) // 3
            moments = [model[n][low : min(high, len(model[n]))] for n in ("dense_first", "dense_second")]
            assert digest([*own, model["dense"][low:high], *moments]) == result["checksums"][f"S{s}"]


def test_until_stops_there_and_keeps_the_model(recorded: Path, tmp_path: Path) -> None:
    whole = replay(recorded, path=tmp_path / "whole.npz")
    for until in (0, 7, whole["steps"]):
        verdict = replay(recorded, until)
        assert (verdict["steps"], verdict["identical"]) == (until, True if until else None)
        assert verdict["model"] == str(recorded / f"replay-{until}.npz")
        with np.load(verdict["model"]) as model, np.load(tmp_path / "whole.npz") as last:
            assert int(model["step"]) == until and int(model["dense_steps"][0]) == counting(recorded, until)
            assert np.array_equal(model["rows"], last["rows"]) == (until == whole["steps"])
    with pytest.raises(UsageError, match=r"type --until 0 to 24"):
        replay(recorded, 25)


def test_sync_cannot_be_replayed_whose_sums_have_no_known_order(data: dict[str, Any], tmp_path: Path) -> None:
    record(config("sync", data), tmp_path)
    with pytest.raises(EventLogError, match=r"cannot be replayed where horovod sums .* 4 workers.*collective=shm"):
        replay(tmp_path)


def test_replicas_cannot_be_replayed(data: dict[str, Any], tmp_path: Path) -> None:
    record(config("shadow_easgd", data), tmp_path)
    with pytest.raises(EventLogError, match=r"phases of mode=shadow_easgd cannot be replayed: .* checksums in result"):
        replay(tmp_path)


def test_a_gradient_of_async_takes_at_most_100_bytes(data: dict[str, Any], tmp_path: Path) -> None:
    """Three shards; the header, phases, evaluations and checksums with it."""
    cfg = config("async", data, local_batch=2)
    record(dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, checksum_every=100)), tmp_path)
    gradients = sum(isinstance(one, AnnounceRecord) for one in event_log.read(tmp_path / "events.log"))
    assert gradients == 2 * 365
    assert (tmp_path / "events.log").stat().st_size / gradients <= 100


def entry(unit: str, value: float, to: str) -> dict[str, Any]:
    return {"at": {unit: value}, "to": to}


@pytest.mark.quick(2)
@pytest.mark.parametrize("backend", ["threads", "virtual"])
@pytest.mark.parametrize("order", [SERVED, SERVED[::-1]])
def test_switches_within_an_epoch_come_out_again(
    data: dict[str, Any], tmp_path: Path, backend: str, order: tuple[str, ...]
) -> None:
    """Five modes, four switches, two of them at no point known before; shuffled, batch norm, dropout."""
    points = [("samples", 100), ("step", 12), ("fraction", 0.55), ("samples", 1000)]
    switch = SwitchConfig(
        schedule=[entry(unit, value, mode) for (unit, value), mode in zip(points, order[1:], strict=True)],
        modes=[{"local_batch": 16 if mode != "async" else 32, "prefetch": "rows"} for mode in order[1:]],
    )
    cfg = dataclasses.replace(config(order[0], data), switch=switch)
    if backend == "virtual":
        cfg = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name="virtual"))
        run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path)
    else:
        record(cfg, tmp_path)
    switches = [r for r in event_log.read(tmp_path / "events.log") if getattr(r, "kind", 0) == event_log.SWITCH]
    assert [r.fields["mode"]["name"] for r in switches] == list(order[1:])  # type: ignore[union-attr]
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)


@pytest.mark.parametrize("after", ["bsp", "hop_bw"])
def test_what_a_switch_gave_up_comes_out_again(data: dict[str, Any], tmp_path: Path, after: str) -> None:
    """A worker a hundred times slower does not keep the deadline; a phase told to stop in its middle."""
    switch = SwitchConfig(
        schedule=[entry("seconds", 0.01, after)], modes=[{"local_batch": 16, "prefetch": "rows"}], drain_seconds=0.05
    )
    faults = FaultsConfig(plans=[{"kind": "constant", "workers": [1], "factor": 100.0}])
    cfg = dataclasses.replace(config("gba", data), switch=switch, faults=faults)
    cfg = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name="virtual"))
    run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path)
    records = list(event_log.read(tmp_path / "events.log"))
    assert sum(isinstance(r, StopRecord) for r in records) == 1
    assert [r.batches for r in records if isinstance(r, ForgoRecord)] == [2]
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)
    assert verdict["gradients"] + verdict["dropped"] == 2 * BATCHES - 2


def long_enough(cfg: RunConfig) -> RunConfig:
    """With rates that let idle rows' moments fade into denormal numbers."""
    cfg.model.init_scale = 1e-37
    cfg.optim = dataclasses.replace(cfg.optim, name="sgd", lr=1e-3, row_lr=1e-36)
    return cfg


@pytest.mark.parametrize("cluster", ["memory", "virtual"])
def test_numbers_that_are_denormal_are_flushed_alike_everywhere(tmp_path: Path, cluster: str) -> None:
    cfg = long_enough(config("async", splits(tmp_path / "data")))
    if cluster == "memory":
        record(cfg, tmp_path / "run")
    else:
        (tmp_path / "run").mkdir()
        cfg = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name="virtual"))
        run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path / "run")
    verdict = replay(tmp_path / "run", path=tmp_path / "last.npz")
    assert verdict["identical"]
    with np.load(tmp_path / "last.npz") as last:
        sizes = np.abs(last["rows"])
        assert not (sizes[sizes > 0] < 1.17e-38).any()
    assert not flushes(), "a run leaves the thread as it was"


def test_another_machine_is_told_from_this() -> None:
    header = {"machine": "x86_64", "cpu_flags": "avx2", "torch": "2.13.0", "kernels": "native"}
    assert replay_command.machine_differences(header, {**header, "kernels": "twin"}) == []
    assert replay_command.machine_differences(header, {**header, "torch": "2.14.0", "machine": "arm"}) == [
        "processor", "version of torch",
    ]  # fmt: skip

"""Bytes on the wire, by what they are: counted where they are sent, while the run trains."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.config import RunConfig, TransportConfig, check
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.models import build
from gbactl.models.flat_parameters import FlatModel
from gbactl.simulation.simulated_run import run_virtual
from gbactl.wire import frames
from gbactl.wire.messages import EasgdUpdate, Predictions, Pull, Push, Rows, TakeBatch, pack
from gbactl.wire.node_measurements import KINDS, PREFIX, TrafficCounter, traffic_summary
from tests.support.hubs import Pair
from tests.support.recorded import config, record, splits

TOLD = (0.5, 0.1, 1.0, 0, 0)


def counted(traffic: TrafficCounter) -> dict[str, int]:
    return {name.removeprefix(PREFIX): count for name, count in traffic.counters().items()}


def test_each_message_by_what_is_in_it() -> None:
    traffic = TrafficCounter()
    traffic.sent(TakeBatch(0), 50, 0)  # not training yet
    traffic.training = True
    traffic.sent(Pull(1, 2, 5, True, 0, -1), 60, 20)
    traffic.sent(Push(1, 2, 5, 7, *TOLD), 60, 20 + 5 * 3 * 4 + 7 * 4)
    traffic.sent(Rows(1, 2, 5, 7), 60, 5 * 3 * 4 + 7 * 4)
    traffic.sent(EasgdUpdate(1, 0.5), 60, 28)
    traffic.sent(Predictions(1, 0, 0, 4), 60, 16)
    assert counted(traffic) == {"control": 300, "ids": 40, "rows": 120, "dense": 84, "other": 16}
    traffic.training = False
    traffic.sent(EasgdUpdate(1, 0.5), 60, 28)
    assert counted(traffic)["dense"] == 84


def test_an_all_reduce_counts_though_the_next_phase_has_begun() -> None:
    traffic = TrafficCounter()
    traffic.training = True
    traffic.sent(EasgdUpdate(1, 0.5), 60, 28)
    traffic.training = False
    traffic.count_all_reduce(100, False)
    traffic.count_all_reduce(7, True)
    assert counted(traffic) == {"control": 60, "dense": 128, "shared": 7}


def test_a_part_that_is_missing_has_no_ids() -> None:
    traffic = TrafficCounter()
    traffic.training = True
    traffic.sent(Push(1, 2, ~5, 0, *TOLD), 60, 0)
    assert counted(traffic) == {"control": 60}


@pytest.mark.parametrize("kind", ["tcp", "shm", "tls"])
def test_a_connection_counts_what_it_sends(kind: str) -> None:
    pair = Pair(kind)
    pair.near_hub.traffic.training = True
    payload = np.zeros(100_000, np.uint8)
    out = pair.near.reserve(100_000)
    out[:] = payload
    pair.near.send(EasgdUpdate(1, 0.5), out)
    pair.receive(pair.far_hub)
    where = "shared" if kind == "shm" else "dense"
    assert counted(pair.near_hub.traffic) == {
        where: 100_000, "control": frames.PREFIX + len(pack(EasgdUpdate(1, 0.5)))
    }  # fmt: skip
    pair.close()


def test_a_summary_adds_up_nodes_and_divides_by_steps() -> None:
    told = traffic_summary([{"sent rows": 10, "retried": 5}, {"sent rows": 20, "sent shared": 7}], 3)
    assert told["bytes"] == dict.fromkeys(KINDS, 0) | {"rows": 30}
    assert told["bytes_per_step"]["rows"] == 10.0 and told["shared_memory"] == 7
    assert traffic_summary([], 0)["bytes_per_step"]["rows"] == 0.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return splits(tmp_path_factory.mktemp("traffic"))


def test_half_the_values_the_same_ids(data: dict[str, Any], tmp_path: Path) -> None:
    """sync: which rows are pulled and pushed does not depend on timing."""
    full, half = (
        record(
            dataclasses.replace(config("sync", data), transport=TransportConfig(wire_dtype=name)), tmp_path / name
        )["wire"]
        for name in ("fp32", "fp16")
    )  # fmt: skip
    for kind in ("rows", "dense"):
        assert full["bytes"][kind] == 2 * half["bytes"][kind] > 0
    assert full["bytes"]["ids"] == half["bytes"]["ids"] > 0 and full["bytes"]["control"] > 0
    assert full["bytes"]["other"] == 0, "predictions are no part of training"
    assert full["bytes_per_step"]["rows"] == full["bytes"]["rows"] / 24


def with_three(mode: str, data: dict[str, Any]) -> RunConfig:
    """16 steps an epoch; in the last one two of three workers have no batch."""
    cfg = config(mode, data)
    size = {"cluster": dataclasses.replace(cfg.cluster, workers=3)}
    return check(dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, global_batch=48), **size))


def flat(cfg: RunConfig) -> FlatModel:
    schema = open_dataset(prepare(cfg.data)).schema
    return FlatModel(build(cfg.model, schema.numeric, schema.fields, cfg.seed))


def virtually(cfg: RunConfig, run_dir: Path) -> dict[str, Any]:
    """Run it on one virtual host: messages count as shared memory there, an all-reduce does not."""
    there = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name="virtual"))
    return run_virtual(there, open_dataset(prepare(there.data)), run_dir)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_a_virtual_cluster_sends_as_much(data: dict[str, Any], tmp_path: Path, name: str) -> None:
    cfg = dataclasses.replace(config("sync", data), transport=TransportConfig(wire_dtype=name))
    threads, virtual = record(cfg, tmp_path / "threads")["wire"], virtually(cfg, tmp_path)["wire"]
    assert threads["bytes"]["dense"] == virtual["bytes"]["dense"] > 0, "an all-reduce, and no message"
    values = {kind: virtual["bytes"][kind] for kind in ("rows", "ids")}
    if virtual["shared_memory"]:
        assert virtual["shared_memory"] == sum(threads["bytes"][kind] for kind in values)
    else:
        assert values == {kind: threads["bytes"][kind] for kind in values}


@pytest.mark.parametrize("run", [record, virtually])
def test_an_all_reduce_is_counted_in_every_step(data: dict[str, Any], tmp_path: Path, run: Any) -> None:
    """2 (W - 1) / W of the vector from each of W = 3, with a batch or without."""
    cfg = with_three("sync", data)
    wire, a_step = run(cfg, tmp_path)["wire"], 2 * (3 - 1) * 4 * flat(cfg).size
    assert (wire["bytes"]["dense"], wire["bytes_per_step"]["dense"]) == (32 * a_step, a_step)


@pytest.mark.parametrize("run", [record, virtually])
def test_every_exchange_of_replicas_is_counted(data: dict[str, Any], tmp_path: Path, run: Any) -> None:
    """And the rounds in which trainers part; in memory servers are given replicas and moments, too."""
    cfg = with_three("shadow_ma", data)
    result, model = run(cfg, tmp_path), flat(cfg)
    given = 0 if run is virtually else 2 * 3 * 4 * (model.size + 2 * model.params)
    rounds, rest = divmod(result["wire"]["bytes"]["dense"] - given, 2 * (3 - 1) * 4 * (model.size + 4))
    assert rest == 0 and rounds >= result["replicas"]["exchanges"] / 3 + 2 > 2

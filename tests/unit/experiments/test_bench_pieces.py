"""What single lines of the bench are made of: table sizes, bytes touched, CPU between two samples, TSV lines."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernel_copy
import measuring_cost
import numpy as np
import pytest
import ratio_sides
import server_cpu
import table_memory
import table_sizes
import tsv_preparation
import unauthenticated_clients
import virtual_cost

from gbactl.coordinator.event_log import EventLog, GrantRecord, OrderRecord
from gbactl.errors import GbactlError
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.node_connections import SocketHub


@pytest.mark.parametrize("rows", [1000, 100_000, 1_000_000, 10_000_000])
def test_a_table_of_so_many_rows(rows: int) -> None:
    cardinality = table_sizes.max_cardinality(rows)
    assert rows <= table_sizes.table_rows(cardinality) < 1.001 * rows + 26
    assert table_sizes.table_rows(cardinality - 1) < rows


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_memory_of_preparing_a_table_is_measured(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{form}"
    table_memory.write(path, 300, 16, 3)
    peak, private = table_memory.prepare_here(path)
    assert peak >= private > 0


def test_bytes_of_a_row_are_those_of_a_shard() -> None:
    from gbactl.kernels import load
    from gbactl.kernels.base import aligned_zeros
    from gbactl.store.optimizer_settings import OptimizerSpec
    from gbactl.store.shard_rows import RowBlock

    block = RowBlock(aligned_zeros((10, 17)), OptimizerSpec("adam"), load())
    assert sum(block.nbytes.values()) == 10 * table_sizes.bytes_a_row(16)


def test_a_crowd_finds_the_doors_and_comes_again() -> None:
    with closing(SocketHub(new_key(), Peer("server", 0), bind=unauthenticated_clients.BIND)) as hub:
        assert unauthenticated_clients.doors(unauthenticated_clients.BIND) == [int(hub.address.rpartition(":")[2])]
        assert unauthenticated_clients.doors("127.0.0.78") == []
        assert hub.admission is not None
        hub.admission.most = 10
        with unauthenticated_clients.Crowd(each=20) as crowd:
            while hub.refused.total() < 15:
                hub.poll(0.1)
            assert len(hub.admission.unauthenticated) <= 10
        assert crowd.came > 20
        assert 0 < crowd.cores < 1


def test_a_crowd_that_is_sent_away_may_stay_away() -> None:
    with closing(SocketHub(new_key(), Peer("server", 0), bind=unauthenticated_clients.BIND)) as hub:
        assert hub.admission is not None
        hub.admission.most = 10
        with unauthenticated_clients.Crowd(each=20, again=0) as crowd:
            until = time.monotonic() + 6 * unauthenticated_clients.TICK_SECONDS
            while hub.refused.total() < 10 or time.monotonic() < until:
                hub.poll(0.1)
        assert crowd.came == 20 and hub.refused.total() == 10


def test_bytes_that_a_step_touches() -> None:
    row = 4 * 17
    of_parts = 10 * (4 + row)
    sums = 6 * 2 * row
    touched = kernel_copy.touched
    assert touched("adam", 10, 6) == of_parts + sums + 6 * 2 * (3 * row + 4)
    assert touched("rowwise_adagrad", 10, 6) == of_parts + sums + 6 * 2 * (row + 4)


def test_the_kernel_is_held_against_a_copy() -> None:
    kernel, copy = kernel_copy._ratios("rowwise_adagrad", 200_000, 2)
    assert kernel > 0 and copy > 0


def event_log(path: Path, orders: int) -> tuple[bytes, list[int]]:
    """A log's bytes, and how long it was after each order."""
    log, ends = EventLog(path, {"gbactl": "0"}), []
    for step in range(orders):
        log.write(GrantRecord(0, step, 0))
        log.write(OrderRecord(step, 1.0, 1.0, 1.0, ((2 * step, 1.0), (2 * step + 1, 1.0))))
        ends.append(log.bytes)
    log.flush()
    log.close()
    return path.read_bytes(), ends


def test_gradients_in_a_log_that_still_grows(tmp_path: Path) -> None:
    data, ends = event_log(tmp_path / "events.log", 5)
    count = server_cpu.gradients_in
    assert count(data, tmp_path / "prefix") == 10
    assert count(data[: ends[2]], tmp_path / "prefix") == 6
    assert count(data[: ends[2] - 1], tmp_path / "prefix") == 4
    assert count(b"", tmp_path / "prefix") == 0


def test_cpu_between_two_moments_of_the_training(tmp_path: Path) -> None:
    data, ends = event_log(tmp_path / "events.log", 60)
    moments = [
        server_cpu.Sample(1.0, {"S": 9.0}, ends[0] - 1),  # before the first step: the start costs, too
        server_cpu.Sample(2.0, {"S": 10.0, "W": 20.0}, ends[9], 100.0),
        server_cpu.Sample(2.5, {"S": 10.02, "W": 20.5}, ends[30]),
        server_cpu.Sample(3.0, {"S": 10.08, "W": 21.0}, ends[49], 101.5),
        server_cpu.Sample(4.0, {"S": 50.0, "W": 60.0}, len(data)),  # after the last one: the evaluation
    ]
    used = server_cpu.usage(moments, data, tmp_path / "prefix")
    assert (used.seconds, used.gradients) == (1.0, 80)
    assert used.others == pytest.approx(0.42)
    assert used.used == pytest.approx({"S": 0.08, "W": 1.0}) and used.server_ms == pytest.approx(1.0)


def test_a_run_too_short_for_its_cpu_is_said_to_be(tmp_path: Path) -> None:
    data, ends = event_log(tmp_path / "events.log", 30)
    moments = [server_cpu.Sample(float(i), {"S": 1.0}, ends[i]) for i in (5, 10)]
    with pytest.raises(ratio_sides.SideError, match="too short"):
        server_cpu.usage(moments, data, tmp_path / "prefix")


def test_synthetic_tsv_is_criteos_format() -> None:
    from gbactl.data.readers.criteo import parse
    from gbactl.data.text_files import BadLines, LineBlock

    block = tsv_preparation.block(np.random.default_rng(0), 500)
    batch = parse(LineBlock(Path("f"), 1, block), 1000, BadLines(0))
    assert batch is not None and len(batch) == 500
    assert set(batch.labels.tolist()) == {0, 1} and 0.05 < (batch.ids == 0).mean() < 0.15


def test_a_tsv_is_prepared_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(tsv_preparation.block(np.random.default_rng(0), 2000))
    rate, peak = tsv_preparation.measure(path)
    assert rate > 0 and 50 < peak < 1000
    assert list((tmp_path / "cache").glob("criteo-*/meta.json"))


def test_a_tsv_that_cannot_be_prepared_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("no Criteo\n")
    with pytest.raises(GbactlError, match="columns"):
        tsv_preparation.measure(tmp_path / "train.txt")


def progress(samples: int) -> Any:
    return SimpleNamespace(name="progress", fields={"samples": samples})


def test_virtual_and_plain_blocks_alternate() -> None:
    steps: list[int] = []
    sides = virtual_cost.Alternating(steps.append, 8)
    for event in (progress(10), SimpleNamespace(name="phase", fields={}), progress(10), progress(30), progress(60)):
        sides(event)
    assert len(sides.virtual) == len(sides.plain) == 2
    assert steps == list(range(2 * (virtual_cost.BLOCK + 1)))


def test_what_measuring_costs_is_a_share_of_the_cpu_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ratio_sides.Bench(Path(), 1000, 1.0)
    rounds = iter([
        {"gradient": 10_000.0, "curves": 50.0, "worker": 10.0, "server": 20.0, "coordinator": 25.0, "sums": 5.0},
        {"gradient": 10_000.0, "curves": 150.0, "worker": 10.0, "server": 10.0, "coordinator": 5.0, "sums": 5.0},
    ])  # fmt: skip
    monkeypatch.setattr(ratio_sides.Bench, "command", lambda *_: json.dumps(next(rounds)))
    curves, times = measuring_cost.lines(bench, 512, 2, lambda _: None)
    assert curves.values == [0.5, 1.5] and times.values == pytest.approx([0.6, 0.3])
    assert (curves.target, times.target, curves.at_least, curves.percent) == (1.0, 0.5, False, True)
    assert times.note == "last round: worker 10.0, server 10.0, coordinator 5.0, sums 5.0 / 10,000 us"


def test_measuring_takes_less_cpu_than_the_gradient_after_which_it_is_called() -> None:
    small = ["data=synthetic", "data.days=2", "data.rows_per_day=2000", "model.hidden=[8]", "train.global_batch=256"]
    found = measuring_cost.medians(measuring_cost.calls(small), turns=3)
    assert set(found) == {"gradient", "curves", "worker", "server", "coordinator"}
    assert all(0 < us < found["gradient"] for name, us in found.items() if name != "gradient")
    assert 0 < measuring_cost.sums_of_times() < found["gradient"]


def test_the_ends_of_a_virtual_run_do_not_count() -> None:
    inner = virtual_cost.inner
    assert inner([100.0] * 3 + [1.0, 2.0, 3.0, 4.0, 5.0] + [100.0] * 2) == 3.0
    with pytest.raises(SystemExit, match="too short"):
        inner([1.0] * 9)

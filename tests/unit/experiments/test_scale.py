"""Scale study: its arithmetic, and tiny cells of the emulated coordinator and of the virtual cluster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import arithmetic
import coordinator_core
import coordinator_sockets
import pytest
import study
import virtual_scale
import write_scale

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "scale"
VIRTUAL = (
    "cluster=virtual", "cost=cluster_10gbe", "data=synthetic", "data.days=2", "data.rows_per_day=512", "data.fields=2",
    "data.max_cardinality=50", "model.dim=2", "model.hidden=[2]", "mode.local_batch=2", "mode=gba", "cluster.workers=8",
    "cluster.servers=2", "train.global_batch=16", "cost.batch_us=50000", "+tracking.tags.stands_for='9'",
    "+tracking.tags.batches='4'",
)  # fmt: skip

# of the page's table of loads: what the arithmetic calls it
ROWS = {
    "messages of the coordinator": "coordinator, messages",
    "process of a server": "a server's process",
    "network interface of a server": "a server's network interface, inward",
    "messages of the agents": "launcher, agents' pulses",
    "event log": "event log",
}


def test_what_breaks_first() -> None:
    costs = arithmetic.Costs(30.0, 20.0, 200.0, 0.6, 60.0, 30.0, 0.03, 20.0)
    job = arithmetic.Job(100, 10)
    found = {load.resource: load for load in arithmetic.loads(job, costs)}
    assert job.gradients == 2000
    messages = found["coordinator, messages"]
    assert messages.carries == pytest.approx(2000 * 21)
    assert messages.factor == pytest.approx(2000 * 230e-6), "its CPU: 30 us and 20 us a server, a gradient"
    inward = 2000 * (4 * (7000 * 17 + 493_000) + 8 * 7000) / 10 / 1e9
    assert found["a server's network interface, inward"].carries == pytest.approx(inward)
    assert found["event log"].carries == pytest.approx(2000 * 60 * 86_400 / 1e9)
    ten = {load.resource: load for load in arithmetic.loads(replace(job, workers=1000, servers=100), costs)}
    growth = ten["coordinator, messages"].factor / messages.factor
    assert growth == pytest.approx(10 * 2030 / 230), "ten times the gradients, each with ten times the servers"
    assert arithmetic.first(list(ten.values())) is ten["coordinator, messages"]
    fewer = arithmetic.loads(replace(job, orders=0.01), costs)[0]
    assert fewer.factor < messages.factor
    can = arithmetic.carried(job, costs)
    assert can["coordinator, messages"] == pytest.approx(1 / 230e-6)
    assert can == pytest.approx(arithmetic.carried(replace(job, workers=7), costs)), "however many workers"
    now, packed, once = arithmetic.coordinators(job, costs, 15.0)
    assert (now, packed) == (pytest.approx(messages.factor), pytest.approx(2000 * 80e-6)), "5 us a server are left"
    assert once == pytest.approx(2000 * 130e-6), "orders cost half of what a server costs"


def test_the_page_has_the_loads_of_the_measured_costs() -> None:
    found = [arithmetic.loads(arithmetic.Job(*size, orders=1.0), write_scale.costs()) for size in write_scale.SIZES]
    factors = {loads[0].resource: [load.factor for load in loads] for loads in zip(*found, strict=True)}
    page = (FOLDER.parents[1] / "docs" / "studies" / "scale.md").read_text()
    for row, resource in ROWS.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {row}"))
        for text, factor in zip(line.split(" | ")[1:], factors[resource], strict=True):
            digits = len(re.sub(r"\D", "", text).lstrip("0"))
            assert float(f"{factor:.{digits}g}") == float(re.sub(r"[^\d.]", "", text)), f"{row}: {factor}"


@pytest.mark.parametrize(("mode", "messages"), [("async", 5.0), ("sync", 3.5)])
def test_an_emulated_coordinator(mode: str, messages: float, tmp_path: Path) -> None:
    given = [f"mode={mode}", "cluster.workers=4", "cluster.servers=2", "+tracking.tags.batches='150'"]
    found = coordinator_core.run(given, tmp_path)
    assert found["gradients"] == 600
    assert found["messages"] == pytest.approx(messages, abs=0.6), "a grant, and of both servers a slice and an order"
    assert 20 < found["log_bytes"] < 100


@pytest.mark.slow
def test_emulated_nodes_of_a_coordinator_process(tmp_path: Path) -> None:
    given = ["mode=async", "cluster.workers=2", "cluster.servers=1", "+tracking.tags.batches='768'"]
    found = coordinator_sockets.run(given, tmp_path)
    assert found["gradients"] == 768 and found["us"] > 0 and found["rate"] > 0
    assert found["messages"] == pytest.approx(3.0, abs=0.6), "a grant, a slice and an order"


def test_a_virtual_cluster(tmp_path: Path) -> None:
    found = virtual_scale.run(VIRTUAL, tmp_path)  # of four steps, one is the steady part
    assert 100 < found["gradients_a_second"] < 8 / 0.05
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in found["busy"].values()) and found["busy"]["coordinator"] > 0


def test_the_sweep_is_read() -> None:
    parts = study.read_study(FOLDER / "sweep.yaml")
    assert {cell.runner for part in parts for cell in part.cells} <= {path.stem for path in FOLDER.glob("*.py")}

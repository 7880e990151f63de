"""The bench: which lines there are, how a ratio and its target are judged, what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_lines
import bench_ratios
import bench_report
import pytest
import ratio_sides

TARGETS = {
    "async-shm": 0.93, "async-tcp": 0.82, "async-bf16": 0.85, "bf16-async": 1.55, "gba": 0.98, "rpc": 1.25,
    "rpc-ahead": 1.25, "saving": 0.99, "priority-scar": 0.99, "priority-mfu": 0.99, "priority-ssu": 0.99,
    "sync-512": 0.70, "sync-4096": 0.87, "sync-shm-512": 0.80, "sync-shm-4096": 0.90, "hvd-512": 1.3, "hvd-4096": 1.3,
    "ddp-shm": 1.3, "ddp-horovod": 1.3, "bf16-single": 1.7, "alone-fp32": 1.22, "alone-bf16": 1.9, "rows": 0.90,
    "encrypt": 0.85, "strangers": 0.90, "strangers-once": 0.90, "lists": 0.77,
    "data-path": 20.0, "data-path-shuffle": 20.0, "server-cpu-2": 1.3, "server-cpu-4": 1.6,
}  # fmt: skip


def some_bench(folder: Path = Path()) -> Any:
    return ratio_sides.Bench(folder, 1000, 1.0)


def side(*rates: float) -> Any:
    waiting: Iterator[float] = iter(rates)
    return lambda: {"rate": next(waiting)}


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def test_every_target_stands() -> None:
    pairs = bench_ratios.pairs(some_bench())
    assert {pair.name: pair.target for pair in pairs} == TARGETS
    assert [pair.name for pair in pairs if not pair.at_least] == ["server-cpu-2", "server-cpu-4"]


def test_a_line_with_sync_names_its_collective() -> None:
    of_sync = [pair for pair in bench_ratios.pairs(some_bench()) if "sync" in pair.what.replace("async", "")]
    assert len(of_sync) == 8
    assert all("collective=horovod" in pair.what or "collective=shm" in pair.what for pair in of_sync)


def test_a_pair_alternates_and_divides() -> None:
    order: list[str] = []

    def told(name: str, rates: Any) -> Any:
        return lambda: order.append(name) or rates()

    pair = bench_lines.Pair("x", "x / y", told("variant", side(90.0, 100.0)), told("base", side(100.0, 80.0)), 1.0)
    line = pair.measure(2, quiet)
    assert order == ["base", "variant"] * 2
    assert line.values == [0.9, 1.25] and line.median == pytest.approx(1.075) and line.met
    assert line.note == "95.00 / 90.00 samples/s"


@pytest.mark.parametrize(
    ("at_least", "value", "met"), [(True, 1.0, True), (True, 0.9, False), (False, 1.0, True), (False, 1.1, False)]
)
def test_a_target_is_a_floor_or_a_ceiling(at_least: bool, value: float, met: bool) -> None:
    pair = bench_lines.Pair("x", "x", side(value), side(1.0), 1.0, at_least)
    assert pair.measure(1, quiet).met is met


def test_without_a_target_nothing_is_met_or_missed() -> None:
    assert bench_lines.Line("x", "x", [1.0]).met is None


@pytest.fixture(scope="module")
def run(run_script: Any) -> Any:
    return run_script("performance")


def test_only_takes_a_name_or_the_beginning_of_names(run: Any) -> None:
    known, picked = ("sync-512", "sync-shm-512", "data-path", "data-path-shuffle", "gba"), run.picked
    assert picked(None, known) == list(known)
    assert picked(["gba", "sync"], known) == ["gba", "sync-512", "sync-shm-512"]
    assert picked(["data-path"], known) == ["data-path"]
    assert picked(["sync-shm", "sync"], known) == ["sync-shm-512", "sync-512"]
    with pytest.raises(KeyError, match="sync-51'"):
        picked(["sync-51"], known)


def test_every_measurement_has_a_name(run: Any, tmp_path: Path) -> None:
    names = set(run.jobs(some_bench(tmp_path), 1, True, quiet))
    assert set(TARGETS) < names
    assert {"kernel-copy", "tsv", "virtual-128", "virtual-512", "server-cpu-shm", "server-cpu-tcp"} < names
    assert {"measuring-128", "measuring-512"} < names


def test_neither_a_failure_nor_a_cut_costs_the_other_lines(run: Any) -> None:
    line = bench_lines.Line("good", "x", [1.0])

    def fails() -> Any:
        raise run.SideError("no figure")

    kept: list[tuple[list[Any], dict[str, str]]] = []

    def keep(found: list[Any], failed: dict[str, str]) -> None:
        kept.append((list(found), dict(failed)))

    found, failed = run.measure({"bad": fails, "good": lambda: [line]}, keep)
    assert found == [line] and failed == {"bad": "no figure"}
    assert kept == [([], failed), ([line], failed)]


def settings(**changed: Any) -> dict[str, Any]:
    return {"rounds": 5, "rows": 400_000, "quick": False, "load_before": 0.1, "command": "run.py --out here"} | changed


HERE = {
    "cpu": "CPU", "cores": 2, "memory_gib": 23.4, "system": "Linux 6",
    "versions": {"python": "3.11.1", "torch": "2.13.0", "gbactl": "0.1.0"},
}  # fmt: skip


def test_the_results_say_how_where_and_with_what() -> None:
    make = bench_lines.Line
    found = [
        make("a", "up", [0.8, 1.0, 0.9], 0.95), make("b", "down", [1.0], 1.3, at_least=False, note="n"),
        make("c", "free", [3.0]),
    ]  # fmt: skip
    text = bench_report.text(found, settings(), {"d": "it took too long"}, HERE)
    assert text.splitlines() == [
        "# Results", "", "Last written by `run.py --out here`, which keeps the lines that it did not measure.", "",
        "Machine: CPU, 2 cores, 23.4 GiB, Linux 6; load 0.1 before. "
        "Versions: python 3.11.1, torch 2.13.0, horovod none, gbactl 0.1.0.", "",
        "Each figure is the median of alternating rounds, with their range; a run trains 400,000 samples. "
        "1 of 2 targets are met.", "",
        "| line | what | measured | min - max | target |  | figures |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | up | 0.900 | 0.800 - 1.000 | >= 0.95 | missed |  |",
        "| b | down | 1.000 |  | <= 1.3 | met | n |",
        "| c | free | 3.000 |  |  |  |  |",
        "", "Not measured: `d`: it took too long",
    ]  # fmt: skip


def test_a_quick_run_says_so() -> None:
    assert "its figures mean nothing" in bench_report.text([], settings(quick=True), {}, HERE)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    line = bench_lines.Line("a", "up", [1.0, 3.0], 1.5)
    bench_report.write(tmp_path, [line], settings(), {})
    read = json.loads((tmp_path / "results.json").read_text())
    assert read["lines"][0]["median"] == 2.0 and read["lines"][0]["met"] is True
    assert {"python", "torch", "gbactl"} <= set(read["machine"]["versions"])
    assert "| a | up | 2.000 |" in (tmp_path / "results.md").read_text()


def test_lines_that_were_not_measured_again_stay(tmp_path: Path) -> None:
    make, write = bench_lines.Line, bench_report.write
    write(tmp_path, [make("a", "up", [1.0]), make("b", "up", [1.0])], settings(), {})
    write(tmp_path, [make("b", "up", [2.0])], settings(), {})
    kept = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert [(line["name"], line["median"]) for line in kept] == [("a", 1.0), ("b", 2.0)]
    write(tmp_path, [make("c", "up", [3.0])], settings(quick=True), {})
    assert [line["name"] for line in json.loads((tmp_path / "results.json").read_text())["lines"]] == ["c"]
    write(tmp_path, [make("d", "up", [4.0])], settings(), {})
    assert [line["name"] for line in json.loads((tmp_path / "results.json").read_text())["lines"]] == ["d"]


def test_the_command_is_one_for_a_checkout() -> None:
    script = bench_report.ROOT / "experiments" / "performance" / "run.py"
    told = bench_report.command_line([str(script), "--only", "a b"])
    assert told == ".venv/bin/python experiments/performance/run.py --only 'a b'"

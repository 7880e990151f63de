"""The map of the modes: which cells it trains, what its script makes of their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import write_map


def cell(mode: str, seed: int, auc: float, seconds: float, workers: int = 8) -> Any:
    phases = [{"first_step": 0, "samples": 100, "seconds": seconds}, {"first_step": 1, "samples": 100, "seconds": 1.0}]
    result = {"auc": auc, "phases": phases, "best_possible_auc": 0.9}
    options = {"mode": mode, "seed": str(seed), "optim.lr": "0.002", "cluster.workers": str(workers)}
    return write_map.Done(options, result, Path())


@pytest.fixture
def cells() -> list[Any]:
    made = []
    for seed in (1, 2):
        made += [cell("sync", seed, 0.8, 3.0), cell("gba", seed, 0.8001 + 1e-5 * seed, 1.0)]
        made.append(cell("async", seed, 0.8 - 0.01 * seed, 0.6))
    return [*made, cell("async", 1, 0.7, 1.0, workers=16)]  # sync of as many is missing


def test_sizes_differ_in_seeds_and_samples_alone() -> None:
    study = write_map.study
    parts = {size: study.read_study(write_map.STUDY.sweep, size) for size in ("default", "tiny")}
    assert [len(part.cells) for part in parts["default"]] == [5 * 72, 5 * 48]
    assert len({cell.base for part in parts["default"] for cell in part.cells}) == 15
    assert all("data.rows_per_day=20000" in cell.base for part in parts["tiny"] for cell in part.cells)


def test_a_mode_is_compared_with_sync_of_the_same_place_and_seed(cells: list[Any]) -> None:
    aucs = write_map.compared(cells, "optim.lr", write_map.auc_difference)
    assert aucs == {
        "gba": {("0.002", "8"): [pytest.approx(1.1e-4), pytest.approx(1.2e-4)]},
        "async": {("0.002", "8"): [pytest.approx(-0.01), pytest.approx(-0.02)]},
    }
    ratios = write_map.compared(cells, "optim.lr", write_map.eps_ratio)
    assert ratios["gba"]["0.002", "8"] == [2.0, 2.0]  # 200 / 4 s and 200 / 2 s
    assert write_map.gaps(cells) == "The best possible AUC minus the AUC of sync, by learning rate: 0.1000 at 0.002.\n"


def test_the_lead_of_gba_over_each_derived_mode(cells: list[Any]) -> None:
    text = write_map.leads(cells, "optim.lr", "learning rate")
    assert "| gba minus mode, learning rate | AUC, 8 |" in text and "| sync" not in text
    assert "| async, 0.002 | +0.0151 +-0.0636 |" in text


def test_what_is_safe_is_bold(cells: list[Any], tmp_path: Path) -> None:
    aucs = write_map.compared(cells, "optim.lr", write_map.auc_difference)
    ratios = write_map.compared(cells, "optim.lr", write_map.eps_ratio)
    text = write_map.table(aucs, ratios, "learning rate")
    assert "| gba, 0.002 | **+0.0001 +-0.0001** | 2.00 +-0.00 |" in text
    assert "| async, 0.002 | -0.0150 +-0.0635 | 2.50 +-0.00 |" in text
    write_map.plot(aucs, ratios, "learning rate", tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000

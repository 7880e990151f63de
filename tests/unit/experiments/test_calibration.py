"""The study of the calibrated cost model: which cells it trains, and the table made of what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accuracy
import pytest
import study

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "calibration"


def record(mode: str, workers: int, eps: float, others: float = 0.0) -> dict[str, Any]:
    return {"mode": mode, "workers": workers, "phase_eps": eps, "others": others}


LOCAL = [record("gba", 2, 100.0), record("gba", 8, 90.0, 0.1), record("gba", 8, 110.0), record("sync", 8, 50.0)]


def test_a_line_compares_the_mean_of_its_runs_with_the_prediction() -> None:
    table = accuracy.table(LOCAL, [record("gba", 8, 104.0), record("gba", 2, 99.0), record("sync", 8, 50.0)])
    assert table.splitlines()[2:] == [
        "| gba | 2 | yes | 1 | 100 | 99 | -1.0 % | 0.00 |",
        "| gba | 8 | no | 2 | 100 +-14 | 104 | +4.0 % | 0.05 |",
        "| sync | 8 | no | 1 | 50 | 50 | +0.0 % | 0.00 |",
    ]


@pytest.mark.parametrize(("eps", "word"), [(91.0, "met"), (89.0, "missed"), (111.0, "missed")])
def test_only_workers_that_the_fit_did_not_see_are_judged(eps: float, word: str) -> None:
    verdict = accuracy.verdict(LOCAL, [record("gba", 2, 500.0), record("gba", 8, eps), record("sync", 8, 50.0)])
    assert f": {word};" in verdict and f"{abs(eps - 100):.1f} % (gba)" in verdict


def test_local_and_virtual_cells_are_the_same_trainings() -> None:
    parts = {part.name: part for part in study.read_study(FOLDER / "sweep.yaml")}

    def kinds(part: Any) -> set[frozenset[str]]:
        own = ("seed=", "cluster=", "cost=", "cluster.threads=")
        return {frozenset(o for o in cell.overrides if not o.startswith(own)) for cell in part.cells}

    assert kinds(parts["local"]) == kinds(parts["virtual"]) and len(kinds(parts["local"])) == 9
    assert all("cluster=virtual" in cell.overrides for cell in parts["virtual"].cells)

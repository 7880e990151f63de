"""The study of ShadowSync: which cells it trains, and what its tables make of results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "shadowsync"


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    sys.path[:0] = [str(FOLDER), str(EXPERIMENTS)]
    return {name: importlib.import_module(name) for name in ("done", "study", "tables")}


def done(scripts: Any, line: str, workers: int, seed: int, **result: Any) -> Any:
    options = {"line": line, "cluster.workers": str(workers), "seed": str(seed)}
    return scripts["done"].Done(options, result, Path())


@pytest.mark.parametrize("size", ["default", "full", "tiny"])
def test_the_sweep_holds_every_part(scripts: Any, size: str) -> None:
    parts = {part.name: part for part in scripts["study"].read_study(FOLDER / "sweep.yaml", size)}
    assert list(parts) == ["speed", "speed_local", "quality", "elp", "ablation", "modes"]
    assert parts["speed_local"].jobs == 1


def test_one_cell_of_every_line_composes(scripts: Any) -> None:
    lines = {}
    for part in scripts["study"].read_study(FOLDER / "sweep.yaml"):
        for cell in part.cells:
            options = scripts["done"].options(cell.overrides)
            lines[part.name, options.get("line", options["mode"])] = cell
    assert len({scripts["study"].key_of(cell, "v") for cell in lines.values()}) == len(lines)


def test_scaling_is_against_one_trainer_of_the_same_line_and_seed(scripts: Any) -> None:
    eps = {1: 100.0, 4: 360.0}
    cells = [done(scripts, "shadow_ma", n, seed, eps=seed * eps[n]) for n in eps for seed in (1, 2)]
    table = scripts["tables"].scaling(cells)
    assert "| shadow_ma | **1.000 +-0.000** | 0.900 +-0.000 |" in table


def test_quality_is_in_percent_and_against_the_foreground(scripts: Any) -> None:
    loss = {("shadow_ma", 1): 0.5, ("shadow_ma", 4): 0.505, ("fr_ma", 1): 0.5, ("fr_ma", 4): 0.51}
    cells = [done(scripts, line, n, 1, logloss=value) for (line, n), value in loss.items()]
    table = scripts["tables"].quality(cells)
    assert "| shadow_ma | 0.000 | 1.000 |" in table and "| fr_ma | 0.000 | 2.000 |" in table
    assert "| shadow_ma against fr_ma | **0.000** | **-0.980** |" in table


def test_the_largest_elp_is_the_largest_that_keeps_the_auc(scripts: Any) -> None:
    aucs = {128: 0.8, 1024: 0.7996, 4096: 0.79}
    cells = [done(scripts, "shadow_ma", 1, 1, auc=auc, replicas={"elp": elp}) for elp, auc in aucs.items()]
    assert "| shadow_ma | **0.0000** | **-0.0004** | -0.0100 | 1,024 |" in scripts["tables"].parallelism(cells)


def test_a_mode_without_replicas_has_no_gap(scripts: Any) -> None:
    common = {"auc": 0.8, "logloss": 0.5, "eps": 100.0, "staleness": {"mean": 1.0}}
    told = {"sync_gap": {"mean": 2.5}, "foreground_seconds": 0.0, "bytes_exchanged": 2e6, "distance": [[1.0, 0.25]]}
    cells = [done(scripts, "sync", 1, 1, **common), done(scripts, "shadow_ma", 1, 1, **common, replicas=told)]
    table = scripts["tables"].listing(cells, "line")
    assert "| sync | 0.80000 | 0.50000 | 100 | 1.00 | - | - | - | - |" in table
    assert "| shadow_ma | 0.80000 | 0.50000 | 100 | 1.00 | 2.50 | 0.00 | 2 | 0.2500 |" in table

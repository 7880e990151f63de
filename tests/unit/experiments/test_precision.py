"""The study of precision: which cells it trains, what its table says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "precision"


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    sys.path[:0] = [str(FOLDER), str(EXPERIMENTS)]
    return {name: importlib.import_module(name) for name in ("done", "study", "compare_precision")}


@pytest.mark.parametrize("size", ["default", "full"])
def test_every_training_is_there_in_both(scripts: Any, size: str) -> None:
    from gbactl.compose import compose

    for part in scripts["study"].read_study(FOLDER / "sweep.yaml", size):
        cells = [scripts["done"].options(cell.overrides) for cell in part.cells]
        kinds = [{(c["mode"], c["seed"]) for c in cells if c["precision"] == each} for each in ("fp32", "bf16")]
        assert kinds[0] == kinds[1] and len(kinds[0]) >= 10
        cfg = compose([*part.cells[0].overrides, "data=synthetic"])
        assert cfg.tracking.experiment == "precision" and cfg.cluster.name == "virtual"


def test_bf16_is_compared_with_fp32_of_the_same_seed(scripts: Any) -> None:
    made, found = scripts["done"].Done, []
    for mode, off in (("sync", -0.0001), ("gba", -0.001)):
        for seed, auc in (("1", 0.8), ("2", 0.7)):
            options = {"mode": mode, "seed": seed}
            found += [
                made({**options, "precision": "bf16"}, {"auc": auc + off, "logloss": 0.5}, Path()),
                made({**options, "precision": "fp32"}, {"auc": auc, "logloss": 0.4}, Path()),
            ]
    sync, gba = scripts["compare_precision"].table({"synthetic": found}).splitlines()[2:]
    assert sync == (
        "| synthetic | sync | 2 | 0.75000 | **-0.00010 +-0.00000** | 0.40000 | +0.10000 +-0.00000 |"
    )
    assert "| gba | 2 | 0.75000 | -0.00100 +-0.00000 |" in gba

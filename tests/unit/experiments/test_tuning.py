"""The study of tuning: Optuna's trials are the recorded cells, and the best of each mode are trained on other data."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "tuning"


@pytest.fixture(scope="module")
def tune() -> Any:
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
    return importlib.import_module("tune")


def template(tune: Any, mode: str) -> Any:
    cells = tune.study_results.part(tune.SWEEP, "trials").cells
    return next(cell for cell in cells if f"mode={mode}" in cell.overrides)


def runner(tune: Any, record: Any, ran: list[Any]) -> Any:
    """Runs cells by recording an AUC that is largest at a rate of .001."""

    def run(cells: list[Any]) -> None:
        for cell in cells:
            ran.append(cell)
            rate = float(tune.study_results.options(cell.overrides)["optim.lr"])
            auc = 0.8 - abs(rate - 0.001)
            record.add(cell, tune.study.key_of(cell), "v", 1.0, {"auc": auc})

    return run


def test_trials_go_on_from_the_record(tune: Any, tmp_path: Path) -> None:
    record, ran = tune.study.Record(tmp_path / "cells.jsonl"), list[Any]()
    hop_bs = template(tune, "hop_bs")
    tune.tune(hop_bs, 6, record, runner(tune, record, ran))
    assert len(ran) == 6 and len(tune.trials(record, hop_bs)) == 6
    best = tune.tune(hop_bs, 9, record, runner(tune, record, ran))
    assert len(ran) == 9
    rates = [float(tune.study_results.options(cell.overrides)["optim.lr"]) for cell in ran]
    assert best["optim.lr"] == min(rates, key=lambda rate: abs(rate - 0.001))
    assert set(best) == {"optim.lr", "optim.beta1", "mode.bound"} and isinstance(best["mode.bound"], int)
    assert not tune.trials(record, template(tune, "async"))
    tune.tune(template(tune, "async"), 4, record, ran.extend)  # which record nothing: all of them diverged
    assert [auc for _, auc in tune.trials(record, template(tune, "async"))] == [tune.FAILED] * 4


def test_the_best_of_each_mode_is_reported_on_other_data(tune: Any, tmp_path: Path) -> None:
    chosen = {"async": {"optim.lr": 0.00051234, "optim.beta1": 0.5}}
    path = tmp_path / "chosen.yaml"
    path.write_text(yaml.safe_dump(tune.with_chosen(yaml.safe_load(tune.SWEEP.read_text()), chosen)))
    (part,) = tune.study.read_study(path)
    lines = {tune.study_results.options(cell.overrides)["line"]: cell for cell in part.cells}
    assert set(lines) == {"sync", "async", "hop_bs", "gba", "async-tuned"}
    assert lines["async-tuned"].overrides[-4:-1] == ("mode=async", "optim.lr=0.0005123", "optim.beta1=0.5")
    tuned_on = tune.study_results.seeds(tune.study_results.part(tune.SWEEP, "trials").cells)
    assert set(tuned_on).isdisjoint(tune.study_results.seeds(part.cells))

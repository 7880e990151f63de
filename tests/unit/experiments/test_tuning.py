"""The study of tuning: trials of a sweep are recorded, and the best of each mode are trained on other data."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import tune
import yaml

from gbactl.errors import GbactlError
from gbactl.tracking.run_description import CommandLine


def template(mode: str) -> Any:
    cells = tune.STUDY.part("trials").cells
    return next(cell for cell in cells if f"mode={mode}" in cell.overrides)


def test_trials_are_recorded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, given, rates = tune.study.Record(tmp_path / "cells.jsonl"), list[list[str]](), [0.003, 0.001, 0.009, 0.002]

    def sweep(arguments: list[str], trial: Any) -> None:
        given.append(arguments)
        for rate in rates:
            command = CommandLine("train", (*arguments[3:5], f"optim.lr={rate}", "optim.beta1=0.5", "mode.bound=3"))
            with contextlib.suppress(GbactlError):
                trial(rate, command)

    def train(rate: float, command: CommandLine) -> dict[str, Any]:
        if rate > 0.005:
            raise GbactlError("diverged")
        return {"auc": 0.8 - abs(rate - 0.001), "wall_seconds": 1.0}

    monkeypatch.setattr(tune, "run_hydra", sweep)
    monkeypatch.setattr(tune, "train", train)
    monkeypatch.setattr(tune.study, "trained", lambda base: {"run_dir": "base"})
    hop_bs = template("hop_bs")
    best = tune.tune(hop_bs, 4, record)
    assert best == {"optim.lr": 0.001, "optim.beta1": 0.5, "mode.bound": 3} and isinstance(best["mode.bound"], int)
    assert [auc for _, auc in tune.trials(record, hop_bs)][2] == tune.FAILED
    assert "hydra.sweeper.n_trials=4" in given[0] and "mode.bound=tag(log, int(interval(1, 16)))" in given[0]
    assert tune.tune(hop_bs, 4, record) == best and len(given) == 1, "recorded trials are not run again"
    assert not tune.trials(record, template("async"))


def test_the_best_of_each_mode_is_reported_on_other_data(tmp_path: Path) -> None:
    chosen = {"async": {"optim.lr": 0.00051234, "optim.beta1": 0.5}}
    path = tmp_path / "chosen.yaml"
    path.write_text(yaml.safe_dump(tune.with_chosen(yaml.safe_load(tune.STUDY.sweep.read_text()), chosen)))
    (part,) = tune.study.read_study(path)
    lines = {tune.study_results.options(cell.overrides)["line"]: cell for cell in part.cells}
    assert set(lines) == {"sync", "async", "hop_bs", "gba", "async-tuned"}
    assert lines["async-tuned"].overrides[-4:-1] == ("mode=async", "optim.lr=0.0005123", "optim.beta1=0.5")
    tuned_on = tune.study_results.seeds(tune.STUDY.part("trials").cells)
    assert set(tuned_on).isdisjoint(tune.study_results.seeds(part.cells))

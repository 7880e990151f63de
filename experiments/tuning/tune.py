"""Give each mode the same number of Optuna trials on a validation day, then train its best on other data.

    .venv/bin/python experiments/tuning/tune.py        # goes on where it was interrupted

The trials of a mode are one `gbactl train -m hydra/sweeper=optuna`; each is recorded in cells.jsonl when it has ended.
Writes chosen.yaml: the sweep of what is reported. Costs a quarter of a minute a trial.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402  (scripts of the parent folder, not a package)
import study_results  # noqa: E402

from gbactl.config import RunConfig  # noqa: E402
from gbactl.errors import GbactlError  # noqa: E402
from gbactl.launch.hydra_config import run_hydra  # noqa: E402
from gbactl.launch.training_run import train  # noqa: E402
from gbactl.tracking.run_description import CommandLine  # noqa: E402

STUDY = study_results.Results(HERE / "sweep.yaml")
TRIALS = {"tiny": 6}  # trials a mode by size, 20 if it is not there
SPACE = {"optim.lr": "tag(log, interval(1e-4, 1e-2))", "optim.beta1": "interval(0.0, 0.95)"}
OPTIONS = {"hop_bs": {"mode.bound": "tag(log, int(interval(1, 16)))"}, "gba": {"mode.iota": "int(interval(0, 8))"}}
FAILED = 0.5  # AUC of a trial that diverged
Params = Mapping[str, float]


def space(mode: str) -> dict[str, str]:
    """Options of a mode that are tuned, with their ranges as Hydra takes them."""
    return SPACE | OPTIONS.get(mode, {})


def overrides(params: Params) -> tuple[str, ...]:
    """Overrides of a trial, with four digits."""
    return tuple(f"{name}={value:.4g}" for name, value in params.items())


def params_of(mode: str, given: Sequence[str]) -> dict[str, float]:
    """Parameters of a trial, read from its overrides."""
    options = study_results.options(given)
    return {name: (int if name.startswith("mode.") else float)(options[name]) for name in space(mode)}


def trials(record: study.Record, template: study.Cell) -> list[tuple[dict[str, float], float]]:
    """Recorded trials of a mode: parameters and AUC."""
    mode, common = study_results.options(template.overrides)["mode"], list(template.overrides)
    return [
        (params_of(mode, line["overrides"]), line["result"]["auc"])
        for line in record.lines.values()
        if line["part"] == template.part and line["overrides"][: len(common)] == common
    ]


def tune(template: study.Cell, count: int, record: study.Record) -> Params:
    """Run the trials of a mode unless all of them are recorded; return the parameters of the best one."""
    mode, version = study_results.options(template.overrides)["mode"], study.code_version()

    def trial(cfg: RunConfig, command: CommandLine) -> dict[str, Any]:
        own = tuple(text for text in command.overrides if text.partition("=")[0] in space(mode))
        cell = replace(template, overrides=(*template.overrides, *own))
        try:
            result = train(cfg, command)
        except GbactlError:
            record.add(cell, version, 0.0, {"auc": FAILED})
            raise
        record.add(cell, version, result["wall_seconds"], result)
        return result

    if len(trials(record, template)) < count:
        ranges = [f"{key}={values}" for key, values in space(mode).items()]
        given = [*study.overrides_of(template), "tracking.enabled=false", *ranges]
        run_hydra(["-m", "hydra/sweeper=optuna", f"hydra.sweeper.n_trials={count}", *given], trial)
    return max(trials(record, template), key=lambda trial: trial[1])[0]


def with_chosen(sweep: dict[str, Any], chosen: Mapping[str, Params]) -> dict[str, Any]:
    """Sweep of the reported part, with the best trial of each mode."""
    part = sweep["parts"]["reported"]
    lines = [
        [f"+tracking.tags.line={mode}-tuned", f"mode={mode}", *overrides(params)] for mode, params in chosen.items()
    ]
    part["grid"]["line"] = [*part["grid"]["line"], *lines]
    return {**sweep, "parts": {"reported": part}}


def main() -> None:
    """Run the trials and what is reported."""
    size = study_results.size()
    record, part = study.Record.of(STUDY.sweep, size), STUDY.part("trials")
    count = TRIALS.get(size, 20)
    chosen = {study_results.options(cell.overrides)["mode"]: tune(cell, count, record) for cell in part.cells}
    path = STUDY.place / "chosen.yaml"
    path.write_text(yaml.safe_dump(with_chosen(yaml.safe_load(STUDY.sweep.read_text()), chosen), sort_keys=False))
    study.run_parts(study.read_study(path, size), record)


if __name__ == "__main__":
    main()

"""Give each mode the same number of Optuna trials on a validation day, then train its best on other data.

    .venv/bin/python experiments/tuning/tune.py        # goes on where it was interrupted

The trials that are recorded in cells.jsonl are told to Optuna first. Writes chosen.yaml: the sweep of what is reported.
Costs a quarter of a minute a trial, two at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402  (scripts of the parent folder, not a package)
import study_results  # noqa: E402
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution  # noqa: E402

SWEEP = HERE / "sweep.yaml"
TRIALS, TOGETHER = {"tiny": 6}, 4  # trials a mode by size, 20 if it is not there; trials that Optuna suggests at once
SPACE: dict[str, BaseDistribution] = {
    "optim.lr": FloatDistribution(1e-4, 1e-2, log=True), "optim.beta1": FloatDistribution(0.0, 0.95),
}  # fmt: skip
OWN: dict[str, BaseDistribution] = {"mode.bound": IntDistribution(1, 16, log=True), "mode.iota": IntDistribution(0, 8)}
OPTIONS = {"hop_bs": "mode.bound", "gba": "mode.iota"}
FAILED = 0.5  # AUC of a trial that diverged
Params = Mapping[str, float]


def space(mode: str) -> dict[str, BaseDistribution]:
    """Options of a mode that are tuned, with their ranges."""
    return {**SPACE, **({OPTIONS[mode]: OWN[OPTIONS[mode]]} if mode in OPTIONS else {})}


def overrides(params: Params) -> tuple[str, ...]:
    """Overrides of a trial, with four digits."""
    return tuple(f"{name}={value:.4g}" for name, value in params.items())


def params_of(mode: str, given: Sequence[str]) -> dict[str, float]:
    """Parameters of a trial, read from the overrides of its cell."""
    options, kinds = study_results.options(given), space(mode)
    return {
        name: int(options[name]) if isinstance(kind, IntDistribution) else float(options[name])
        for name, kind in kinds.items()
    }


def trials(record: study.Record, template: study.Cell) -> list[tuple[dict[str, float], float]]:
    """Recorded trials of a mode: parameters and AUC."""
    mode, common = study_results.options(template.overrides)["mode"], list(template.overrides)
    return [
        (params_of(mode, line["overrides"]), line["result"]["auc"])
        for line in record.lines.values()
        if line["part"] == template.part and line["overrides"][: len(common)] == common
    ]


def tune(template: study.Cell, count: int, record: study.Record, run: Callable[[list[study.Cell]], None]) -> Params:
    """Run the trials of a mode that are not recorded; return the parameters of the best one."""
    mode = study_results.options(template.overrides)["mode"]
    sampler = optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=True)
    tuned = optuna.create_study(direction="maximize", sampler=sampler)
    for params, auc in trials(record, template):
        tuned.add_trial(optuna.trial.create_trial(params=params, distributions=space(mode), value=auc))
    while len(tuned.trials) < count:
        asked = [tuned.ask(space(mode)) for _ in range(min(TOGETHER, count - len(tuned.trials)))]
        cells = [replace(template, overrides=(*template.overrides, *overrides(each.params))) for each in asked]
        run(cells)
        for trial, cell in zip(asked, cells, strict=True):
            key = study.key_of(cell)
            if key not in record.lines:
                record.add(cell, key, study.code_version(), 0.0, {"auc": FAILED})
            tuned.tell(trial, record.lines[key]["result"]["auc"])
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
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    size, version = study_results.size(), study.code_version()
    record, part = study.Record.of(SWEEP, size), study_results.part(SWEEP, "trials")
    count = TRIALS.get(size, 20)
    left = sum(max(0, count - len(trials(record, cell))) for cell in part.cells)
    progress = study.Progress({part.name: left + bool(left)}, {part.name: part.jobs})

    def run(cells: list[study.Cell]) -> None:
        try:
            study.run_part(replace(part, cells=tuple(cells)), version, record, None, progress)
        except SystemExit as error:  # of trials that failed
            print(error, file=sys.stderr)

    chosen = {study_results.options(cell.overrides)["mode"]: tune(cell, count, record, run) for cell in part.cells}
    path = study_results.place(HERE) / "chosen.yaml"
    path.write_text(yaml.safe_dump(with_chosen(yaml.safe_load(SWEEP.read_text()), chosen), sort_keys=False))
    study.run_parts(study.read_study(path, size), version, record)


if __name__ == "__main__":
    main()

"""Python API: train, load and compare runs from a script or a notebook.

    import gbactl

    a = gbactl.train("experiment=smoke", "mode=sync")
    b = gbactl.train("experiment=smoke", "mode=gba")
    gbactl.compare([a, b])

`import gbactl` imports nothing else; these names are imported when they are first used. `train` does what the command
`gbactl train` does: the coordinator, servers and workers are child processes, and everything is kept in the run
directory and in MLflow. Errors are those of `gbactl.errors`.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
import yaml

from gbactl.atomic_files import CONFIG, RESULT
from gbactl.errors import Stopped, UsageError
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.progress import display
from gbactl.report.compare import Report
from gbactl.report.compare import compare as compared
from gbactl.report.report_command import run_at
from gbactl.report.text_formats import csv, markdown, text
from gbactl.tracking.run_description import CommandLine

if TYPE_CHECKING:
    from gbactl.models.flat_parameters import TrainedModel

SHOWN = ("mode", "seed", "status", "auc", "logloss", "eps", "global_step", "wall_seconds", "run_dir")


@dataclass(frozen=True)
class Run:
    """Run that has ended, as its run directory describes it; `result` is the content of result.json."""

    run_dir: Path
    result: dict[str, Any] = field(repr=False)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None without tracking."""
        found: str | None = self.result.get("run_id")
        return found

    @property
    def auc(self) -> float | None:
        """AUC of the result; None if the run did not finish."""
        found: float | None = self.result.get("auc")
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        """Whole configuration, nested by groups: `config["train"]["global_batch"]`."""
        found: dict[str, Any] = yaml.safe_load((self.run_dir / CONFIG).read_text())
        return found

    @property
    def curves(self) -> pandas.DataFrame:
        """Training loss, progressive AUC and EPS by finished samples and seconds; these names are the columns."""
        return pandas.DataFrame(self.result.get("curve", []), columns=["samples", "seconds", "loss", "auc", "eps"])

    @property
    def rounds(self) -> pandas.DataFrame:
        """Table of the days or epochs: steps, samples, EPS, AUC and log loss after each."""
        return pandas.json_normalize(self.result.get("rounds", []), max_level=0)

    @cached_property
    def model(self) -> TrainedModel:
        """Model of the newest checkpoint, a torch module that computes click probabilities.

        Raises CheckpointError where the run has saved none; `checkpoint=full` saves."""
        from gbactl.launch.checkpoint_command import trained_model

        return trained_model(str(self.run_dir))

    def _repr_html_(self) -> str:
        values = {name: self.result[name] for name in SHOWN if self.result.get(name) is not None}
        return str(pandas.Series(values, name="").to_frame().to_html(header=False))


class Comparison(pandas.DataFrame):  # type: ignore[misc]
    """Comparison of runs as a pandas table, one row for each mode and configuration, with unrounded numbers.

    A notebook shows it as `gbactl report` does: formatted, with the verdicts and notes below. Parts of it are plain
    tables."""

    _metadata = ("report",)
    report: Report

    def _repr_html_(self) -> None:
        """Return nothing, so that a notebook shows the Markdown."""

    def _repr_markdown_(self) -> str:
        return markdown(self.report)

    def __repr__(self) -> str:
        return text(self.report)


def train(*overrides: str) -> Run:
    """Train one run like `gbactl train OVERRIDES`, show its progress, and return it.

    Raises GbactlError. Ctrl-C, or a notebook's interrupt, saves a checkpoint, stops all processes of the run and raises
    KeyboardInterrupt; a second interrupt does not wait for the checkpoint."""
    from gbactl.launch.hydra_config import compose, with_shown_engine
    from gbactl.launch.training_run import train as train_run

    if wrong := [each for each in overrides if not isinstance(each, str)]:
        raise UsageError(f'{wrong[0]!r} is no override; type each as a text of its own: gbactl.train("mode=gba", ...).')
    typed = with_shown_engine(overrides)
    try:
        cfg = compose(typed)
    except UsageError as error:
        raise error from None  # without Hydra's errors, whose tracebacks fill a notebook
    try:
        result = train_run(cfg, CommandLine("train", tuple(typed)), display=display())
    except Stopped as stopped:
        if stopped.number == signal.SIGINT:
            raise KeyboardInterrupt(stopped.outcome) from None
        raise
    return Run(Path(result["run_dir"]), result)


def load(run: Run | str | Path, uri: str | None = None) -> Run:
    """Load a run that has ended; `run`: its directory, its MLflow run id, or the first characters of one of them.

    What `train` or `load` returned is returned as it is. `uri`: the MLflow store, where it is not the default one.
    Raises UsageError for an unknown run, and for one that still goes on."""
    if isinstance(run, Run):
        return run
    path = run_dirs.find(str(run), uri, holding=RESULT).resolve()
    return Run(path, json.loads((path / RESULT).read_text()))


def compare(
    runs: Run | str | Path | Iterable[Run | str | Path], by: Sequence[str] | None = None, baseline: str | None = None,
    on: str = "auc", metrics: Sequence[str] = (), margin: float | None = None, round: str | None = None,
) -> Comparison:  # fmt: skip
    """Compare runs like `gbactl report`: means over seeds, paired differences to a baseline, verdicts.

    `runs`: what `train` or `load` returned, or what `load` takes, one or several. The other arguments are the options
    of `gbactl report`; `round="day 2"` compares what the runs did in that day alone. Raises UsageError for a key, a
    baseline, a metric or a round that no run has, and for no runs."""
    found = [load(run) for run in ([runs] if isinstance(runs, Run | str | Path) else runs)]
    if not found:
        raise UsageError("There is no run to compare; type gbactl.compare(RUNS) with what gbactl.train returned.")
    report = compared([run_at(run.run_dir)[0] for run in found], by, baseline, metrics, on, margin, round)
    main = csv(report).partition("\n\n")[0]  # tables of slow-downs and failures follow
    texts, names = dict.fromkeys(report.by, str), main.partition("\n")[0].split(",")
    missing = {name: [""] for name in names if name not in texts}  # a key's value null is no missing number
    table = Comparison(pandas.read_csv(io.StringIO(main), dtype=texts, keep_default_na=False, na_values=missing))
    table.report = report
    return table

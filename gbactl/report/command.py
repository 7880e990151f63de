"""`gbactl report`: read runs from the store, compare them, print the table and write the plots.

Curves come from result.json, downloaded from the run's MLflow artifacts: one small file a run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gbactl.errors import TrackingError, UsageError
from gbactl.report.compare import Report, compare, of_round
from gbactl.report.paired_statistics import Key
from gbactl.report.plots import Curves, curves_of, plot
from gbactl.report.render import beside, markdown, render, sentences
from gbactl.report.time_to_auc import times_to_auc
from gbactl.tracking.delivery import send_backlog
from gbactl.tracking.mlflow_connection import Run, connect, log_comparison, read_runs, sqlite_path, tracking_uri

Say = Callable[[str], None]


@dataclass(frozen=True)
class ReportOptions:
    """Options of `gbactl report` on the command line."""

    uri: str | None
    experiments: Sequence[str]
    where: Sequence[str]
    by: Sequence[str] | None
    baseline: str | None
    metrics: Sequence[str]
    on: str
    form: str
    plots: Path | None
    margin: float | None = None
    round: str | None = None
    time_to_auc: str | None = None
    log: bool = False


def report(options: ReportOptions, out: Say, aside: Say, opened: Callable[[str], None]) -> None:
    """Compare runs; print the table to the stream `out`, all other text to `aside`.

    Calls `opened` with the store before it is read."""
    uri = tracking_uri(uri=options.uri)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise TrackingError(
            f"There are no runs: the tracking store {path} does not exist; "
            "type: gbactl train experiment=smoke mode=gba (or --uri for another store)"
        )
    opened(uri)
    runs = read_runs(uri, options.experiments, options.where)
    told = runs if options.round is None else of_round(runs, options.round)
    made = compare(told, options.by, options.baseline, options.metrics, options.on, options.margin)
    if options.round is not None:
        made = replace(made, notes=(f"All columns are of {options.round} alone.", *made.notes))
    if not made.groups:
        raise TrackingError(f"None of the {len(runs)} runs can be compared. {' '.join(sentences(made))}")
    curves, missing = dict[Key, list[Curves]](), list[str]()
    if options.time_to_auc is not None or options.plots is not None:
        curves, missing = read_curves(uri, runs, made)
    if options.time_to_auc is not None:
        made = with_times(made, curves, options.time_to_auc)
    terminal = sys.stdout.isatty()
    width = max(80, shutil.get_terminal_size().columns) if terminal else 80
    every = [each for group in curves.values() for each in group]
    drawn = [] if options.plots is None else plot(every, options.plots)
    out(render(made, options.form, width, terminal, drawn).rstrip("\n"))
    for sentence in beside(made, options.form):
        aside(sentence)
    for written in drawn:
        aside(f"wrote {written}")
    if missing:
        aside(f"Not in plots and times, no result.json: {', '.join(missing)}.")
    if options.log:
        words = {run: group.verdict.words for group in made.groups if group.verdict for run in group.runs}
        log_comparison(uri, options.experiments, markdown(made), words)
        aside(f"Logged: the table as the note of {', '.join(options.experiments)}, the verdicts on {len(words)} runs.")


def with_times(report: Report, curves: Mapping[Key, Sequence[Curves]], wanted: str) -> Report:
    """Add the times to an AUC, given as a number or as "baseline". Raises UsageError for other text."""
    auc: float | None = None
    if wanted == "baseline":
        if report.baseline is None:
            raise UsageError(
                "There is no baseline whose AUC could be reached; type --baseline VALUE, or --time-to-auc NUMBER"
            )
        name = f"{report.baseline}'s last AUC"
    else:
        with contextlib.suppress(ValueError):
            auc = float(wanted)
        if auc is None or not 0 < auc < 1:
            raise UsageError(f"--time-to-auc {wanted} is no AUC; type a number between 0 and 1, or: baseline")
        name = f"AUC {auc:g}"
    own = {group.key: group.key if group.key[0] == report.baseline else group.against for group in report.groups}
    return replace(report, time_to=name, times=times_to_auc(own, curves, auc))


def send(run_dir: Path, uri: str | None, out: Say) -> None:
    """Send the records of a run that the MLflow store has not accepted yet."""
    sent = send_backlog(run_dir, uri)
    if sent is None:
        out(f"Nothing to send: everything of {run_dir} is in its tracking store.")
    else:
        out(f"Sent {sent.records} records of run {sent.run_id} to {sent.uri}.")


def read_curves(uri: str, runs: list[Run], report: Report) -> tuple[dict[Key, list[Curves]], list[str]]:
    """Read the curves of the runs in a report from their result.json, by lines in the report's order.

    Also list the runs without a readable result.json.
    """
    client, missing = connect(uri), []
    found: dict[Key, list[Curves]] = {group.key: [] for group in report.groups}
    keys = {run_id: group.key for group in report.groups for run_id in group.runs}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            key = keys.get(run.run_id)
            if key is None:
                continue
            result = _result(client, run.run_id, Path(folder) / run.run_id)
            if result is None:
                missing.append(run.label)
            else:
                found[key].append(curves_of(", ".join(filter(None, key)), run.seed, result))
    return found, missing


def _result(client: Any, run_id: str, folder: Path) -> dict[str, Any] | None:
    folder.mkdir()
    try:
        path = client.download_artifacts(run_id, "result.json", str(folder))
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except Exception:  # whatever the artifact store raises, the table is printed without this run's curve
        return None

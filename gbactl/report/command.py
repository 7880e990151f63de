"""`gbactl report`: read runs from the store or their directories, compare them, print the report, write the plots.

Curves come from result.json, of the run's directory or downloaded from its MLflow artifacts: one small file a run.
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

from gbactl.checked_dataclasses import flatten
from gbactl.errors import TrackingError, UsageError
from gbactl.faults.measured_effects import fault_metrics
from gbactl.report.compare import Report, compare, of_round
from gbactl.report.html_report import page
from gbactl.report.paired_statistics import Key
from gbactl.report.plots import plot
from gbactl.report.render import beside, markdown, render, sentences
from gbactl.report.run_curves import Curves, curves_of
from gbactl.report.selection import conditions, selected
from gbactl.report.time_to_auc import times_to_auc
from gbactl.tracking.delivery import send_backlog
from gbactl.tracking.final_metrics import failure_metrics, metrics_of
from gbactl.tracking.mlflow_connection import (
    COMMAND,
    Run,
    connect,
    log_comparison,
    read_runs,
    sqlite_path,
    tracking_uri,
)

Say = Callable[[str], None]
Results = dict[str, dict[str, Any]]  # result.json by run id


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
    runs: Sequence[Path] = ()
    last: int | None = None
    sweep: str | None = None


def report(options: ReportOptions, out: Say, aside: Say, opened: Callable[[str], None]) -> None:
    """Compare runs; print the table to the stream `out`, all other text to `aside`.

    Calls `opened` with the store before it is read."""
    uri = tracking_uri(uri=options.uri)
    runs, results = _from_directories(options) if options.runs else (_from_store(options, uri, opened), {})
    told = runs if options.round is None else of_round(runs, options.round)
    made = compare(told, options.by, options.baseline, options.metrics, options.on, options.margin)
    if options.round is not None:
        made = replace(made, notes=(f"All columns are of {options.round} alone.", *made.notes))
    if not made.groups:
        raise TrackingError(f"None of the {len(runs)} runs can be compared. {' '.join(sentences(made))}")
    curves, missing = dict[Key, list[Curves]](), list[str]()
    if options.time_to_auc is not None or options.plots is not None or options.form == "html":
        curves, missing = read_curves(uri, runs, made, results)
    aim = options.time_to_auc or ("baseline" if options.form == "html" and made.baseline else None)
    if aim is not None:
        made = with_times(made, curves, aim)
    terminal = sys.stdout.isatty()
    width = max(80, shutil.get_terminal_size().columns) if terminal else 80
    every = [each for group in curves.values() for each in group]
    drawn = [] if options.plots is None else plot(every, options.plots)
    if options.form == "html":
        title = ", ".join(run.name for run in runs) if options.runs else f"gbactl: {', '.join(options.experiments)}"
        out(page(made, curves, runs, title).rstrip("\n"))
    else:
        out(render(made, options.form, width, terminal).rstrip("\n"))
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


def _from_store(options: ReportOptions, uri: str, opened: Callable[[str], None]) -> list[Run]:
    """Read the chosen runs from the tracking store. Raises TrackingError, UsageError."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise TrackingError(
            f"There are no runs: the tracking store {path} does not exist; "
            "type: gbactl train experiment=smoke mode=gba (or --uri for another store)"
        )
    opened(uri)
    typed, filters = conditions(options.where)
    return selected(read_runs(uri, options.experiments, filters), typed, options.sweep, options.last)


def _from_directories(options: ReportOptions) -> tuple[list[Run], Results]:
    """Read the named runs from their directories. Raises UsageError beside options that choose runs of a store."""
    if options.where or options.sweep or options.last or options.log:
        raise UsageError("RUN already names the runs; leave --where, --sweep, --last and --log out.")
    found = [run_at(path) for path in options.runs]
    return [run for run, _ in found], {run.run_id: result for run, result in found}


def run_at(path: Path) -> tuple[Run, dict[str, Any]]:
    """Read a run and its result from its directory. Raises UsageError where its files cannot be read."""
    import yaml

    try:
        result = dict(json.loads((path / "result.json").read_text(encoding="utf-8")))
        config = flatten(yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")))
        began = (path / "config.yaml").stat().st_mtime_ns // 1_000_000
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UsageError(f"The run in {path} cannot be read ({error}); type another RUN.") from error
    params = {**{key: str(value) for key, value in config.items()}, "mode": str(config.get("mode.name", "-"))}
    finished = result["status"] == "FINISHED"
    metrics = {**metrics_of(result), **fault_metrics(result), **failure_metrics(result)} if finished else {}
    own = {key.removeprefix("tracking.tags."): str(config[key]) for key in config if key.startswith("tracking.tags.")}
    tags = {**own, "gbactl.mode": str(result["mode"]), COMMAND: str(result.get("command") or "")}
    return Run(
        str(result.get("run_id") or path.name), path.name, result["status"], began, params, metrics, tags
    ), result


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


def read_curves(
    uri: str, runs: Sequence[Run], report: Report, results: Mapping[str, dict[str, Any]] | None = None
) -> tuple[dict[Key, list[Curves]], list[str]]:
    """Read the curves of the runs in a report from their result.json, by lines in the report's order.

    `results`: those that were read already. Also list the runs without a readable result.json.
    """
    known, missing = results or {}, list[str]()
    client = connect(uri) if any(run.run_id not in known for run in runs) else None
    found: dict[Key, list[Curves]] = {group.key: [] for group in report.groups}
    keys = {run_id: group.key for group in report.groups for run_id in group.runs}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            key = keys.get(run.run_id)
            if key is None:
                continue
            result = known.get(run.run_id) or _result(client, run.run_id, Path(folder) / run.run_id)
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

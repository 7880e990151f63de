"""`gbactl report`: read runs from the store or their directories, compare them, print the report, write the plots.

Of a store's runs, those that meet conditions, those of a sweep, or a number of the newest ones are compared. A sweep's
own run in MLflow gets the comparison of the sweep's runs.

Curves come from result.json, of the run's directory or downloaded from its MLflow artifacts: one small file a run.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gbactl.atomic_files import CONFIG, RESULT
from gbactl.checked_dataclasses import did_you_mean
from gbactl.errors import TrackingError, UsageError
from gbactl.faults.observed_effects import fault_metrics
from gbactl.report.compare import Report, compare, last_round
from gbactl.report.configuration_differences import configuration, shown_value_of, value_of
from gbactl.report.failures_and_slowdowns import slow_sentence
from gbactl.report.html_report import page, write_figures
from gbactl.report.paired_statistics import Key
from gbactl.report.run_curves import Curves, curves_of, times_to_auc
from gbactl.report.text_formats import (
    answer,
    for_stdout,
    markdown,
    on_terminal,
    render,
    sentences,
    stderr_sentences,
    text,
)
from gbactl.tracking.delivery import send_backlog
from gbactl.tracking.metrics_and_tags import DAYS_TAG, ORIGIN, SLOW_WORKER, failure_metrics, metrics_of
from gbactl.tracking.mlflow_store import (
    CELL,
    COMMAND,
    VERDICT,
    Run,
    connect,
    log_artifacts,
    log_comparison,
    log_comparison_of_children,
    params_of,
    read_children,
    read_runs,
    read_start_times,
    sqlite_path,
    tracking_uri,
)
from gbactl.tracking.run_description import MODE_TAG

Say = Callable[[str], None]
Results = dict[str, dict[str, Any]]  # result.json by run id


@dataclass(frozen=True)
class ReportOptions:
    """Options of `gbactl report`, named as on the command line."""

    runs: Sequence[Path]
    uri: str | None
    experiments: Sequence[str]
    where: Sequence[str]
    last: int | None
    sweep: str | None
    by: Sequence[str] | None
    baseline: str | None
    on: str
    margin: float | None
    round: str | None
    time_to_auc: str | None
    metrics: Sequence[str]
    form: str
    plots: Path | None
    log: bool


def report(options: ReportOptions, out: Say, aside: Say, opened: Callable[[str], None]) -> None:
    """Compare runs; print the table to the stream `out`, all other text to `aside`.

    Calls `opened` with the store before it is read."""
    uri = tracking_uri(uri=options.uri)
    runs, results = _from_directories(options) if options.runs else (_from_store(options, uri, opened), {})
    made = compare(runs, options.by, options.baseline, options.metrics, options.on, options.margin, options.round)
    if not made.groups:
        raise TrackingError(f"None of the {len(runs)} runs can be compared. {' '.join(sentences(made))}")
    curves, missing = dict[Key, list[Curves]](), list[str]()
    if options.time_to_auc is not None or options.plots is not None or options.form == "html":
        curves, missing = read_curves(uri, runs, made, results)
    aim = options.time_to_auc or ("baseline" if options.form == "html" and made.baseline else None)
    if aim is not None:
        made = with_times(made, curves, aim)
    drawn = [] if options.plots is None else write_figures(made, curves, options.plots)
    if options.form == "html":
        named = ", ".join(run.name for run in runs)
        title = named if options.runs else f"MLflow experiment {', '.join(options.experiments)}"
        out(page(made, curves, runs, title).rstrip("\n"))
    else:
        out(for_stdout(render(made, options.form, *on_terminal()).rstrip("\n")))
    for sentence in stderr_sentences(made, options.form):
        aside(for_stdout(sentence))
    for written in drawn:
        aside(f"wrote {written}")
    if missing:
        aside(f"Not in plots and times, no result.json: {', '.join(missing)}.")
    if options.log:
        words = _verdict_words(made)
        outdated = [run.run_id for run in runs if VERDICT in run.tags and run.run_id not in words]
        log_comparison(uri, options.experiments, markdown(made), words, outdated)
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
    runs = read_runs(uri, options.experiments, filters)
    sweeps = {sweep for run in runs for sweep in run.sweeps}
    started = read_start_times(uri, sweeps) if options.sweep == LAST else None
    return selected(runs, typed, options.sweep, options.last, started)


def _from_directories(options: ReportOptions) -> tuple[list[Run], Results]:
    """Read the named runs from their directories. Raises UsageError if options that select stored runs are set."""
    if options.where or options.sweep or options.last or options.log:
        raise UsageError("RUN already names the runs; leave --where, --sweep, --last and --log out.")
    found = [run_at(path) for path in options.runs]
    return [run for run, _ in found], {run.run_id: result for run, result in found}


def run_at(path: Path) -> tuple[Run, dict[str, Any]]:
    """Read a run and its result from its directory. Raises UsageError if its files cannot be read."""
    import yaml

    try:
        result = dict(json.loads((path / RESULT).read_text(encoding="utf-8")))
        config = dict(yaml.safe_load((path / CONFIG).read_text(encoding="utf-8")))
        began = (path / CONFIG).stat().st_mtime_ns // 1_000_000
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UsageError(f"The run in {path} cannot be read ({error}); type another RUN.") from error
    finished = result["status"] == "FINISHED"
    metrics = {**metrics_of(result), **fault_metrics(result), **failure_metrics(result)} if finished else {}
    own = {key: str(value) for key, value in ((config.get("tracking") or {}).get("tags") or {}).items()}
    tags = {**own, MODE_TAG: str(result["mode"]), COMMAND: str(result.get("command") or "")}
    tags |= {CELL: str(result["cell"])} if result.get("cell") else {}
    tags |= {DAYS_TAG: "rows"} if result.get("days_by_rows") else {}
    tags |= {ORIGIN: str(result["origin"])} if result.get("origin") else {}
    tags |= {SLOW_WORKER: slow} if (slow := slow_sentence(result.get("time") or {})) else {}
    run_id = str(result.get("run_id") or path.name)
    return Run(run_id, path.name, result["status"], began, params_of(config), metrics, tags), result


def run_page(path: Path) -> str:
    """Render the HTML report of the run in a directory. Raises UsageError if its files cannot be read."""
    run, result = run_at(path)
    made = compare([run])
    curves, _ = read_curves("", [run], made, {run.run_id: result})
    return page(made, curves, [run], run.name)


def with_times(report: Report, curves: Mapping[Key, Sequence[Curves]], wanted: str) -> Report:
    """Add to a report the time that runs took to an AUC: a number or "baseline". Raises UsageError for other text."""
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
    """Read the curves of a report's runs from their result.json, by row; also list the runs without a readable file.

    `results`: those that were read already."""
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
                found[key].append(curves_of(run.seed, result, configuration(run, report.free), report.label))
    return found, missing


def _result(client: Any, run_id: str, folder: Path) -> dict[str, Any] | None:
    folder.mkdir()
    try:
        path = client.download_artifacts(run_id, RESULT, str(folder))
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except Exception:  # whatever the artifact store raises, the table is printed without this run's curve
        return None


def renew_sweep(uri: str, run_id: str, figures: bool) -> None:
    """Compare the finished children of a sweep's run, and write note, report, figures and verdicts to it in MLflow.

    Nothing is written where none has finished. Without `figures`, which take about a second, note and verdicts alone
    are. Raises TrackingError."""
    runs, made = _of_children(uri, run_id)
    if made is None:
        return
    log_comparison_of_children(uri, run_id, answer(made), markdown(made), _verdict_words(made))
    if not figures:
        return
    curves, _ = read_curves(uri, runs, made)
    if made.baseline is not None:
        made = with_times(made, curves, "baseline")
    with tempfile.TemporaryDirectory() as folder:
        drawn = write_figures(made, curves, Path(folder) / "plots")
        written = Path(folder) / "report.html"
        written.write_text(page(made, curves, runs, "Comparison of a sweep"), encoding="utf-8")
        log_artifacts(uri, run_id, {written: None, **dict.fromkeys(drawn, "plots")})


def sweep_table(uri: str, run_id: str) -> str:
    """Compare the finished children of a sweep's run in a table for standard output; "" if none has finished.

    Raises TrackingError."""
    return _table(_of_children(uri, run_id)[1])


def directories_table(paths: Sequence[Path]) -> str:
    """Compare runs by their directories as `sweep_table` does. Raises UsageError if their files cannot be read."""
    return _table(_compared([run_at(path)[0] for path in paths]))


def _table(made: Report | None) -> str:
    return "" if made is None else for_stdout(text(made, *on_terminal()))


def _of_children(uri: str, run_id: str) -> tuple[list[Run], Report | None]:
    """Read the finished children of a run and compare them."""
    runs = read_children(uri, run_id)
    return runs, _compared(runs)


def _compared(runs: Sequence[Run]) -> Report | None:
    """Compare the runs of a sweep; None if none can be compared.

    Of runs that all go on from a base the last round alone is compared, since other figures are of the base's too."""
    label = last_round(runs) if all(ORIGIN in run.tags for run in runs) else None
    made = compare(runs, label=label) if runs else None
    return made if made is not None and made.groups else None


def _verdict_words(made: Report) -> dict[str, str]:
    """Return the verdict in words on each run's row, by run."""
    return {run: group.verdict.words for group in made.groups if group.verdict for run in group.runs}


LAST = "last"
_MOST = 8
_TYPED = re.compile(r"(?!(?:metrics?|attributes?|attr|run)\.)([A-Za-z_][\w.]*)=([^\s'\"=<>][^'\"]*)")


class Condition(NamedTuple):
    """Condition on a key or tag (tags.NAME): its value, as configured or as reports show it, is in `values`."""

    key: str
    values: tuple[str, ...]

    def holds(self, run: Run) -> bool:
        """Return whether a run meets the condition; numbers are compared as numbers."""
        own = {value_of(run, self.key), shown_value_of(run, self.key)}
        return any(_same(each, value) for each in own for value in (*self.values, ",".join(self.values)))


def conditions(where: Sequence[str]) -> tuple[list[Condition], list[str]]:
    """Split typed filters into conditions KEY=VALUE[,VALUE...] and filters in MLflow's syntax."""
    found = [(_TYPED.fullmatch(text.strip()), text) for text in where]
    typed = [Condition(match[1].removeprefix("params."), tuple(match[2].split(","))) for match, _ in found if match]
    return typed, [text for match, text in found if not match]


def selected(
    runs: Sequence[Run],
    typed: Sequence[Condition] = (),
    sweep: str | None = None,
    last: int | None = None,
    started: Mapping[str, int] | None = None,
) -> list[Run]:
    """Choose the runs that meet all conditions and belong to `sweep`, if given; of these, the `last` newest.

    `sweep`: "last", or the beginning of the MLflow id of the sweep's run. `started`: when the sweeps'
    own runs started, by id. Raises UsageError if no run is left."""
    chosen = list(runs)
    for condition in typed:
        before, chosen = chosen, [run for run in chosen if condition.holds(run)]
        if not chosen:
            _none_with(condition, before)
    if sweep is not None:
        chosen = _of_sweep(chosen, sweep, started or {})
    return sorted(chosen, key=lambda run: run.start_ms)[0 if last is None else -last :]


def _of_sweep(runs: Sequence[Run], sweep: str, started: Mapping[str, int]) -> list[Run]:
    """Choose the runs of one sweep: the newest sweep, or the sweep whose id begins with `sweep`.

    The newest sweep is the one whose own run started last, as runs that it reused may be older than other sweeps. The
    newest of its runs stands for an own run that is gone. Of two that started together, the larger id decides."""
    parents = {parent: run.start_ms for run in sorted(runs, key=lambda run: run.start_ms) for parent in run.sweeps}
    newest = max(parents, key=lambda parent: (started.get(parent, parents[parent]), parent), default="")
    found = [newest] if newest and sweep == LAST else [parent for parent in parents if parent.startswith(sweep)]
    if len(found) != 1:
        problem = (
            f"{sweep} is the beginning of {len(found)} sweeps" if found else f"None of the runs is of sweep {sweep}"
        )
        raise UsageError(f"{problem}; type --sweep last, or more of the MLflow id of the sweep's run.")
    return [run for run in runs if found[0] in run.sweeps]


def _none_with(condition: Condition, runs: Sequence[Run]) -> None:
    """Raise the UsageError for a condition that none of the runs meets."""
    values = sorted({shown_value_of(run, condition.key) for run in runs} - {"-"})
    typed = f"{condition.key}={','.join(condition.values)}"
    if not values:
        meant = did_you_mean(condition.key, sorted({key for run in runs for key in run.params}))
        raise UsageError(
            f"No run has the key {condition.key}. {meant or 'Type --where KEY=VALUE with a key of the configuration.'}"
        )
    more = f" and {len(values) - _MOST} more" if len(values) > _MOST else ""
    raise UsageError(f"None of the {len(runs)} runs has {typed}; there are: {', '.join(values[:_MOST])}{more}.")


def _same(own: str, value: str) -> bool:
    if own == value:
        return True
    try:
        return float(own) == float(value)
    except ValueError:
        return own.lower() == value.lower() and value.lower() in ("true", "false", "none", "null")

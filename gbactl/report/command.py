"""What `gbactl report` does, between the command line and the pure parts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gbactl.errors import TrackingError
from gbactl.report.artifacts import read_curves
from gbactl.report.compare import compare
from gbactl.report.grid import sentences
from gbactl.report.plots import plot
from gbactl.report.render import beside, render
from gbactl.tracking.runs import read_runs
from gbactl.tracking.send import send_backlog
from gbactl.tracking.store import sqlite_path, tracking_uri

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The command line, split."""

    uri: str | None
    experiments: Sequence[str]
    where: Sequence[str]
    by: Sequence[str] | None
    baseline: str | None
    metrics: Sequence[str]
    on: str
    form: str
    plots: Path | None


def report(options: Options, out: Say, aside: Say, opened: Callable[[str], None]) -> None:
    """Print the comparison to `out`, everything that is not part of it to `aside`. `opened` is called with the store
    before it is read."""
    uri = tracking_uri(uri=options.uri)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise TrackingError(
            f"There are no runs: the tracking store {path} does not exist; "
            "type: gbactl train experiment=smoke mode=gba (or --uri for another store)"
        )
    opened(uri)
    runs = read_runs(uri, options.experiments, options.where)
    made = compare(runs, options.by, options.baseline, options.metrics, options.on)
    if not made.groups:
        raise TrackingError(f"None of the {len(runs)} runs can be compared. {' '.join(sentences(made))}")
    terminal = sys.stdout.isatty()
    width = max(80, shutil.get_terminal_size().columns) if terminal else 80
    out(render(made, options.form, width, terminal).rstrip("\n"))
    for sentence in beside(made, options.form):
        aside(sentence)
    if options.plots is not None:
        curves, missing = read_curves(uri, runs, made)
        for written in plot(curves, options.plots):
            aside(f"wrote {written}")
        if missing:
            aside(f"Not in the plots, no result.json: {', '.join(missing)}.")


def send(run_dir: Path, uri: str | None, out: Say) -> None:
    """Send what a run could not."""
    sent = send_backlog(run_dir, uri)
    if sent is None:
        out(f"Nothing to send: everything of {run_dir} is in its tracking store.")
    else:
        out(f"Sent {sent.records} records of run {sent.run_id} to {sent.uri}.")

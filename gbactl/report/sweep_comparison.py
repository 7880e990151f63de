"""Comparison of the runs of a sweep, written to the sweep's run in MLflow: note, HTML report, figures, verdicts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gbactl.report.command import read_curves
from gbactl.report.compare import compare
from gbactl.report.html_report import page
from gbactl.report.plots import plot
from gbactl.report.render import answer, markdown, text
from gbactl.tracking.mlflow_connection import log_artifacts, log_comparison_of_children, read_children


def renew(uri: str, run_id: str, figures: bool = True) -> None:
    """Compare the finished children of a run, and write the comparison to it. Raises TrackingError.

    Nothing is written where none has finished. Without `figures`, which take about a second, note and verdicts alone
    are."""
    runs = read_children(uri, run_id)
    made = compare(runs) if runs else None
    if made is None or not made.groups:
        return
    verdicts = {run: group.verdict.words for group in made.groups if group.verdict for run in group.runs}
    log_comparison_of_children(uri, run_id, answer(made), markdown(made), verdicts)
    if not figures:
        return
    curves, _ = read_curves(uri, runs, made)
    with tempfile.TemporaryDirectory() as folder:
        drawn = plot([each for group in curves.values() for each in group], Path(folder) / "plots")
        written = Path(folder) / "report.html"
        written.write_text(page(made, curves, runs, "Comparison of a sweep"), encoding="utf-8")
        log_artifacts(uri, run_id, {written: None, **dict.fromkeys(drawn, "plots")})


def table(uri: str, run_id: str, width: int, colour: bool) -> str:
    """Compare the finished children of a run in a table for a terminal; "" where none has finished.

    Raises TrackingError."""
    runs = read_children(uri, run_id)
    made = compare(runs) if runs else None
    return text(made, width, colour) if made is not None and made.groups else ""

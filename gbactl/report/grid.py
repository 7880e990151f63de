"""Report as columns of cells, the common input of all renderers, and the sentences below the table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gbactl.report import failures as failed
from gbactl.report.columns import MISSING, SLOWDOWN, Cell, cell, difference_cell
from gbactl.report.compare import MARKS, SHORT_SECONDS, Report

MOST_NAMED = 3  # runs named for each reason of being left out
MEANINGS = {
    "eps": f"EPS{MARKS['eps']}: over less than {SHORT_SECONDS:g} s of training.",
    "ne": f"NE{MARKS['ne']}: a run's log loss is above that of always predicting the base rate (NE above 1).",
}


@dataclass(frozen=True)
class GridColumn:
    """Column: a title and one cell a group. `key`: the column identifies the group."""

    title: str
    cells: tuple[Cell, ...]
    key: bool = False


def grid(report: Report) -> list[GridColumn]:
    """Make the main table: group keys, n, compared metric, difference to the baseline if any, other columns."""
    groups = report.groups
    made = [
        GridColumn(name, tuple(Cell(group.key[place]) for group in groups), key=True)
        for place, name in enumerate(report.by)
    ]
    made.append(GridColumn("n", tuple(Cell(str(group.n)) for group in groups)))
    for place, column in enumerate(report.columns):
        mark = MARKS.get(column.metrics[0], "")
        cells = tuple(cell(column, group.stats, mark if mark in group.marks else "") for group in groups)
        made.append(GridColumn(column.title, cells))
        if place == 0 and report.baseline is not None:
            cells = tuple(difference_cell(column, group.difference) for group in groups)
            made.append(GridColumn(f"vs {report.baseline}", cells))
    return made


def slowdown_grid(report: Report) -> list[GridColumn]:
    """Make the slow-down table: injected and observed factor and error of each faulty process; [] without faults."""
    lines = report.slowdowns
    if not lines:
        return []
    made = [GridColumn(name, tuple(Cell(each.key[i]) for each in lines), key=True) for i, name in enumerate(report.by)]
    made.append(GridColumn("slowed", tuple(Cell(each.workers) for each in lines), key=True))
    made.append(GridColumn("n", tuple(Cell(str(each.n)) for each in lines)))
    for column in SLOWDOWN:
        cells = tuple(cell(column, {"injected": each.injected, "observed": each.observed}) for each in lines)
        made.append(GridColumn(column.title, cells))
    errors = tuple(Cell(MISSING if each.error is None else f"{each.error:+.1f}") for each in lines)
    return [*made, GridColumn("error %", errors)]


def failure_grid(report: Report) -> list[GridColumn]:
    """Make the failure table: how often a process failed in a run, how soon it was replaced, and what that cost."""
    lines = report.failures
    made = [GridColumn(name, tuple(Cell(each.key[i]) for each in lines), key=True) for i, name in enumerate(report.by)]
    made.append(GridColumn("failed", tuple(Cell(f"{each.process} {each.failure}") for each in lines), key=True))
    made.append(GridColumn("n", tuple(Cell(str(each.n)) for each in lines)))
    return [*made, *(GridColumn(c.title, tuple(cell(c, each.stats) for each in lines)) for c in failed.COLUMNS)]


def grids(report: Report) -> list[list[GridColumn]]:
    """Make all tables: the comparison, and slow-downs and failures where there are any."""
    slowed = [slowdown_grid(report)] if report.slowdowns else []
    return [grid(report), *slowed, *([failure_grid(report)] if report.failures else [])]


def _but_for(report: Report) -> str:
    """Clause on the keys in which the runs of a pair may differ, where groups are made by a tag."""
    if not report.varied:
        return ""
    return f", but for {', '.join(report.varied)}"


def sentences(report: Report) -> list[str]:
    """Sentences on how to read the table, what was noticed, and which runs were left out and why."""
    said = []
    if any(group.n > 1 for group in report.groups):
        said.append("+-: standard deviation over the seeds of a line.")
    if any(group.difference for group in report.groups):
        said.append(
            f"vs {report.baseline}: {report.columns[0].title} minus {report.baseline}'s; +- is half of a 95 % t "
            f"interval over pairs of the same seed and otherwise the same configuration{_but_for(report)}."
        )
    if report.slowdowns:
        said.append(
            "slowed: how many times slower faults made a process, as injected and as the run shows it (seconds per "
            "sample, a server's per message, over those of processes without a fault)."
        )
    if report.failures:
        said.append(
            "failed: what became of a process; seconds from the failure (from when it was noticed, where it was not "
            "injected) until it was noticed, until another was ready in its place, until that one's first gradient."
        )
    marks = {mark for group in report.groups for mark in group.marks}
    said += [meaning for metric, meaning in MEANINGS.items() if MARKS[metric] in marks]
    return [*said, *report.notes, *_left_out(report)]


def _left_out(report: Report) -> list[str]:
    """Sentences on the runs left out, one for each reason."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in report.left_out:
        reason = "repeated by a newer run" if each.reason.startswith("repeated by") else each.reason
        reasons[reason].append(each.run)
    return [f"Left out, {reason}: {_some(runs)}." for reason, runs in sorted(reasons.items())]


def _some(runs: list[str]) -> str:
    rest = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + rest

"""A report as columns of cells, the common ground of all renderers; and the sentences below it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gbactl.report.columns import Cell, cell, difference_cell
from gbactl.report.compare import Report


@dataclass(frozen=True)
class GridColumn:
    """A title and one cell a group. `key`: it says which group this is."""

    title: str
    cells: tuple[Cell, ...]
    key: bool = False


def grid(report: Report) -> list[GridColumn]:
    """Group keys, n, AUC, difference to the baseline if there is one, everything else."""
    groups = report.groups
    made = [
        GridColumn(name, tuple(Cell(group.key[place]) for group in groups), key=True)
        for place, name in enumerate(report.by)
    ]
    made.append(GridColumn("n", tuple(Cell(str(group.n)) for group in groups)))
    for place, column in enumerate(report.columns):
        made.append(GridColumn(column.title, tuple(cell(column, group.stats) for group in groups)))
        if place == 0 and report.baseline is not None:
            cells = tuple(difference_cell(group.difference) for group in groups)
            made.append(GridColumn(f"vs {report.baseline}", cells))
    return made


def sentences(report: Report) -> list[str]:
    """How to read the table, what was noticed, and what was left out and why."""
    said = []
    if any(group.n > 1 for group in report.groups):
        said.append("+-: standard deviation over the runs of a line.")
    if any(group.difference for group in report.groups):
        said.append(
            f"vs {report.baseline}: AUC minus {report.baseline}'s; +- is half of a 95 % t interval "
            "over pairs of the same seed and otherwise the same configuration."
        )
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in report.left_out:
        reasons[each.reason].append(each.run)
    left = [f"Left out, {reason}: {', '.join(runs)}." for reason, runs in sorted(reasons.items())]
    return [*said, *report.notes, *left]

"""Columns of the report's table: one or more metrics a column, and the format of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gbactl.report.paired_statistics import Difference, Stat
from gbactl.tracking.metrics_and_tags import plain_name

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """Column of the report's table: its title, its metrics (several share a cell) and its number format.

    `digits` after the decimal point; None: six significant digits. Several metrics in a cell are written with one
    digit.
    """

    title: str
    metrics: tuple[str, ...]
    digits: int | None = None
    thousands: bool = False

    def write(self, value: float, sign: str = "") -> str:
        """Format one number as the column shows it; `sign`: "+" to write the sign of positive numbers, too."""
        kind = ".6g" if self.digits is None else f"{',' if self.thousands else ''}.{self.digits}f"
        return f"{value:{sign}z{kind}}"


@dataclass(frozen=True)
class Cell:
    """Cell text: a value and, for a mean over several seeds, its spread."""

    value: str
    spread: str = ""

    @property
    def line(self) -> str:
        """Text of the cell on one line: the value, then its spread."""
        return f"{self.value} {self.spread}".strip()


AUC = Column("AUC", ("auc",), 5)
STANDARD = (
    AUC,
    Column("log loss", ("logloss",), 5),
    Column("NE", ("ne",), 4),
    Column("EPS", ("eps",), 0, thousands=True),
    Column("staleness mean / p50 / p99", ("staleness_mean", "staleness_p50", "staleness_p99")),
    Column("decayed %", ("decayed_percent",), 2),
)

GROUPED = (Column("gAUC", ("gauc",), 5),)
CLOCKS = (
    Column("virtual s", ("virtual_seconds",), 2, thousands=True),
    Column("wall s", ("wall_seconds",), 1, thousands=True),
)
REPLICAS = (
    Column("sync gap mean / p99", ("sync_gap_mean", "sync_gap_p99")),
    Column("ELP", ("elp",), 0, thousands=True),
)
SLOWDOWN = (Column("injected", ("injected",), 2), Column("observed", ("observed",), 2))


def column_of(metric: str) -> Column:
    """Make a report column for any MLflow metric; `auc/day 3` is formatted like `auc`."""
    metric = plain_name(metric)
    family = metric.split("/")[0]
    like = next((column for column in (*STANDARD, *GROUPED) if column.metrics == (family,)), None)
    return Column(metric, (metric,)) if like is None else replace(like, title=metric, metrics=(metric,))


def cell(column: Column, stats: Mapping[str, Stat | None], mark: str = "") -> Cell:
    """Make a group's cell in this column; `mark` is appended to its value."""
    found = [stats.get(metric) for metric in column.metrics]
    if len(found) > 1:
        if not any(found):
            return Cell(MISSING)
        return Cell("/".join(MISSING if each is None else _short(each.mean) for each in found))
    only = found[0]
    if only is None:
        return Cell(MISSING)
    return Cell(column.write(only.mean) + mark, "" if only.sd is None else f"±{column.write(only.sd)}")


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def difference_cell(column: Column, difference: Difference | None) -> Cell:
    """Make the cell of a group's mean difference to the baseline, with half the width of its confidence interval."""
    if difference is None:
        return Cell(MISSING)
    spread = "" if difference.half is None else f"±{column.write(difference.half)}"
    return Cell(column.write(difference.mean, "+"), spread)


def ratio_cell(ratio: Difference | None) -> Cell:
    """Make the cell of a group's mean throughput ratio to the baseline, with half the width of its interval."""
    if ratio is None:
        return Cell(MISSING)
    return Cell(f"{ratio.mean:.2f}", "" if ratio.half is None else f"±{ratio.half:.2f}")

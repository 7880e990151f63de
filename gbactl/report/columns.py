"""What the table shows: one or more metrics a column, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gbactl.report.stats import Difference, Stat

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """`digits` after the point; None: six significant ones. Several metrics share a cell, in short."""

    title: str
    metrics: tuple[str, ...]
    digits: int | None = None
    thousands: bool = False

    def write(self, value: float) -> str:
        """One number."""
        if self.digits is None:
            return f"{value:.6g}"
        return f"{value:,.{self.digits}f}" if self.thousands else f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class Cell:
    """A value and, for a mean over several seeds, its spread; both as text."""

    value: str
    spread: str = ""

    @property
    def line(self) -> str:
        """Both on one line."""
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
    """A column for any metric of MLflow; `auc/day 3` is written like `auc`."""
    family = metric.split("/")[0]
    like = next((column for column in STANDARD if column.metrics == (family,)), None)
    return Column(metric, (metric,)) if like is None else replace(like, title=metric, metrics=(metric,))


def cell(column: Column, stats: Mapping[str, Stat | None], mark: str = "") -> Cell:
    """The column's cell of one group; `mark` stands behind its value."""
    found = [stats.get(metric) for metric in column.metrics]
    if len(found) > 1:
        if not any(found):
            return Cell(MISSING)
        return Cell("/".join(MISSING if each is None else _short(each.mean) for each in found))
    only = found[0]
    if only is None:
        return Cell(MISSING)
    return Cell(column.write(only.mean) + mark, "" if only.sd is None else f"+-{column.write(only.sd)}")


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def difference_cell(column: Column, difference: Difference | None) -> Cell:
    """Signed mean and half-width, in the digits of the column that is compared."""
    if difference is None:
        return Cell(MISSING)
    spread = "" if difference.half is None else f"+-{column.write(difference.half)}"
    sign = "-" if difference.mean < 0 else "+"
    return Cell(f"{sign}{column.write(abs(difference.mean))}", spread)

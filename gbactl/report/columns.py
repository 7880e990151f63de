"""What the table shows: one or more metrics a column, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def extra(metric: str) -> Column:
    """A column for any other metric of MLflow."""
    return Column(metric, (metric,))


def cell(column: Column, stats: Mapping[str, Stat | None]) -> Cell:
    """The column's cell of one group."""
    found = [stats.get(metric) for metric in column.metrics]
    if len(found) > 1:
        if not any(found):
            return Cell(MISSING)
        return Cell("/".join(MISSING if each is None else _short(each.mean) for each in found))
    only = found[0]
    if only is None:
        return Cell(MISSING)
    return Cell(column.write(only.mean), "" if only.sd is None else f"+-{column.write(only.sd)}")


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def difference_cell(difference: Difference | None) -> Cell:
    """Signed mean and half-width, in AUC's digits."""
    if difference is None:
        return Cell(MISSING)
    spread = "" if difference.half is None else f"+-{AUC.write(difference.half)}"
    return Cell(f"{difference.mean:+.{AUC.digits}f}", spread)

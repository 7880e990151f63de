"""Figures with their confidence intervals, and tables of them. For studies' scripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from study_results import Done  # a script in the same folder, not a package

from gbactl.report.paired_statistics import Difference, paired

T = TypeVar("T")
Value = Callable[[Mapping[str, Any]], T]  # of a cell's figures


def mean_of(values: Sequence[float]) -> Difference:
    """Mean and half of its 95 % interval; needs at least one value."""
    found = paired([(0.0, value) for value in values])
    assert found is not None
    return found


def written(each: Difference | Sequence[float], digits: int, sign: str = "", most: float | None = None) -> str:
    """Format mean +- half of its 95 % interval, also of values; bold where all of that lies within `most` of 0."""
    each = each if isinstance(each, Difference) else mean_of(each)
    text = f"{each.mean:{sign}.{digits}f}" + ("" if each.half is None else f" +-{each.half:.{digits}f}")
    inside = most is not None and each.half is not None and abs(each.mean) + each.half <= most
    return f"**{text}**" if inside else text


def by_line(cells: Iterable[Done], key: str, value: Value[T]) -> dict[str, dict[str, T]]:
    """Value of each cell: line (the option `key`) -> seed -> value."""
    found: defaultdict[str, dict[str, T]] = defaultdict(dict)
    for cell in cells:
        found[cell.options[key]][cell.seed] = value(cell.result)
    return dict(found)


def against(values: Mapping[str, Mapping[str, float]], line: str, baseline: str) -> Difference | None:
    """Difference of a line to the baseline over the seeds of both; None without a common seed."""
    mine, other = values.get(line, {}), values.get(baseline, {})
    return paired([(other[seed], mine[seed]) for seed in mine if seed in other])


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *notes: str, names: Sequence[int] = (0,)) -> str:
    """Format a table with its notes below. The columns `names` are of names, the others of numbers."""
    rule = ["---" if column in names else "---:" for column in range(len(heads))]
    lines = [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"

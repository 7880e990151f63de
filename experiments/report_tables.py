"""Format of a figure with its confidence interval. For studies' scripts."""

from __future__ import annotations

from collections.abc import Sequence

from gbactl.report.paired_statistics import Difference, paired


def mean_of(values: Sequence[float]) -> Difference:
    """Mean and half of its 95 % interval; needs at least one value."""
    found = paired([(0.0, value) for value in values])
    assert found is not None
    return found


def written(each: Difference, digits: int, sign: str = "", most: float | None = None) -> str:
    """Format mean +- half of its 95 % interval; bold where all of the interval lies within `most` of 0."""
    text = f"{each.mean:{sign}.{digits}f}" + ("" if each.half is None else f" +-{each.half:.{digits}f}")
    inside = most is not None and each.half is not None and abs(each.mean) + each.half <= most
    return f"**{text}**" if inside else text

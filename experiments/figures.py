"""How studies write a figure with its interval. For studies' scripts."""

from __future__ import annotations

from collections.abc import Sequence

from gbactl.report.stats import Difference, paired


def mean_of(values: Sequence[float]) -> Difference:
    """Mean and half of its 95 % interval. There has to be a value."""
    found = paired([(0.0, value) for value in values])
    assert found is not None
    return found


def written(each: Difference, digits: int, sign: str = "", most: float | None = None) -> str:
    """Mean +- half of its 95 % interval; bold where there is one and all of it lies within `most` of 0."""
    text = f"{each.mean:{sign}.{digits}f}" + ("" if each.half is None else f" +-{each.half:.{digits}f}")
    inside = most is not None and each.half is not None and abs(each.mean) + each.half <= most
    return f"**{text}**" if inside else text

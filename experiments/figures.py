"""How studies write a figure with its interval. For studies' scripts."""

from __future__ import annotations

from gbactl.report.stats import Difference


def written(each: Difference, digits: int, sign: str = "", most: float | None = None) -> str:
    """Mean +- half of its 95 % interval; bold where all of that lies within `most` of 0."""
    half = 0.0 if each.half is None else each.half
    text = f"{each.mean:{sign}.{digits}f}" + ("" if each.half is None else f" +-{each.half:.{digits}f}")
    return f"**{text}**" if most is not None and abs(each.mean) + half <= most else text

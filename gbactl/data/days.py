"""Cutting rows that are in time order into days."""

from __future__ import annotations

from gbactl.errors import DataError

DEFAULT_DAYS = 7


def equal_days(rows: int, days: int | None) -> list[tuple[str, int, int]]:
    """(name, first, end) of `days` (default 7) equal parts. Raises DataError with fewer rows than days."""
    count = days or DEFAULT_DAYS
    if rows < count:
        raise DataError(
            f"The data has {rows} rows, which cannot be cut into data.days={count}; set fewer days."
        )
    return days_between([rows * (i + 1) // count for i in range(count)])


def days_between(ends: list[int]) -> list[tuple[str, int, int]]:
    """(name, first, end) of the days that end before these rows."""
    return [(f"day{i}", start, end) for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]

"""A figure with its interval, as every study writes it."""

from __future__ import annotations

import pytest
import report_tables


def test_the_interval_is_student_s() -> None:
    """1, 2, 3: mean 2, deviation 1, t of two degrees of freedom 4.303: 4.303 / sqrt(3)."""
    assert report_tables.written(report_tables.mean_of([1.0, 2.0, 3.0]), 3) == "2.000 +-2.484"
    assert report_tables.written(report_tables.mean_of([0.5]), 1, "+") == "+0.5"


@pytest.mark.parametrize(
    ("values", "text"), [([0.1, 0.1], "**0.10 +-0.00**"), ([0.1], "0.10"), ([0.1, 0.3], "0.20 +-1.27")]
)
def test_bold_is_what_lies_within_the_target_with_all_of_its_interval(values: list[float], text: str) -> None:
    assert report_tables.written(report_tables.mean_of(values), 2, most=0.5) == text

"""A figure with its interval, as every study writes it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return importlib.import_module("report_tables")


def test_the_interval_is_student_s(figures: Any) -> None:
    """1, 2, 3: mean 2, deviation 1, t of two degrees of freedom 4.303: 4.303 / sqrt(3)."""
    assert figures.written(figures.mean_of([1.0, 2.0, 3.0]), 3) == "2.000 +-2.484"
    assert figures.written(figures.mean_of([0.5]), 1, "+") == "+0.5"


@pytest.mark.parametrize(
    ("values", "text"), [([0.1, 0.1], "**0.10 +-0.00**"), ([0.1], "0.10"), ([0.1, 0.3], "0.20 +-1.27")]
)
def test_bold_is_what_lies_within_the_target_with_all_of_its_interval(
    figures: Any, values: list[float], text: str
) -> None:
    assert figures.written(figures.mean_of(values), 2, most=0.5) == text

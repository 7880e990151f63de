"""The expected maximum against every combination, and what is forgotten when."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.switching.step_times import FEW, MOST, Recent, expected_maximum

COLUMNS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@given(COLUMNS)
def test_the_expected_maximum_is_that_of_every_combination(columns: list[list[int]]) -> None:
    exact = statistics.fmean(max(draw) for draw in itertools.product(*columns))
    assert expected_maximum(columns) == pytest.approx(exact)


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30), min_size=1, max_size=30))
def test_it_lies_between_the_slowest_mean_and_the_largest_value(columns: list[list[float]]) -> None:
    found = expected_maximum(columns)
    assert max(map(statistics.fmean, columns)) <= found * (1 + 1e-9)
    assert found <= max(map(max, columns)) * (1 + 1e-9)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=200), st.floats(0.01, 50.0))
def test_what_is_old_is_forgotten_but_for_a_few(gaps: list[float], seconds: float) -> None:
    recent, times = Recent(seconds), list(itertools.accumulate(gaps))
    for number, time in enumerate(times):
        recent.add(time, float(number))
    kept, now = recent.values, times[-1]
    assert kept == [float(n) for n in range(len(times) - len(kept), len(times))]
    young = [n for n, time in enumerate(times) if time >= now - seconds]
    assert len(kept) == min(MOST, max(len(young), min(FEW, len(times))))

"""Schedules as functions of progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import ScheduleConfig
from gbactl.errors import ConfigError
from gbactl.store.schedule import factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig("constant", warmup=10), {0: 1, 500: 1}),
        (ScheduleConfig("linear"), {0: 1, 9: 1}),
        (ScheduleConfig("linear", warmup=10), {0: 0.1, 4: 0.5, 9: 1, 100: 1}),
        (ScheduleConfig("inverse_sqrt", warmup=4), {0: 0.25, 4: 1, 16: 0.5, 64: 0.25}),
        (ScheduleConfig("inverse_sqrt"), {0: 1, 1: 1, 4: 0.5}),
        (ScheduleConfig("cosine", total=100), {0: 1, 50: 0.5, 100: 0, 200: 0}),
        (ScheduleConfig("cosine", warmup=20, total=120, floor=0.2), {9: 0.5, 20: 1, 70: 0.6, 999: 0.2}),
    ],
)
def test_values(schedule: ScheduleConfig, expected: dict[int, float]) -> None:
    for progress, value in expected.items():
        assert factor(schedule, progress) == pytest.approx(value)


@given(
    st.sampled_from(["constant", "linear", "inverse_sqrt", "cosine"]),
    st.floats(0, 1e6),
    st.floats(0, 100),
    st.floats(0, 1),
)
def test_a_factor_is_between_0_and_1(name: str, progress: float, warmup: float, floor: float) -> None:
    value = factor(ScheduleConfig(name, warmup, 1000.0, floor), progress)
    assert 0 <= value <= 1 + 1e-12


@pytest.mark.parametrize("schedule", [ScheduleConfig("cosine"), ScheduleConfig("cosine", 9, 9), ScheduleConfig("x")])
def test_a_schedule_that_cannot_be(schedule: ScheduleConfig) -> None:
    with pytest.raises(ConfigError, match=r"optim\.schedule"):
        factor(schedule, 1)

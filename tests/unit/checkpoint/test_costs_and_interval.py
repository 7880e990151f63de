"""The equations of partial recovery: their reference setting, their minimum, what is decided by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checked_dataclasses import build
from gbactl.checkpoint.costs_and_interval import (
    JobCosts,
    SaveSchedule,
    bases,
    best_full_interval,
    costs_of,
    estimate,
    estimate_of,
    expected_pls,
    full_overhead,
    interval_for,
    job_named,
    partial_overhead,
    save_schedule_of,
)
from gbactl.checkpoint.failure_cost_counters import PlsCounter
from gbactl.config import CheckpointConfig
from gbactl.errors import ConfigError

HOUR = 3600.0
REFERENCE = JobCosts(56 * HOUR, 28 * HOUR, 8, 5.4 * 60, 120.0, 60.0)
times = st.floats(1.0, 1e6)
costs = st.builds(JobCosts, times, times, st.integers(1, 100), times, times, times)


def test_the_reference_setting() -> None:
    best = best_full_interval(REFERENCE)
    assert best / HOUR == pytest.approx(2.24, abs=0.01)
    assert 100 * full_overhead(REFERENCE, best) / REFERENCE.job == pytest.approx(8.20, abs=0.005)
    assert 100 * partial_overhead(REFERENCE, interval_for(REFERENCE, 0.035)) / REFERENCE.job == pytest.approx(
        0.65, abs=0.005
    )


def test_the_default_configuration_is_the_reference_setting() -> None:
    found = estimate_of(CheckpointConfig(name="cpr"), 8)
    assert 100 * found.full_overhead == pytest.approx(8.20, abs=0.005)
    assert 100 * found.partial_overhead == pytest.approx(0.65, abs=0.005)
    assert (found.recovery, found.expected_pls) == ("partial", pytest.approx(0.035))


@given(costs, st.floats(0.1, 10.0))
def test_no_interval_is_better_than_the_best(some: JobCosts, factor: float) -> None:
    best = best_full_interval(some)
    assert full_overhead(some, best) <= full_overhead(some, best * factor) * (1 + 1e-12)


@given(costs, st.floats(1e-6, 0.999))
def test_an_interval_from_a_target_is_expected_to_lose_that_much(some: JobCosts, pls: float) -> None:
    assert expected_pls(some, interval_for(some, pls)) == pytest.approx(pls)


@given(costs, times)
def test_partial_is_cheaper_than_full_at_the_same_interval(some: JobCosts, interval: float) -> None:
    """It loads a part and computes nothing again."""
    assert partial_overhead(some, interval) < full_overhead(some, interval)


def test_full_recovery_where_partial_does_not_pay() -> None:
    """So small a portion may be lost that saving costs more than going back would."""
    strict = estimate("cpr_mfu", REFERENCE, 1e-4)
    assert strict.recovery == "full"
    assert strict.interval == best_full_interval(REFERENCE)
    assert "full recovery, the cheaper one" in strict.sentence() and "every 7 steps" in strict.sentence(7)
    assert estimate("full", REFERENCE, 0.035).recovery == "full"


def test_half_the_bytes_cost_half_of_a_save() -> None:
    whole, half = (costs_of(CheckpointConfig("full", dtype=dtype), 8) for dtype in ("fp32", "bf16"))
    assert (whole.save, half.save) == (324.0, 162.0)
    assert replace(half, save=324.0) == whole


def test_an_interval_that_is_set_is_taken() -> None:
    found = estimate_of(CheckpointConfig("cpr", interval_seconds=600.0), 8)
    assert found.interval == 600.0 and found.expected_pls == expected_pls(REFERENCE, 600.0)
    assert found.partial_overhead == partial_overhead(REFERENCE, 600.0) / REFERENCE.job
    assert found.full_overhead == full_overhead(REFERENCE, 600.0) / REFERENCE.job
    assert "every 600 s (expected overhead: partial" in found.sentence()
    assert "every 0.0302 s (expected" in estimate_of(CheckpointConfig("cpr", interval_seconds=0.03021), 8).sentence()


def test_what_is_expected_at_an_interval_in_steps_is_said_to_be_of_another() -> None:
    found = estimate_of(CheckpointConfig("cpr", interval_steps=7), 8)
    assert found == estimate_of(CheckpointConfig("cpr"), 8)
    told = "every 7 steps (expected overhead, not at those but at the intervals that follow from the costs: partial"
    assert found.sentence(7, expected=False) == "partial recovery, saved every 7 steps"
    assert told in found.sentence(7) and "0.65 % at 56,448 s, full 8.20 % at 8,082 s" in found.sentence(7)


def test_nothing_is_expected_of_a_job_that_nobody_described() -> None:
    assert not job_named(CheckpointConfig("cpr", save_seconds=3.0, interval_steps=7))
    assert job_named(CheckpointConfig("cpr", job_seconds=60.0)) and job_named(CheckpointConfig("cpr", mtbf_seconds=9.0))


def test_whole_saves_between_chosen_rows_cost_more_and_change_no_interval() -> None:
    """A job of 56 h ends before the first of them; in a long one they add a tenth, and may decide."""
    config = CheckpointConfig("cpr_mfu")
    assert estimate_of(config, 8) == estimate_of(CheckpointConfig("cpr"), 8)
    long = replace(REFERENCE, job=10_000 * REFERENCE.between_failures)
    plain, found = estimate("cpr", long, 0.035), estimate("cpr_mfu", long, 0.035, None, 8, 8)
    more = 7 / 8 * REFERENCE.save / (8 * plain.interval)
    assert found.partial_overhead - plain.partial_overhead == pytest.approx(more, rel=0.01)
    assert replace(found, partial_overhead=plain.partial_overhead) == plain
    assert bases(long, plain.interval, 1, 8) == bases(long, plain.interval, 8, 0) == 0.0
    even = next(pls / 1e4 for pls in range(1, 100) if estimate("cpr", long, pls / 1e4).recovery == "partial")
    assert estimate("cpr_mfu", long, even, None, 8, 1).recovery == "full"


@pytest.mark.parametrize(
    "wrong", [{"job_seconds": 0.0}, {"mtbf_seconds": -1.0}, {"target_pls": 0.0}, {"save_seconds": float("nan")}]
)
def test_costs_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        build(CheckpointConfig, wrong, "checkpoint.")


def test_a_rhythm_of_chosen_rows() -> None:
    kinds = [SaveSchedule(4, 100.0, None, 2).kind(number) for number in range(1, 10)]
    assert kinds == ["chosen", "chosen", "chosen", "rest", "chosen", "chosen", "chosen", "whole", "chosen"]
    assert SaveSchedule(4, 100.0, 40, 2).steps_between == 10
    assert SaveSchedule(4, 100.0, None, 2).seconds_between == 25.0


def test_without_priorities_every_save_is_whole() -> None:
    assert {save_schedule_of(CheckpointConfig(name="cpr"), 8).kind(number) for number in range(1, 20)} == {"whole"}
    strict = CheckpointConfig(name="cpr_mfu", target_pls=1e-4)
    assert save_schedule_of(strict, 8).parts == 1
    assert save_schedule_of(CheckpointConfig(name="cpr_mfu"), 8).parts == 8


@pytest.mark.parametrize(
    ("name", "steps", "every", "between"),
    [
        ("cpr", 15, 15, 15),
        ("cpr_mfu", 4, 8, 1),
        ("cpr_mfu", 15, 8, 1),
        ("cpr_mfu", 20, 16, 2),
        ("cpr_mfu", None, None, None),
    ],
)
def test_an_interval_in_steps_has_a_whole_number_of_them_between_two_saves(
    name: Any, steps: int | None, every: int | None, between: int | None
) -> None:
    """And is that number of steps, as the run says."""
    found = save_schedule_of(CheckpointConfig(name, interval_steps=steps), 8)
    assert (found.every_steps, found.steps_between) == (every, between)


def test_lost_samples_are_counted_since_the_last_checkpoint_and_once() -> None:
    pls = PlsCounter(samples=1000, shards=4)
    assert pls.count_lost(0, 100) == pytest.approx(100 / 4000)
    pls.record_save(300)
    assert pls.count_lost(1, 500) == pytest.approx(200 / 4000)
    assert pls.count_lost(1, 500) == 0.0
    assert pls.count_lost(1, 600) == pytest.approx(100 / 4000)
    pls.record_save(400)  # an older one that took longer
    assert pls.count_lost(1, 600) == 0.0
    assert pls.total == pytest.approx(400 / 4000)
    assert pls.of == pytest.approx([0.025, 0.075, 0.0, 0.0])

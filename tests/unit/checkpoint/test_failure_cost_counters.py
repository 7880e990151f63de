"""Lost work and time, counted by what was saved or could be loaded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checkpoint.costs_and_interval import JobCosts
from gbactl.checkpoint.failure_cost_counters import (
    PARTS,
    CostSeconds,
    PlsCounter,
    ServerFailureLoss,
    UnsavedWork,
    UpdateCounter,
)

COSTS = JobCosts(1000.0, 100.0, 4, 8.0, 4.0, 2.0)
seconds = st.floats(0.0, 1e6)


def test_it_counts_from_the_last_save() -> None:
    stakes = UnsavedWork.begin(1000, 2)
    stakes.updates.count_applied(0, 50)
    stakes.updates.count_applied(1, 60)
    stakes.record_save(4, 100, dict(enumerate(stakes.updates.pending)))
    stakes.updates.count_applied(0, 7)
    assert stakes.count_lost(0, 140) == ServerFailureLoss(40, 40 / 2000, 7)
    assert stakes.count_lost(0, 140) == ServerFailureLoss(0, 0.0, 0), "what is lost is lost once"
    assert stakes.count_missed(0, 10, 3) == ServerFailureLoss(10, 10 / 2000, 3)
    assert stakes.pls.total == pytest.approx(50 / 2000) and stakes.updates.total_lost == 10


def test_where_the_newest_is_damaged_more_is_lost() -> None:
    stakes = UnsavedWork.begin(1000, 1)
    for step, samples in ((2, 100), (4, 200), (6, None), (8, 300)):
        stakes.record_save(step, samples, {})
    stakes.count_lost(0, 330)
    assert stakes.count_older(0, 8).samples == 0
    assert stakes.count_older(0, 6) == ServerFailureLoss(100, 100 / 1000, 0), (
        "PLS counts from the whole one before the chosen rows"
    )
    assert stakes.count_older(0, -1).samples == 300


def test_another_goes_on_with_what_was_told() -> None:
    """As JSON has it; also about what was saved before, which a shard may have to go back to."""
    stakes = UnsavedWork.begin(1000, 2)
    stakes.updates.count_applied(0, 50)
    stakes.updates.count_applied(1, 60)
    stakes.record_save(4, 100, {0: 40, 1: 60})
    stakes.record_save(8, 300, {})
    stakes.count_lost(0, 330)
    stakes.count_missed(1, 8, 3)
    other = msgspec.json.decode(msgspec.json.encode(stakes), type=UnsavedWork)
    assert other == stakes and other.pls.total == stakes.pls.total > 0
    assert (other.updates.total, other.updates.total_lost) == (113, 13)
    assert other.count_older(0, 4) == stakes.count_older(0, 4) == ServerFailureLoss(200, 200 / 2000, 0)
    assert other.count_lost(1, 340) == stakes.count_lost(1, 340)


def test_a_job_that_goes_on_counts_from_there() -> None:
    assert UnsavedWork.begin(1000, 1, 12, 400).count_lost(0, 450).samples == 50


def test_what_is_saved_is_not_undone_and_what_is_lost_is_lost_once() -> None:
    counter = UpdateCounter(2)
    counter.count_applied(0, 10)
    counter.count_applied(1, 7)
    at = list(counter.pending)
    counter.count_applied(0, 5)
    for shard, updates in enumerate(at):
        counter.count_saved(shard, updates)
    assert counter.count_lost(0) == 5 and counter.count_lost(0) == 0
    counter.count_missed(0, 3)
    assert (counter.total, counter.total_lost) == (25, 8)
    assert counter.share == 8 / 25 and counter.pending == [0, 0]


def test_without_updates_nothing_is_lost() -> None:
    counter = UpdateCounter(3)
    assert counter.count_lost(1) == 0 and counter.share == 0.0


def test_parts_that_never_came_count_in_the_pls() -> None:
    pls = PlsCounter(1000, 2)
    pls.record_save(100)
    assert pls.count_lost(0, 300) == 200 / 2000
    assert pls.count_missed(0, 50) == 50 / 2000
    assert pls.total == 250 / 2000 and pls.of[1] == 0.0


def test_each_part_is_charged_as_the_equations_have_it() -> None:
    spent = CostSeconds()
    assert spent.save(COSTS, 0.25) == 2.0
    assert spent.add_partial_recovery(COSTS) == 3.0
    spent.add_repeated_training(10.0, 70)
    assert spent.add_full_recovery(COSTS) == 6.0
    told = spent.to_result(121.0)
    assert told["job_seconds"] == 100.0
    assert [told[part] for part in PARTS] == pytest.approx([0.02, 0.05, 0.04, 0.1])
    assert told["total"] == pytest.approx(0.21)
    counts = ("samples_rolled_back", "went_back_alone", "everybody_went_back")
    assert [told[name] for name in counts] == [70, 1, 1]


@given(st.lists(st.tuples(st.sampled_from(["save", "one", "all"]), seconds), max_size=20), seconds)
def test_the_parts_are_the_whole(events: list[tuple[str, float]], job: float) -> None:
    spent, clock = CostSeconds(), job
    for kind, value in events:
        if kind == "save":
            clock += spent.save(COSTS, min(1.0, value))
        elif kind == "one":
            clock += spent.add_partial_recovery(COSTS)
        else:
            spent.add_repeated_training(value, 1)
            clock += value + spent.add_full_recovery(COSTS)
    told = spent.to_result(clock)
    assert told["job_seconds"] == pytest.approx(job, abs=1e-6 * (1 + clock))
    assert told["total"] == pytest.approx(sum(told[part] for part in PARTS))
    assert told["went_back_alone"] + told["everybody_went_back"] == sum(kind != "save" for kind, _ in events)


def test_a_job_of_no_time_has_no_shares() -> None:
    assert CostSeconds().to_result(0.0)["total"] == 0.0

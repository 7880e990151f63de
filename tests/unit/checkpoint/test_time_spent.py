"""Where the time of a job goes, part by part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checkpoint.overheads import Costs
from gbactl.checkpoint.time_spent import PARTS, Spent

COSTS = Costs(1000.0, 100.0, 4, 8.0, 4.0, 2.0)
seconds = st.floats(0.0, 1e6)


def test_each_part_is_charged_as_the_equations_have_it() -> None:
    spent = Spent()
    assert spent.save(COSTS, 0.25) == 2.0
    assert spent.one_back(COSTS) == 3.0
    assert spent.all_back(COSTS, again=10.0, samples=70) == 6.0
    told = spent.told(121.0)
    assert told["job_seconds"] == 100.0
    assert [told[part] for part in PARTS] == pytest.approx([0.02, 0.05, 0.04, 0.1])
    assert told["total"] == pytest.approx(0.21)
    counts = ("samples_rolled_back", "went_back_alone", "everybody_went_back")
    assert [told[name] for name in counts] == [70, 1, 1]


@given(st.lists(st.tuples(st.sampled_from(["save", "one", "all"]), seconds), max_size=20), seconds)
def test_the_parts_are_the_whole(events: list[tuple[str, float]], job: float) -> None:
    spent, clock = Spent(), job
    for kind, value in events:
        if kind == "save":
            clock += spent.save(COSTS, min(1.0, value))
        elif kind == "one":
            clock += spent.one_back(COSTS)
        else:
            clock += value + spent.all_back(COSTS, value, 1)
    told = spent.told(clock)
    assert told["job_seconds"] == pytest.approx(job, abs=1e-6 * (1 + clock))
    assert told["total"] == pytest.approx(sum(told[part] for part in PARTS))
    assert told["went_back_alone"] + told["everybody_went_back"] == sum(kind != "save" for kind, _ in events)


def test_a_job_of_no_time_has_no_shares() -> None:
    assert Spent().told(0.0)["total"] == 0.0

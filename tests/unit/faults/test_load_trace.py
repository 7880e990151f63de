"""Load traces: what a file may say, which factor holds when, and that a configuration carries all of it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import from_dict, to_dict
from gbactl.errors import ConfigError
from gbactl.faults.fault_kinds import LoadTrace, read_trace
from gbactl.launch.hydra_config import compose
from tests.support.fault_plans import plan

DAY = [[0.0, 1.0], [2.0, 4.0], [3.0, 1.5]]
TIMES = st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True).map(sorted)


def test_a_factor_holds_until_the_next_one() -> None:
    trace = LoadTrace(points=DAY)
    assert [trace.factor_at(0, 0, s) for s in (0.0, 1.9, 2.0, 2.9, 3.0, 99.0)] == [1.0, 1.0, 4.0, 4.0, 1.5, 1.5]
    assert LoadTrace(points=[[5.0, 3.0]]).factor_at(0, 0, 4.9) == 1.0
    scaled = LoadTrace(points=DAY, scale=10.0, period=4.0)
    assert [scaled.factor_at(0, 0, s) for s in (19.0, 20.0, 39.0, 59.0, 60.0)] == [1.0, 4.0, 1.5, 1.0, 4.0]


@given(TIMES, st.data())
def test_it_is_the_last_point_that_has_come(times: list[int], data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.floats(1.0, 9.0), min_size=len(times), max_size=len(times)))
    at = data.draw(st.floats(0.0, 2000.0))
    trace = LoadTrace(points=[[float(t), f] for t, f in zip(times, factors, strict=True)])
    come = [f for t, f in zip(times, factors, strict=True) if t <= at]
    assert trace.factor_at(1, 2, at) == (come[-1] if come else 1.0)


def test_workers_may_differ_and_others_are_calm() -> None:
    made = plan({"kind": "trace", "points": [[0.0, 2.0, 1.0], [1.0, 3.0, 1.0], [0.5, 9.0, 3.0]]})
    assert [made.factor(worker, 0, 1.5) for worker in range(4)] == [1.0, 3.0, 1.0, 9.0]
    made = plan({"kind": "trace", "points": [[0.0, 2.0], [10.0, 1.0], [5.0, 3.0, 1.0]]})
    assert [made.factor(1, 0, seconds) for seconds in (1.0, 6.0, 11.0)] == [2.0, 3.0, 1.0]


def test_with_a_distribution_the_factor_is_a_mean_that_the_seed_draws() -> None:
    typed = {"kind": "trace", "points": [[0.0, 1.0], [1.0, 3.0]], "distribution": "lognormal", "sigma": 0.5}
    made, again, other = plan(typed), plan(typed), plan(typed, seed=1)
    factors = [made.factor(0, turn, 1.0) for turn in range(2000)]
    assert statistics.fmean(factors) == pytest.approx(3.0, rel=0.05) and min(factors) > 1.0
    assert factors[:9] == [again.factor(0, turn, 1.0) for turn in range(9)]
    assert factors[:9] != [other.factor(0, turn, 1.0) for turn in range(9)]
    assert {made.factor(0, turn, 0.5) for turn in range(9)} == {1.0}


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("seconds,factor\n0,1\n2.5,4\n", [[0.0, 1.0], [2.5, 4.0]]),
        ("# a day\nfactor, seconds\n\n1, 0\n4, 2\n", [[0.0, 1.0], [2.0, 4.0]]),
        ("worker,seconds,factor\n3,0,2\n", [[0.0, 2.0, 3.0]]),
    ],
)
def test_a_file(tmp_path: Path, text: str, points: list[list[float]]) -> None:
    path = tmp_path / "load.csv"
    path.write_text(text)
    assert read_trace(path) == points
    cfg = compose([f"faults.plans=[{{kind: trace, file: {path}, scale: 2}}]"])
    assert cfg.faults.plans[0]["points"] == points
    path.unlink()
    assert from_dict(to_dict(cfg)) == cfg, "nobody reads the file again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with a line seconds,factor"),
        ("second,factor\n0,1\n", "must begin with a line seconds,factor"),
        ("seconds,factor\n0,x\n", r"has a line 0,x; type seconds,factor"),
        ("seconds,factor\n0\n", r"has a line 0; type"),
        ("seconds,factor\n", r"faults\.plans\[0\] needs points"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "load.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        compose([f"faults.plans=[{{kind: trace, file: {path}}}]"])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"load trace .*nowhere\.csv cannot be read"):
        compose([f"faults.plans=[{{kind: trace, file: {tmp_path / 'nowhere.csv'}}}]"])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({}, r"needs points \[\[seconds, factor\], \.\.\.\], or file"),
        ({"points": []}, "needs points"),
        ({"points": [[1.0]]}, r"points\[0\]=\[1\.0\] is not \[seconds, factor\]"),
        ({"points": [[0.0, 0.5]]}, r"points\[0\]\.factor=0\.5 is not a number from 1 to"),
        ({"points": [[-1.0, 2.0]]}, r"points\[0\]\.seconds=-1\.0 is not a number from 0"),
        ({"points": [[1.0, 2.0], [1.0, 3.0]]}, r"points\[1\] is not after the one before"),
        ({"points": [[0.0, 2.0, 1]], "servers": [0]}, "has points of workers; leave servers out"),
        ({"points": DAY, "scale": 0.0}, r"scale=0\.0 is not a number from 1e-06 to"),
        ({"points": DAY, "period": 0.0}, r"period=0\.0 is not a number from 0\.001 to"),
        ({"points": DAY, "distribution": "weibull"}, "is not one of exponential, lognormal, pareto or null"),
        ({"points": DAY, "sigma": 0.5}, "sigma belongs to distribution: lognormal"),
        ({"points": DAY, "shape": 2.5}, "shape belongs to distribution: pareto"),
        ({"points": [1.0]}, r"points=\[1\.0\] is not a list"),
    ],
)
def test_what_cannot_work_says_what_to_type(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"faults": {"plans": [{"kind": "trace", **typed}]}})

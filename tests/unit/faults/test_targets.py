"""Whom a fault is for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.errors import ConfigError
from gbactl.faults.targets import choose


def chosen(wanted: Any, total: int, *seeds: int) -> tuple[int, ...]:
    return choose(wanted, total, "faults.plans[0]", *seeds)


def test_by_name() -> None:
    assert chosen("all", 3) == (0, 1, 2)
    assert chosen([3, 1], 4) == (1, 3)
    assert chosen([], 4) == ()
    assert chosen(None, 4) == ()


@pytest.mark.parametrize(
    ("share", "total", "count"),
    [
        ("1/8", 400, 50), ("1/8", 8, 1), ("1/8", 4, 1), ("1/8", 2, 1), ("1/8", 12, 2), ("1/2", 5, 3),
        (0.25, 8, 2), ("1", 3, 3),
    ],
)  # fmt: skip
def test_a_share_is_rounded_to_at_least_one(share: Any, total: int, count: int) -> None:
    assert len(chosen(share, total, 1)) == count


@given(st.integers(1, 50), st.integers(0, 1000), st.data())
def test_so_many_distinct_workers_the_same_for_a_seed(total: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, total))
    found = chosen(count, total, seed)
    assert len(set(found)) == len(found) == count and set(found) <= set(range(total))
    assert found == chosen(count, total, seed)
    assert set(chosen(count - 1, total, seed) if count > 1 else ()) <= set(found)


def test_every_worker_is_chosen_about_equally_often() -> None:
    counts = [0] * 8
    for seed in range(800):
        counts[chosen("1/8", 8, seed, 0)[0]] += 1
    assert min(counts) > 70 and max(counts) < 130


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([4], r"no worker 4; workers are numbered 0 to 3"),
        ([-1], r"no worker -1"),
        ([1, 1], r"a worker twice"),
        (5, r"workers=5 cannot be chosen; type 1 to 4"),
        (0, r"workers=0 cannot be chosen"),
        ("half", r"'half' is not understood; type indices"),
        ("1/0", "not understood"),
        ("9/8", "not understood"),
        ("0", "not understood"),
        (float("inf"), "not understood"),
        (float("nan"), "not understood"),
    ],
)
def test_what_is_mistyped(wanted: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        chosen(wanted, 4)
    assert str(caught.value).startswith("faults.plans[0].workers") and "\n" not in str(caught.value)

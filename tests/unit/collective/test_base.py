"""Buckets cover a vector exactly once, and views are views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.collective.base import SingleRankCollective, all_reduce_sum, as_array
from gbactl.collective.buckets import Buckets


@given(st.integers(1, 5000), st.integers(1, 12))
def test_even_buckets_cover_the_vector_once_and_in_order(length: int, count: int) -> None:
    buckets = Buckets.even("d", length, count)
    assert buckets.edges[0] == 0
    assert buckets.edges[-1] == length
    assert all(lo < hi for lo, hi in zip(buckets.edges, buckets.edges[1:], strict=False))
    assert len(buckets) <= count


@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.integers(1, 8))
def test_parameter_buckets_never_cut_a_parameter(sizes: list[int], count: int) -> None:
    buckets = Buckets.of_parameters("d", sizes, count)
    ends = {0, *np.cumsum(sizes).tolist()}
    assert set(buckets.edges) <= ends
    assert buckets.edges[-1] == sum(sizes)
    assert 1 <= len(buckets) <= count


def test_buckets_of_an_mlp_are_balanced_between_layers() -> None:
    sizes = [429 * 400, 400, 160_000, 400, 160_000, 400, 400, 1]
    buckets = Buckets.of_parameters("d", sizes, 2)
    assert buckets.edges == (0, 429 * 400 + 400, sum(sizes)) or buckets.edges[1] == sum(sizes[:3])
    assert [buckets.label(i) for i in range(2)] == ["d.0", "d.1"]


def test_a_piece_is_a_view() -> None:
    flat = np.zeros(100, np.float32)
    Buckets.even("d", 100, 3).piece(flat, 1)[:] = 1
    assert 0 < flat.sum() < 100


@pytest.mark.parametrize(
    "bad",
    [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]],
    ids=["f64", "2d", "strided"],
)
def test_what_is_not_a_flat_float32_vector_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="float32"):
        as_array(bad)


def test_one_rank_alone_keeps_its_vector() -> None:
    flat = np.arange(5, dtype=np.float32)
    all_reduce_sum(SingleRankCollective(), "x", flat)
    assert flat.tolist() == [0, 1, 2, 3, 4]

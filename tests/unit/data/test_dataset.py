from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.data.dataset import permuted


@given(n=st.integers(1, 3000), key=st.integers(-(2**70), 2**70))
def test_it_is_a_permutation(n: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(0, n, n, key)), np.arange(n))


@given(n=st.integers(1, 2000), key=st.integers(0, 2**64), cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_it_does_not_depend_on_the_chunks(n: int, key: int, cuts: list[int]) -> None:
    ends = sorted({0, n, *(min(c, n) for c in cuts)})
    parts = [permuted(lo, hi, n, key) for lo, hi in pairwise(ends)]
    assert np.array_equal(np.concatenate(parts), permuted(0, n, n, key))


def test_keys_give_unrelated_orders() -> None:
    n = 10_000
    orders = [permuted(0, n, n, key) for key in (0, 1, 2, 1 << 40)]
    for i, a in enumerate(orders):
        assert abs(np.corrcoef(a, np.arange(n))[0, 1]) < 0.05
        for b in orders[i + 1 :]:
            assert (a == b).sum() < 20
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


def test_neighbours_are_scattered() -> None:
    n = 100_000
    gaps = np.abs(np.diff(permuted(0, n, n, 7)))
    assert gaps.mean() == pytest.approx(n / 3, rel=0.02)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (3, 2), (0, 11)])
def test_positions_outside_are_refused(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match="permutation of 10"):
        permuted(lo, hi, 10, 0)


def test_part_of_a_huge_permutation_is_cheap() -> None:
    part = permuted(10**12, 10**12 + 5, 4 * 10**12, 3)
    assert len(set(part.tolist())) == 5
    assert part.min() >= 0
    assert part.max() < 4 * 10**12

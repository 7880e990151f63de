"""The in-memory twin sums in rank order, whatever the order of arrival."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gbactl.collective.base import OverlappedGradient, bucket_edges, sum_in_rank_order
from gbactl.errors import ClusterError
from tests.support.in_memory_collective import MemoryGroup


def vectors(size: int, length: int = 257) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    shape = (size, length)
    return list((rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32))


def test_the_order_of_ranks_matters_to_the_bits_so_the_test_below_can_fail() -> None:
    parts = vectors(4)
    assert any(
        sum_in_rank_order(list(order)).tobytes() != sum_in_rank_order(parts).tobytes()
        for order in itertools.permutations(parts)
    )


@pytest.mark.parametrize("arrival", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_any_order_of_arrival_gives_the_bits_of_rank_order(arrival: tuple[int, ...]) -> None:
    parts = vectors(3)
    expected = sum_in_rank_order(parts)
    group = MemoryGroup(3, timeout=5)
    ranks = [group.member(r) for r in range(3)]
    handles = {r: ranks[r].start("d", parts[r]) for r in arrival}
    for r in arrival:
        ranks[r].wait(handles[r])
    assert all(part.tobytes() == expected.tobytes() for part in parts)


def test_threads_sum_many_rounds_of_many_buckets() -> None:
    group = MemoryGroup(3, timeout=5)
    edges = bucket_edges([25] * 4, 4)

    def work(rank: int) -> list[float]:
        seen, flat = [], np.empty(100, np.float32)
        gradient = OverlappedGradient(group.member(rank), "d", edges, flat, [])
        for step in range(20):
            flat[:] = step + rank
            gradient.wait()
            assert flat.min() == flat.max()
            seen.append(float(flat[0]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    assert results == [[3.0 * step + 3 for step in range(20)]] * 3
    assert group.rounds == {}


def test_a_rank_that_left_is_named() -> None:
    group = MemoryGroup(2, timeout=30)
    group.member(1).close()
    left = group.member(0)
    with pytest.raises(ClusterError, match="rank 1"):
        left.wait(left.start("d", np.zeros(4, np.float32)))


def test_a_name_keeps_its_length() -> None:
    group = MemoryGroup(2)
    group.member(0).start("d", np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="4 floats"):
        group.member(1).start("d", np.zeros(5, np.float32))

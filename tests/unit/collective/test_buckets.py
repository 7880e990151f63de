"""Buckets are started from the end of the vector, as soon as they are full, in one order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.collective.base import OverlappedGradient, bucket_edges
from gbactl.kernels.half_precision import CODECS, Codec


class Doubling:
    """Two ranks that hold the same; notes what was started and waited for."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, name: str, buffer: Any) -> Any:
        self.started.append(name)
        buffer *= 2
        return name

    def wait(self, handle: Any) -> None:
        assert handle in self.started

    def close(self) -> None:
        pass


SPANS = [(0, 4), (4, 6), (6, 12), (12, 15)]


def filling(codec: Codec | None = None) -> OverlappedGradient:
    return OverlappedGradient(Doubling(), "d", (0, 6, 12, 15), np.zeros(15, np.float32), SPANS, codec)


def test_a_bucket_starts_when_it_and_all_behind_it_are_full() -> None:
    made = filling()
    started = made.collective.started
    made.filled(3)
    assert started == ["d.2"]
    made.filled(0)
    assert started == ["d.2"]
    made.filled(1)
    assert started == ["d.2"]  # d.0 is full, d.1 behind it is not
    made.filled(2)
    assert started == ["d.2", "d.1", "d.0"]


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_every_order_of_gradients_gives_one_order_of_starts_and_every_value_once(
    first: list[int], second: list[int]
) -> None:
    made = filling()
    for order in (first, second):
        for parameter in order:
            low, high = SPANS[parameter]
            made.buffer[low:high] = 1.0
            made.filled(parameter)
        made.wait()
        assert made.buffer.tolist() == [2.0] * 15
    assert made.collective.started == ["d.2", "d.1", "d.0"] * 2


def test_what_nobody_filled_is_started_by_the_wait() -> None:
    made = filling()
    made.wait()
    assert made.collective.started == ["d.2", "d.1", "d.0"]


def test_parts_are_rounded_before_they_are_summed_and_sums_after() -> None:
    made = filling(CODECS["fp16"])
    made.buffer[:] = 1.0
    made.buffer[[0, 7]] = 1025.3, 40_000.0
    made.wait()
    assert made.buffer[[0, 7]].tolist() == [2050.0, 65_504.0], "fp16 goes from 1024 in steps of 1, to its largest"
    assert made.buffer[1:7].tolist() == [2.0] * 6


def test_a_parameter_across_an_edge_is_refused() -> None:
    with pytest.raises(ValueError, match="no single bucket"):
        OverlappedGradient(Doubling(), "d", (0, 5, 15), np.zeros(15, np.float32), SPANS)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.integers(1, 8))
def test_parameter_buckets_never_cut_a_parameter(sizes: list[int], count: int) -> None:
    edges = bucket_edges(sizes, count)
    assert edges[0] == 0 and all(lo < hi for lo, hi in itertools.pairwise(edges))
    ends = {0, *np.cumsum(sizes).tolist()}
    assert set(edges) <= ends
    assert edges[-1] == sum(sizes)
    assert 1 <= len(edges) - 1 <= count


def test_buckets_of_an_mlp_are_balanced_between_layers() -> None:
    sizes = [429 * 400, 400, 160_000, 400, 160_000, 400, 400, 1]
    edges = bucket_edges(sizes, 2)
    assert edges == (0, 429 * 400 + 400, sum(sizes)) or edges[1] == sum(sizes[:3])
    assert len(edges) == 3

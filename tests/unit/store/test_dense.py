"""The dense block: cut anywhere, same bits; sums in order; buffers; state that moves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.kernels.base import Kernels, aligned_zeros
from gbactl.store.dense import DenseBlock, DenseSpec, dense_range, nonempty_slices
from gbactl.store.optimizer_settings import OptimizerSpec

P, Q = 1200, 77
SPEC = DenseSpec(P, Q)
check = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def vector(rng: Any) -> Any:
    return rng.standard_normal(P + Q).astype(np.float32)


def optimizer(name: str) -> OptimizerSpec:
    return OptimizerSpec(name, 0.01, weight_decay=0.001)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@check
@given(cuts=st.lists(st.integers(0, P + Q), max_size=4), seed=st.integers(0, 99), parts=st.integers(1, 3))
def test_a_vector_cut_anywhere_gives_the_same_bits(
    kernels: Kernels, name: str, cuts: list[int], seed: int, parts: int
) -> None:
    rng = np.random.default_rng(seed)
    start, steps = vector(rng), [[(vector(rng), 0.5 + i) for i in range(parts)] for _ in range(3)]
    whole = DenseBlock(start.copy(), SPEC, optimizer(name), kernels=kernels)
    bounds = [0, *sorted(cuts), P + Q]
    pieces = [
        DenseBlock(start[lo:hi].copy(), SPEC, optimizer(name), lo, kernels) for lo, hi in itertools.pairwise(bounds)
    ]
    for step in steps:
        whole.apply_parts(step, 3.0, 2.5, 0.5)
        for piece in pieces:
            lo, hi = piece.lo, piece.lo + len(piece.value)
            piece.apply_parts([(g[lo:hi], w) for g, w in step], 3.0, 2.5, 0.5)
    np.testing.assert_array_equal(np.concatenate([piece.value for piece in pieces]), whole.value)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_parts_are_summed_in_order(kernels: Kernels, count: int) -> None:
    rng = np.random.default_rng(count)
    start, parts = vector(rng), [(vector(rng), float(np.float32(w))) for w in rng.random(count)]
    total = parts[0][0] * np.float32(parts[0][1])
    for gradient, weight in parts[1:]:
        total = total + gradient * np.float32(weight)
    blocks = [DenseBlock(start.copy(), SPEC, optimizer("adam"), kernels=kernels) for _ in range(2)]
    blocks[0].apply_parts(parts, 3.0, 2.0)
    blocks[1].apply_parts([(total, 1.0)], 3.0, 2.0)
    np.testing.assert_array_equal(blocks[0].value, blocks[1].value)


def test_buffers_follow_the_weighted_mean(kernels: Kernels) -> None:
    spec = DenseSpec(1, 2, momentum=0.5)
    block = DenseBlock(np.array([0, 4, 8], np.float32), spec, OptimizerSpec("sgd", 1.0), kernels=kernels)
    gradients = [np.array([6, 1, 2], np.float32), np.array([6, 3, 2], np.float32)]
    block.apply_parts([(gradients[0], 1.0), (gradients[1], 0.5)], divisor=3.0, weight_sum=1.5)
    # total = [9, 2.5, 3]; parameter 0 - 9/3; buffers 4 + .5 (2.5/1.5 - 4) and 8 + .5 (3/1.5 - 8)
    np.testing.assert_allclose(block.value, [-3, 4 + 0.5 * (2.5 / 1.5 - 4), 5], rtol=1e-6)


def test_state_moves_to_another_block(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    one = DenseBlock(vector(rng), SPEC, optimizer("adam"), kernels=kernels)
    other = DenseBlock(vector(rng), SPEC, optimizer("adam"), kernels=kernels)
    for _ in range(3):
        one.apply(vector(rng), 2.0)
    state = one.state()
    other.load_state(state)
    gradient = vector(rng)
    one.apply(gradient, 2.0)
    assert not np.array_equal(state["value"], one.value)  # a copy
    other.apply(gradient, 2.0)
    np.testing.assert_array_equal(one.value, other.value)
    assert one.step == other.step == 4


def test_a_state_of_another_kind_is_refused(kernels: Kernels) -> None:
    block = DenseBlock(aligned_zeros((P + Q,)), SPEC, optimizer("adam"), kernels=kernels)
    state = block.state()
    with pytest.raises(ValueError, match="moment"):
        DenseBlock(aligned_zeros((P + Q,)), SPEC, optimizer("sgd"), kernels=kernels).load_state(state)
    with pytest.raises(ValueError, match="shape"):
        block.load_state({**state, "moment.first": np.zeros(3, np.float32)})


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_a_step_that_cannot_be_changes_nothing(kernels: Kernels, arguments: tuple[float, float]) -> None:
    block = DenseBlock(aligned_zeros((P + Q,)), SPEC, optimizer("adam"), kernels=kernels)
    with pytest.raises(ValueError, match="positive"):
        block.apply_parts([(np.ones(P + Q, np.float32), 1.0)], *arguments)
    with pytest.raises(ValueError, match="shape"):
        block.apply(np.ones(P, np.float32), 1.0)
    assert block.step == 0
    assert not block.value.any()


def test_a_slice_outside_the_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        DenseBlock(aligned_zeros((10,)), DenseSpec(12), optimizer("sgd"), lo=3)


@given(size=st.integers(0, 10_000), shards=st.integers(1, 9))
def test_slices_are_balanced_and_cover_the_vector(size: int, shards: int) -> None:
    slices = [dense_range(size, shard, shards) for shard in range(shards)]
    assert [lo for lo, _ in slices] + [size] == [0] + [hi for _, hi in slices]
    lengths = [hi - lo for lo, hi in slices]
    assert max(lengths) - min(lengths) <= 1


@given(size=st.integers(0, 10_000), shards=st.integers(1, 9), data=st.data())
def test_the_first_shards_share_the_vector_and_the_others_have_nothing(
    size: int, shards: int, data: st.DataObject
) -> None:
    holders = data.draw(st.integers(1, shards))
    slices = [dense_range(size, shard, holders) for shard in range(shards)]
    assert slices[:holders] == [dense_range(size, shard, holders) for shard in range(holders)]
    assert slices[holders:] == [(size, size)] * (shards - holders)
    assert [lo for lo, _ in slices] + [size] == [0] + [hi for _, hi in slices], "in shard order they make the vector"
    assert nonempty_slices(slices) == {shard: cut for shard, cut in enumerate(slices[:holders]) if cut[0] < cut[1]}


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_an_empty_slice_moves_and_sums_up_to_nothing(kernels: Kernels, name: str) -> None:
    block = DenseBlock(aligned_zeros((0,)), SPEC, optimizer(name), lo=P + Q, kernels=kernels)
    assert (block.params, block.model_sum()) == (0, 0)
    packed = block.packed(P + Q, P + Q)
    assert packed.size == 0
    block.unpack(P + Q, P + Q, packed, 7)
    block.load_state(block.state())
    assert block.step == 7
    block.reset_optimizer()
    assert block.step == 0

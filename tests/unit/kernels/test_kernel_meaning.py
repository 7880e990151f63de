"""What the kernels compute, against plain Python; run for the compiled set and for the twin."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from gbactl.kernels.base import Kernels, OptimizerRule, Workspace


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def test_dedupe_groups_by_shard_in_first_seen_order(kernels: Kernels) -> None:
    ids = np.array([[3, 0], [1, 0], [3, 2]], np.int32)
    made = kernels.dedupe(ids, np.array([0, 10]), 2)  # fused: 3 10 / 1 10 / 3 12
    assert made.index.tolist() == [5, 6, 1, 0]  # shard 0: 10, 12; shard 1: 3, 1
    assert made.counts.tolist() == [2, 2]
    assert made.inverse.tolist() == [2, 0, 3, 0, 2, 1]


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_dedupe_can_be_undone(kernels: Kernels, shards: int) -> None:
    rng = np.random.default_rng(shards)
    ids = (rng.zipf(1.3, (301, 26)) % 100_000).astype(np.int32)
    offsets = np.arange(26) * 100_000
    made = kernels.dedupe(ids, offsets, shards)
    owner = np.repeat(np.arange(shards), made.counts)
    fused = made.index.astype(np.int64) * shards + owner
    np.testing.assert_array_equal(fused[made.inverse].reshape(ids.shape), ids + offsets)
    assert len(np.unique(fused)) == len(fused)


@pytest.mark.parametrize(("value", "offset"), [(-1, 5), (2**31 - 1, 1)])
def test_dedupe_refuses_rows_outside(kernels: Kernels, value: int, offset: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        kernels.dedupe(np.array([[value]], np.int32), np.array([offset]), 1)
    assert kernels.dedupe(np.array([[4]], np.int32), np.array([5]), 1).index.tolist() == [9]


def test_one_call_leaves_nothing_for_the_next(kernels: Kernels) -> None:
    offsets = np.zeros(1, np.int64)
    for size in (5000, 3, 700, 9000, 3):
        ids = np.arange(size, dtype=np.int32)[::-1].copy().reshape(-1, 1)
        assert kernels.dedupe(ids, offsets, 1).index.tolist() == list(range(size))[::-1]
        kernels.check_index(ids.reshape(-1), size)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_an_index_outside_is_refused(kernels: Kernels, bad: int) -> None:
    table, around = np.ones((4, 17), np.float32), np.zeros((5, 17), np.float32)
    out = around[1:4]
    with pytest.raises(ValueError, match="outside"):
        kernels.gather(table, ints(0, bad, 1), out)
    with pytest.raises(ValueError, match="outside"):
        kernels.segment_sum(np.ones((1, 17), np.float32), ints(bad), table)
    with pytest.raises(ValueError, match="outside"):
        kernels.check_index(ints(bad), 4)
    step = kernels.bind_rows(OptimizerRule("sgd"), table, [], None)
    with pytest.raises(ValueError, match="outside"):
        step(ints(0, bad), np.ones((2, 17), np.float32), None, 1.0, 1.0, 1.0, 0.0)
    assert (table == 1).all()
    assert (around[[0, 4]] == 0).all()


def test_check_index_refuses_repetitions(kernels: Kernels) -> None:
    kernels.check_index(ints(2, 0, 1), 3)
    kernels.check_index(ints(), 0)
    with pytest.raises(ValueError, match="twice"):
        kernels.check_index(ints(2, 0, 2), 3)


def test_aggregate_sums_in_list_order_and_counts_parts(kernels: Kernels) -> None:
    def grad(*values: float) -> Any:
        return np.array(values, np.float32).reshape(-1, 1)

    parts = [
        (ints(7, 3), grad(1e8, 1), 1.0),
        (ints(9), grad(np.nan), 0.0),
        (ints(3, 7, 3), grad(2, 1, 4), 0.5),
        (ints(7), grad(-1e8), 1.0),
    ]
    made = kernels.aggregate(parts, Workspace())
    assert made.index.tolist() == [7, 3]
    assert made.total.tolist() == [[0.0], [4.0]]  # (1e8 + 0.5) - 1e8 in fp32 is 0
    assert made.contributors.tolist() == [3.0, 2.0]
    shared = kernels.aggregate(parts, Workspace(), [0.5, 9.0, 0.25, 1.0])
    assert shared.total.tolist() == [[0.0], [4.0]]
    assert shared.contributors.tolist() == [1.75, 0.75]
    with pytest.raises(ValueError, match="4 parts have 1 shares"):
        kernels.aggregate(parts, Workspace(), [1.0])


def test_a_gradient_of_minus_zero_is_kept(kernels: Kernels) -> None:
    made = kernels.aggregate([(ints(0), np.full((1, 3), -0.0, np.float32), 1.0)])
    assert np.signbit(made.total).all()


def test_initial_rows_do_not_depend_on_sharding(kernels: Kernels) -> None:
    whole = np.empty((100, 17), np.float32)
    kernels.init_rows(whole, 5, 0, 1, 0.25)
    for shards in (2, 3):
        for shard in range(shards):
            part = np.empty_like(whole[shard::shards], order="C")
            kernels.init_rows(part, 5, shard, shards, 0.25)
            np.testing.assert_array_equal(part, whole[shard::shards])


def test_initial_rows_are_uniform(kernels: Kernels) -> None:
    table = np.empty((20_000, 16), np.float32)
    kernels.init_rows(table, 1, 0, 1, 0.5)
    assert table.min() >= -0.5
    assert table.max() < 0.5
    assert abs(table.mean()) < 0.002
    counts = np.histogram(table, 10, (-0.5, 0.5))[0]
    assert abs(counts / 32_000 - 1).max() < 0.03
    assert np.abs(np.corrcoef(table.T) - np.eye(16)).max() < 0.04
    other = np.empty_like(table)
    kernels.init_rows(other, 2, 0, 1, 0.5)
    assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) < 0.01


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((2, 4), np.float64),
        np.ones((4, 2), np.float32).T,
        np.ones((2, 3), np.float32),
        np.ones(8, np.float32),
    ],
)
def test_other_layouts_are_refused(kernels: Kernels, bad: Any) -> None:
    table = np.ones((9, 4), np.float32)
    step = kernels.bind_rows(OptimizerRule("sgd"), table, [], None)
    with pytest.raises(ValueError, match=r"must be|expected"):
        step(ints(0, 1), bad, None, 1.0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"must be|expected"):
        kernels.gather(table, ints(0, 1), bad)
    assert (table == 1).all()


def test_threads_do_not_disturb_each_other(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    batches = [(rng.zipf(1.3, (200, 26)) % 9000).astype(np.int32) for _ in range(4)]
    offsets = np.arange(26) * 9000
    expected = [kernels.dedupe(ids, offsets, 3) for ids in batches]
    wrong = []

    def run(ids: Any, right: Any) -> None:
        for _ in range(20):
            made = kernels.dedupe(ids, offsets, 3)
            if any((a != b).any() for a, b in zip(made, right, strict=True)):
                wrong.append(ids)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(batches, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""Gradient norms of a step, against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gbactl.kernels import load
from gbactl.store import norms
from gbactl.store.dense import DenseSpec
from gbactl.store.gradient_slice import Order, Part
from gbactl.store.optim import OptimizerSpec
from gbactl.store.shard import Shard
from gbactl.store.spec import ShardSpec


def test_the_dense_norm_is_that_of_the_weighted_sum_without_buffers() -> None:
    first, second = np.array([3, 0, 9], np.float32), np.array([0, 8, 9], np.float32)
    assert norms.dense_square([(first, 1.0), (second, 0.5)], 2, 5.0) == pytest.approx((3**2 + 4**2) / 25)


def test_rows_that_several_gradients_carry_are_summed_first() -> None:
    one = (np.array([7, 2], np.int32), np.array([[3, 0], [1, 0]], np.float32), 1.0)
    two = (np.array([7], np.int32), np.array([[0, 2]], np.float32), 2.0)
    assert norms.row_norms([one, two], 2.0, load()) == pytest.approx([0.5, 2.5])


def test_a_sample_is_spread_over_the_rows() -> None:
    index = np.arange(100, dtype=np.int32)[::-1].copy()
    part = (index, index.astype(np.float32).reshape(-1, 1), 1.0)
    found = norms.row_norms([part], 1.0, load())
    assert len(found) <= norms.SAMPLE
    assert found == sorted(found) and found[0] == 0 and found[-1] >= 96


def test_nothing_has_no_norm() -> None:
    empty = (np.empty(0, np.int32), np.empty((0, 2), np.float32), 1.0)
    assert norms.row_norms([empty], 1.0, load()) == norms.row_norms([], 1.0, load()) == []


def test_a_shard_tells_those_of_a_step_before_it_is_applied() -> None:
    sgd = OptimizerSpec("sgd", 1.0)
    shard = Shard(ShardSpec(0, 1, 4, 1, row_optimizer=sgd, dense=DenseSpec(2, 1), dense_optimizer=sgd))
    before = shard.checksum()
    for batch in (0, 1):
        grad = np.full((1, 1), 6, np.float32)
        dense = np.array([6, 8, 100], np.float32)
        shard.stage(batch, Part(np.array([batch], np.int32), grad, dense))
    square, rows = shard.gradient_norms(Order(0, ((0, 1.0), (1, 0.0)), 2.0, 1.0))
    assert math.sqrt(square) == pytest.approx(5.0)
    assert rows == pytest.approx([3.0])
    assert shard.checksum() == before

"""1, 2 and 3 shards give the same bits; so do both kernels, and any order of arrival."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from gbactl.kernels import load
from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseSpec, dense_range
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

ROWS, WIDTH, BATCH = 203, 17, 12
CARDINALITIES = np.array([100, 3, 100])
OFFSETS = np.array([0, 100, 103])
DENSE = DenseSpec(101, 10)


def batches(count: int) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(7)
    made = []
    for _ in range(count):
        ids = (rng.zipf(1.5, (BATCH, 3)) % CARDINALITIES).astype(np.int32)
        made.append((ids, rng.standard_normal((BATCH * 3, WIDTH)), rng.standard_normal(DENSE.size)))
    return [(ids, grad.astype(np.float32), dense.astype(np.float32)) for ids, grad, dense in made]


def orders(count: int) -> list[StepOrder]:
    """Steps of 1 to 4 members in a random order, some weights 0 or broken, as gba and async give."""
    rng = np.random.default_rng(8)
    left, made = list(rng.permutation(count)), []
    while left:
        size = int(rng.integers(1, 5))
        taken, left = left[:size], left[size:]
        weights = rng.choice([1.0, 1.0, 0.5, 0.3, 0.0], len(taken))
        total = float(weights.sum())
        members = tuple((int(batch), float(w)) for batch, w in zip(taken, weights, strict=True))
        made.append(StepOrder(len(made), members, float(size), total, 0.9 ** len(made)))
    return made


def train(kernels: Kernels, shards: int, arrival: int, holders: int | None = None, **options: Any) -> tuple[Any, Any]:
    start = np.linspace(-1, 1, DENSE.size, dtype=np.float32)
    made = []
    for shard in range(shards):
        spec = ShardSpec(shard, shards, ROWS, WIDTH, 3, 0.1, dense=DENSE, dense_shards=holders, **options)
        lo, hi = dense_range(DENSE.size, shard, spec.dense_holders)
        made.append(Shard(dataclasses.replace(spec, dense_init=start[lo:hi]), kernels))
    work = batches(24)
    for batch in np.random.default_rng(arrival).permutation(24):
        ids, grad, dense = work[batch]
        unique = kernels.dedupe(ids, OFFSETS, shards)
        sums = np.empty((len(unique.index), WIDTH), np.float32)
        kernels.segment_sum(grad, unique.inverse, sums)
        bounds = [0, *itertools.accumulate(unique.counts.tolist())]
        for shard, low, high in zip(made, bounds, bounds[1:], strict=False):
            lo, hi = shard.dense_range
            mine = dense[lo:hi] if lo < hi else None  # as a server has it whose slice is empty
            shard.stage(int(batch), GradientSlice(unique.index[low:high], sums[low:high], mine))
    for order in orders(24):
        for shard in made:
            shard.apply(order)
    table = np.empty((ROWS, WIDTH), np.float32)
    for shard in made:
        table[shard.spec.shard :: shards] = shard.table
    return table, np.concatenate([shard.dense.value for shard in made if shard.dense])


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("scope", ["touched", "all"])
@pytest.mark.parametrize("divisor", ["global", "contributors"])
def test_same_bits(kernels: Kernels, name: str, scope: str, divisor: str) -> None:
    spec = OptimizerSpec(name, 0.05, weight_decay=0.01)
    options: dict[str, Any] = {
        "row_optimizer": spec, "dense_optimizer": spec, "row_l2": scope, "row_weight_decay": 0.02,
        "sparse_divisor": divisor,
    }  # fmt: skip
    rows, dense = train(kernels, 1, 0, **options)
    assert np.isfinite(rows).all()
    assert np.isfinite(dense).all()
    for shards, arrival, holders in ((1, 1, None), (2, 0, None), (3, 2, None), (3, 2, 1), (4, 1, 2)):
        other_rows, other_dense = train(kernels, shards, arrival, holders, **options)
        np.testing.assert_array_equal(rows.view(np.int32), other_rows.view(np.int32))
        np.testing.assert_array_equal(dense.view(np.int32), other_dense.view(np.int32))
    twin_rows, twin_dense = train(load("twin"), 1, 0, **options)
    np.testing.assert_array_equal(rows.view(np.int32), twin_rows.view(np.int32))
    np.testing.assert_array_equal(dense.view(np.int32), twin_dense.view(np.int32))


def test_options_matter(kernels: Kernels) -> None:
    """The comparison above can fail: each option changes the outcome."""
    seen = set()
    for scope, divisor, decay in itertools.product(["touched", "all"], ["global", "contributors"], [0.0, 0.5]):
        rows, _ = train(
            kernels, 2, 0, row_l2=scope, sparse_divisor=divisor, row_weight_decay=decay,
            row_optimizer=OptimizerSpec("adagrad", 0.05),
        )  # fmt: skip
        seen.add(rows.tobytes())
    assert len(seen) == 6  # with decay 0, adagrad's scopes are one

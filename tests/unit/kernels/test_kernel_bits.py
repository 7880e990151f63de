"""The compiled kernels and their twin give the same bits, for every function and odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import RowBlock

RULES = ("sgd", "adagrad", "rowwise_adagrad", "adam")
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
SEEDS = st.integers(0, 2**32 - 1)
check = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


def floats(rng: Any, *shape: int) -> Any:
    """Values over many magnitudes, with both zeros and denormals among them."""
    made = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 3, shape)
    made[rng.random(shape) < 0.05] = 0.0
    made[rng.random(shape) < 0.05] = -0.0
    made[rng.random(shape) < 0.05] = 1e-41
    return made.astype(np.float32)


@check
@given(seed=SEEDS, batch=st.integers(0, 70), fields=st.integers(1, 9), shards=st.integers(1, 5))
def test_dedupe(native: Kernels, twin: Kernels, seed: int, batch: int, fields: int, shards: int) -> None:
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.5, (batch, fields)) % 1000).astype(np.int32)
    offsets = np.sort(rng.integers(0, 5000, fields))
    for a, b in zip(native.dedupe(ids, offsets, shards), twin.dedupe(ids, offsets, shards), strict=True):
        np.testing.assert_array_equal(a, b)


@check
@given(seed=SEEDS, width=st.sampled_from(WIDTHS), n=st.integers(0, 400))
def test_gather_and_segment_sum(native: Kernels, twin: Kernels, seed: int, width: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    table, grad = floats(rng, 97, width), floats(rng, n, width)
    index = rng.integers(0, 97, n).astype(np.int32)
    rows, sums = [], []
    for kernels in (native, twin):
        rows.append(np.empty((n, width), np.float32))
        kernels.gather(table, index, rows[-1])
        sums.append(np.full((97, width), np.nan, np.float32))
        kernels.segment_sum(grad, index, sums[-1])
    same(*rows)
    same(*sums)


@check
@given(seed=SEEDS, width=st.sampled_from(WIDTHS), parts=st.integers(1, 5), shared=st.booleans())
def test_aggregate(native: Kernels, twin: Kernels, seed: int, width: int, parts: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.choice([0.0, 1.0, 0.3, 0.7], parts).tolist() if shared else []
    made = []
    for _ in range(parts):
        n = int(rng.integers(0, 300))
        weight = float(rng.choice([0.0, 1.0, 1.0, 0.37]))
        made.append((rng.integers(0, 200, n).astype(np.int32), floats(rng, n, width), weight))
    a, b = native.aggregate(made, None, shares), twin.aggregate(made, None, shares)
    np.testing.assert_array_equal(a.index, b.index)
    same(a.total, b.total)
    same(a.contributors, b.contributors)


@pytest.mark.parametrize("rule", RULES)
@check
@given(seed=SEEDS, width=st.sampled_from(WIDTHS), data=st.data())
def test_row_steps(native: Kernels, twin: Kernels, rule: str, seed: int, width: int, data: Any) -> None:
    rng = np.random.default_rng(seed)
    spec = OptimizerSpec(rule, 0.05, (0.9, 0.99), 1e-8, 0.0, data.draw(st.sampled_from([0.0, 0.1])))
    every, per_row = data.draw(st.booleans()), data.draw(st.booleans())
    start = floats(rng, 131, width)
    tables = [start.copy(), start.copy()]
    made = [RowBlock(t, spec, k, every=every) for t, k in zip(tables, (native, twin), strict=True)]
    for _ in range(3):
        n = int(rng.integers(0, 131))
        index, grad = rng.permutation(131)[:n].astype(np.int32), floats(rng, n, width)
        contributors = rng.integers(1, 6, n).astype(np.float32) if per_row else None
        numbers = {
            "weight": float(rng.choice([1.0, 0.3])), "divisor": float(rng.choice([1.0, 3.0, 4.0])),
            "lr": 0.05 * float(rng.random() + 0.1), "decay": float(rng.choice([0.0, 0.013])),
        }  # fmt: skip
        for one in made:
            one._step(index, grad, contributors, **numbers)
    same(*tables)
    for name in made[0].moments:
        same(made[0].moments[name], made[1].moments[name])
    if rule == "adam":
        same(made[0].counts, made[1].counts)


@pytest.mark.parametrize("rule", RULES)
@check
@given(seed=SEEDS, size=st.integers(0, 2100), parts=st.integers(1, 4))
def test_dense_steps(native: Kernels, twin: Kernels, rule: str, seed: int, size: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    spec = OptimizerSpec(rule, 0.05, weight_decay=float(rng.choice([0.0, 0.02])))
    start = floats(rng, size)
    values = [start.copy(), start.copy()]
    made = [DenseBlock(v, DenseSpec(size), spec, kernels=k) for v, k in zip(values, (native, twin), strict=True)]
    for _ in range(3):
        grads = [(floats(rng, size), float(rng.choice([1.0, 0.4]))) for _ in range(parts)]
        divisor, scale = float(rng.choice([1.0, 3.0, 8.0, 1e-39])), float(rng.random() + 0.1)
        for one in made:
            one.apply_parts(grads, divisor, divisor, scale)
    same(*values)
    for name in made[0].moments:
        same(made[0].moments[name], made[1].moments[name])


@check
@given(seed=SEEDS, size=st.integers(0, 1300), parts=st.integers(1, 3))
def test_average(native: Kernels, twin: Kernels, seed: int, size: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    start = floats(rng, size)
    grads = [(floats(rng, size), 0.7) for _ in range(parts)]
    values = [start.copy(), start.copy()]
    for value, kernels in zip(values, (native, twin), strict=True):
        kernels.average(value, grads, 0.7 * parts, float(np.float32(0.1)))
    same(*values)


@check
@given(seed=st.integers(0, 2**64 - 1), width=st.sampled_from(WIDTHS), stride=st.integers(1, 4))
def test_initial_rows(native: Kernels, twin: Kernels, seed: int, width: int, stride: int) -> None:
    tables = [np.empty((61, width), np.float32) for _ in range(2)]
    for table, kernels in zip(tables, (native, twin), strict=True):
        kernels.init_rows(table, seed, stride - 1, stride, 0.01)
    same(*tables)


def test_twin_works_by_chunks_without_changing_bits(
    native: Kernels, twin: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gbactl.kernels.torch_kernels.CHUNK", 5)
    test_initial_rows.hypothesis.inner_test(native, twin, 3, 17, 2)
    rng = np.random.default_rng(0)
    values = [np.ones(777, np.float32), np.ones(777, np.float32)]
    for value, kernels in zip(values, (native, twin), strict=True):
        block = DenseBlock(value, DenseSpec(777), OptimizerSpec("adam"), kernels=kernels)
        block.apply(floats(rng, 777) * 0 + 2, 3.0)
    same(*values)

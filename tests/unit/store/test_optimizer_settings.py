"""Optimizers against torch's own, against plain formulas, and against numbers on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import ScheduleConfig
from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec, bias_table, factor
from gbactl.store.shard_rows import RowBlock

GOLDEN = Path(__file__).parents[2] / "golden" / "optimizer_steps.json"
F = np.float32


def torch_optimizer(spec: OptimizerSpec, parameter: torch.Tensor) -> torch.optim.Optimizer:
    if spec.name == "sgd":
        return torch.optim.SGD([parameter], spec.lr, weight_decay=spec.weight_decay)
    if spec.name == "adagrad":
        return torch.optim.Adagrad([parameter], spec.lr, 0.0, spec.weight_decay, spec.initial_accumulator, spec.eps)
    return torch.optim.Adam([parameter], spec.lr, spec.betas, spec.eps, spec.weight_decay)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_dense_steps_are_torchs(kernels: Kernels, name: str, decay: float) -> None:
    rng = np.random.default_rng(1)
    spec = OptimizerSpec(name, 0.05, (0.9, 0.99), 1e-6, decay, 0.1)
    value = rng.standard_normal(701).astype(F)
    other = torch.from_numpy(value.copy())
    ours, theirs = DenseBlock(value, DenseSpec(len(value)), spec, kernels=kernels), torch_optimizer(spec, other)
    for _ in range(20):
        grad = rng.standard_normal(701).astype(F)
        ours.apply(grad, 1.0)
        other.grad = torch.from_numpy(grad)
        theirs.step()
    np.testing.assert_allclose(value, other.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_a_row_steps_only_when_it_is_listed(kernels: Kernels, name: str) -> None:
    """Each row is its own torch parameter, stepped as often as it was touched."""
    rng = np.random.default_rng(2)
    spec = OptimizerSpec(name, 0.05)
    table = rng.standard_normal((6, 17)).astype(F)
    rows = [torch.from_numpy(row.copy()) for row in table]
    ours, theirs = RowBlock(table, spec, kernels), [torch_optimizer(spec, row) for row in rows]
    untouched = table[5].copy()
    for _ in range(15):
        index = rng.permutation(5)[: rng.integers(0, 6)].astype(np.int32)
        grad = rng.standard_normal((len(index), 17)).astype(F)
        ours.apply([(index, grad, 1.0)], 1.0, 1.0)
        for row, gradient in zip(index, grad, strict=True):
            rows[row].grad = torch.from_numpy(gradient)
            theirs[row].step()
    np.testing.assert_allclose(table, np.stack([row.numpy() for row in rows]), rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(table[5], untouched)


def test_rowwise_adagrad_keeps_one_number_a_row(kernels: Kernels) -> None:
    table = np.array([[1, 2], [3, 4]], F)
    optimizer = RowBlock(table, OptimizerSpec("rowwise_adagrad", 0.5, eps=0.0), kernels)
    optimizer.apply([(np.array([1], np.int32), np.array([[1, 7]], F), 1.0)], 1.0, 1.0)
    assert optimizer.moments["sum"].tolist() == [0, 25]
    assert table.tolist() == [[1, 2], [F(3 - 0.5 * F(1 / 5)), F(4 - 0.5 * F(7 / 5))]]


def test_rowwise_adagrad_is_adagrad_for_the_dense_block(kernels: Kernels) -> None:
    values = [np.ones(9, F), np.ones(9, F)]
    for value, name in zip(values, ["rowwise_adagrad", "adagrad"], strict=True):
        DenseBlock(value, DenseSpec(len(value)), OptimizerSpec(name, initial_accumulator=0.2), kernels=kernels).apply(
            np.arange(9, dtype=F), 1.0
        )
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.999), (0.0, 0.5), (0.99, 0.9)])
def test_bias_corrections(first: float, second: float) -> None:
    table = bias_table(first, second)
    t = np.arange(1, len(table))
    np.testing.assert_allclose(table[1:, 0], 1 / (1 - first**t), rtol=1e-6)
    np.testing.assert_allclose(table[1:, 1], 1 / np.sqrt(1 - second**t), rtol=1e-6)
    assert table[-1].tolist() == [1, 1]


def test_counts_beyond_the_table_use_its_end(kernels: Kernels) -> None:
    spec = OptimizerSpec("adam", 0.5, (0.0, 0.0), eps=0.0)
    table = np.zeros((1, 3), F)
    optimizer = RowBlock(table, spec, kernels)
    for _ in range(len(bias_table(0.0, 0.0)) + 3):
        optimizer.apply([(np.zeros(1, np.int32), np.ones((1, 3), F), 1.0)], 1.0, 1.0)
    assert (table == -0.5 * optimizer.counts[0]).all()


def plain_adagrad(case: dict[str, Any]) -> list[float]:
    w, s, seen = F(case["value"]), F(0), []
    for gradient in case["gradients"]:
        g = F(gradient) + F(case["decay"]) * w
        s = s + g * g
        w = w - F(case["lr"]) * (g / (np.sqrt(s) + F(0)))
        seen.append(float(w))
    return seen


def plain_adam(case: dict[str, Any]) -> list[float]:
    b1, b2 = case["betas"]
    w, m, v, seen = F(case["value"]), F(0), F(0), []
    for t, gradient in enumerate(case["gradients"], 1):
        g = F(gradient) + F(case["decay"]) * w
        m = F(b1) * m + F(1 - b1) * g
        v = F(b2) * v + F(1 - b2) * (g * g)
        step = F(case["lr"]) * F(1 / (1 - b1**t))
        w = w - step * (m / (np.sqrt(v) * F(1 / np.sqrt(1 - b2**t)) + F(0)))
        seen.append(float(w))
    return seen


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_golden_steps(kernels: Kernels, name: str) -> None:
    """The numbers on disk are small enough for a pencil; GBACTL_REWRITE_GOLDEN=1 writes them anew."""
    cases = json.loads(GOLDEN.read_text())
    case = cases[name]
    plain = {"adagrad": plain_adagrad, "adam": plain_adam}[name](case)
    if os.environ.get("GBACTL_REWRITE_GOLDEN"):
        case["values"] = plain
        GOLDEN.write_text(json.dumps(cases, indent=2) + "\n")
    spec = OptimizerSpec(name, case["lr"], tuple(case.get("betas", (0.9, 0.999))), 0.0, case["decay"])
    dense, rows = np.array([case["value"]], F), np.array([[case["value"]] * 2], F)
    vector = DenseBlock(dense, DenseSpec(1), spec, kernels=kernels)
    table = RowBlock(rows, spec, kernels, decay=case["decay"])
    seen = []
    for gradient in case["gradients"]:
        vector.apply(np.array([gradient], F), 1.0)
        table.apply([(np.zeros(1, np.int32), np.full((1, 2), gradient, F), 1.0)], 1.0, 1.0)
        assert rows[0].tolist() == [dense[0]] * 2
        seen.append(float(dense[0]))
    assert seen == plain == case["values"]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_a_reset_begins_anew_from_the_same_values(name: str) -> None:
    """Rows and vector step as those of a new optimizer do."""
    from gbactl.kernels import load

    spec = OptimizerSpec(name, 0.1, initial_accumulator=0.5 if "adagrad" in name else 0.0)
    table, vector = np.ones((3, 2), np.float32), np.ones(4, np.float32)
    rows, dense = RowBlock(table, spec, load()), DenseBlock(vector, DenseSpec(len(vector)), spec, kernels=load())

    def step(rows: RowBlock, dense: DenseBlock) -> None:
        rows.apply([(np.array([0, 2], np.int32), np.full((2, 2), 0.3, np.float32), 1.0)], 1.0, 1.0)
        dense.apply(np.full(4, 0.3, np.float32), 1.0)

    step(rows, dense)
    rows.reset_optimizer()
    dense.reset_optimizer()
    again, whole = table.copy(), vector.copy()
    assert again[0, 0] != 1.0
    fresh = RowBlock(again, spec, load()), DenseBlock(whole, DenseSpec(len(whole)), spec, kernels=load())
    step(rows, dense)
    step(*fresh)
    assert np.array_equal(table, again) and np.array_equal(vector, whole)
    assert dense.step == 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig("constant", warmup=10), {0: 1, 500: 1}),
        (ScheduleConfig("linear"), {0: 1, 9: 1}),
        (ScheduleConfig("linear", warmup=10), {0: 0.1, 4: 0.5, 9: 1, 100: 1}),
        (ScheduleConfig("inverse_sqrt", warmup=4), {0: 0.25, 4: 1, 16: 0.5, 64: 0.25}),
        (ScheduleConfig("inverse_sqrt"), {0: 1, 1: 1, 4: 0.5}),
        (ScheduleConfig("cosine", total=100), {0: 1, 50: 0.5, 100: 0, 200: 0}),
        (ScheduleConfig("cosine", warmup=20, total=120, floor=0.2), {9: 0.5, 20: 1, 70: 0.6, 999: 0.2}),
    ],
)
def test_values(schedule: ScheduleConfig, expected: dict[int, float]) -> None:
    for progress, value in expected.items():
        assert factor(schedule, progress) == pytest.approx(value)


@given(
    st.sampled_from(["constant", "linear", "inverse_sqrt", "cosine"]),
    st.floats(0, 1e6),
    st.floats(0, 100),
    st.floats(0, 1),
)
def test_a_factor_is_between_0_and_1(name: str, progress: float, warmup: float, floor: float) -> None:
    value = factor(ScheduleConfig(name, warmup, 1000.0, floor), progress)
    assert 0 <= value <= 1 + 1e-12

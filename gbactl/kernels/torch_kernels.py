"""Row kernels in torch and NumPy, for a machine without a compiler: same bits, 3 to 10 times slower.

Each expression is one IEEE operation at a time, in the order of kernels.cpp. torch's fused forms (add with
alpha, addcmul, lerp) contract to FMA and are avoided. Whole-table work goes by chunks of `CHUNK` rows. A step costs a
copy of the touched rows and a few temporaries of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gbactl.hashes_and_random_numbers import GOLDEN, mix, mix_int
from gbactl.kernels.base import (
    FLOAT,
    INT,
    LONG,
    DensePart,
    DistinctRows,
    Floats,
    Ints,
    Longs,
    OptimizerRule,
    RowPart,
    RowSums,
    Workspace,
    float32,
    live_parts,
    require,
    require_table,
)  # fmt: skip
from gbactl.kernels.half_precision import CODECS, Codec

CHUNK = 1 << 15
Scale = float | Tensor


def _check_range(index: Ints, rows: int) -> None:
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise ValueError("Refused: an index lies outside the table.")


def _first_seen(keys: Longs) -> tuple[Longs, Longs]:
    """Find the distinct keys in order of first occurrence, and the position of every key among them."""
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return distinct[order], place[inverse.reshape(-1)]


def _add_rows(out: Floats, at: Longs, grad: Floats, weight: float) -> None:
    scaled = torch.from_numpy(grad)
    if weight != 1.0:
        scaled = scaled * weight
    torch.from_numpy(out).index_add_(0, torch.from_numpy(at), scaled)


def _init_chunk(out: Floats, key: int, rows: Any, scale: float) -> None:
    mixed = mix(np.uint64(key) + np.uint64(GOLDEN) * rows.astype(np.uint64))[:, None]
    low, high = mixed.astype(np.uint32), (mixed >> np.uint64(32)).astype(np.uint32)
    x = low + np.arange(out.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ high ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = (x ^ (x >> np.uint32(16))) >> np.uint32(8)
    out[:] = np.float32(scale) * (x.astype(np.float32) * np.float32(2.0**-23) - np.float32(1))


class TorchKernels:
    """Row kernels in torch and NumPy, with the functions of the compiled library."""

    name = "twin"

    def dedupe(self, ids: Ints, offsets: Longs, shards: int) -> DistinctRows:
        require(ids, INT, (-1, len(offsets)), "ids")
        require(offsets, LONG, (-1,), "offsets")
        if shards < 1:
            raise ValueError("shards must be at least 1.")
        keys = (ids + offsets).reshape(-1)
        if ids.size and (ids.min() < 0 or keys.min() < 0 or keys.max() >= 1 << 31):
            raise ValueError("Refused: an index lies outside the table.")
        distinct, inverse = _first_seen(keys)
        owner = distinct % shards
        grouped = np.argsort(owner, kind="stable")
        place = np.empty(len(grouped), INT)
        place[grouped] = np.arange(len(grouped), dtype=INT)
        index = (distinct[grouped] // shards).astype(INT)
        return DistinctRows(index, np.bincount(owner, minlength=shards).astype(LONG), place[inverse])

    def gather(self, table: Floats, index: Ints, out: Floats) -> None:
        require(table, FLOAT, (-1, -1), "A table")
        require(index, INT, (-1,), "An index")
        require(out, FLOAT, (len(index), table.shape[1]), "The output")
        _check_range(index, len(table))
        torch.index_select(torch.from_numpy(table), 0, torch.from_numpy(index.copy()), out=torch.from_numpy(out))

    def segment_sum(self, grad: Floats, inverse: Ints, out: Floats) -> None:
        require(grad, FLOAT, (-1, -1), "A gradient")
        require(inverse, INT, (len(grad),), "inverse")
        require(out, FLOAT, (-1, grad.shape[1]), "The output")
        _check_range(inverse, len(out))
        out.fill(0.0)
        _add_rows(out, inverse.astype(LONG), grad, 1.0)

    def aggregate(
        self, parts: Sequence[RowPart], workspace: Workspace | None = None, shares: Sequence[float] = ()
    ) -> RowSums:
        live, counted = live_parts(parts, shares)
        width = parts[0][1].shape[1]
        rows = [index.astype(LONG) for index, _, _ in live] or [np.empty(0, LONG)]
        distinct, place = _first_seen(np.concatenate(rows))
        total = np.full((len(distinct), width), -0.0, FLOAT)  # -0.0 + x is x, including the sign of zero
        contributors = np.zeros(len(distinct), FLOAT)
        start = 0
        for (index, grad, weight), share in zip(live, counted or [1.0] * len(live), strict=True):
            at = place[start : start + len(index)]
            _add_rows(total, at, grad, float(np.float32(weight)))
            contributors[np.unique(at)] += np.float32(share)
            start += len(index)
        return RowSums(distinct.astype(INT), total, contributors)

    def check_index(self, index: Ints, rows: int) -> None:
        require(index, INT, (-1,), "An index")
        _check_range(index, rows)
        if len(np.unique(index)) != len(index):
            raise ValueError("Refused: an index occurs twice.")

    def init_rows(self, table: Floats, seed: int, first: int, stride: int, scale: float) -> None:
        require(table, FLOAT, (-1, -1), "A table")
        with np.errstate(over="ignore"):
            key = mix_int(seed + GOLDEN)
            for low in range(0, len(table), CHUNK):
                chunk = table[low : low + CHUNK]
                rows = first + stride * np.arange(low, low + len(chunk), dtype=LONG)
                _init_chunk(chunk, key, rows, scale)

    def average(self, running: Floats, parts: Sequence[DensePart], weight_sum: float, momentum: float) -> None:
        require(running, FLOAT, (-1,), "Running statistics")
        to = torch.from_numpy(running)
        mean = combine(parts, 0, len(running)) / float32(weight_sum)
        to += float32(momentum) * (mean - to)

    def codec(self, name: str) -> Codec:
        return CODECS[name]

    def bind_rows(
        self, rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any, every: bool = False
    ) -> TorchRowStep:
        return TorchRowStep(rule, table, moments, counts, every)

    def bind_dense(self, rule: OptimizerRule, value: Floats, moments: Sequence[Floats]) -> TorchDenseStep:
        return TorchDenseStep(rule, value, moments)


def _root(x: Tensor) -> Tensor:
    """Compute the correctly rounded square root; torch's own (MKL) is off by one ulp at times."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def combine(parts: Sequence[DensePart], low: int, high: int) -> Tensor:
    """Sum weight * part[low:high] over the parts, in order."""
    if not parts:
        raise ValueError("A dense step needs at least one gradient.")
    total: Tensor | None = None
    for grad, weight in parts:
        term = torch.from_numpy(grad[low:high]) * float32(weight)
        total = term if total is None else total + term
    assert total is not None
    return total


def _rowwise(value: Tensor, moment: Tensor, grad: Tensor, step: Scale, eps: float) -> None:
    total = torch.zeros(len(value))
    for column in range(grad.shape[1]):  # in column order, on which the bits depend
        total = total + grad[:, column] * grad[:, column]
    moment += total / float(grad.shape[1])
    value -= step * (grad / (_root(moment) + eps)[:, None])


def step_values(
    rule: OptimizerRule, value: Tensor, moments: Sequence[Tensor], grad: Tensor, step: Scale, root: Scale
) -> None:
    """Apply one optimizer step in place; `grad` is already divided, and includes weight decay."""
    if rule.name == "sgd":
        value -= step * grad
    elif rule.name == "adagrad":
        moments[0].add_(grad * grad)
        value -= step * (grad / (_root(moments[0]) + rule.eps))
    elif rule.name == "rowwise_adagrad":
        _rowwise(value, moments[0], grad, step, rule.eps)
    else:
        first, second = moments
        first.mul_(rule.beta1).add_(rule.rest1 * grad)
        second.mul_(rule.beta2).add_(rule.rest2 * (grad * grad))
        value -= step * (first / (_root(second) * root + rule.eps))


class TorchRowStep:
    """Optimizer step on one table, in torch."""

    def __init__(self, rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any, every: bool) -> None:
        require_table(rule, table, moments, counts)
        self._rule, self._counts = rule, counts
        self._slot = np.full(len(table), -1, INT) if every else None
        self._table = torch.from_numpy(table)
        self._moments = [torch.from_numpy(moment) for moment in moments]

    def _scales(self, rows: Any, lr: float) -> tuple[Scale, Scale]:
        if self._rule.bias is None:
            return lr, 1.0
        self._counts[rows] += 1
        at = np.minimum(self._counts[rows].astype(np.int64), len(self._rule.bias) - 1)
        bias = torch.from_numpy(self._rule.bias[at])
        return lr * bias[:, :1], bias[:, 1:]

    def __call__(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        require(index, INT, (-1,), "An index")
        require(grad, FLOAT, (len(index), self._table.shape[1]), "A gradient")
        _check_range(index, len(self._table))
        per_row = float32(divisor) if contributors is None else torch.from_numpy(contributors)[:, None]
        gradient = torch.from_numpy(grad) * float32(weight) / per_row
        if self._slot is None:
            self._step_listed(index, gradient, lr, decay)
        else:
            self._slot[index] = np.arange(len(index), dtype=INT)
            self._step_every(self._slot, gradient, lr, decay)
            self._slot[index] = -1

    def _step_listed(self, index: Ints, gradient: Tensor, lr: float, decay: float) -> None:
        at = torch.from_numpy(index.astype(np.int64))
        value = self._table.index_select(0, at)
        moments = [moment.index_select(0, at) for moment in self._moments]
        x = gradient + float32(decay) * value
        step_values(self._rule, value, moments, x, *self._scales(index, float32(lr)))
        for whole, part in zip([self._table, *self._moments], [value, *moments], strict=True):
            whole.index_copy_(0, at, part)

    def _step_every(self, slot: Ints, gradient: Tensor, lr: float, decay: float) -> None:
        for low in range(0, len(slot), CHUNK):
            part = slice(low, min(low + CHUNK, len(slot)))
            value = self._table[part]
            x = torch.zeros_like(value)
            touched = np.flatnonzero(slot[part] >= 0)
            x[torch.from_numpy(touched)] = gradient[torch.from_numpy(slot[part][touched].astype(np.int64))]
            x = x + float32(decay) * value
            scales = self._scales(part, float32(lr))
            step_values(self._rule, value, [moment[part] for moment in self._moments], x, *scales)


class TorchDenseStep:
    """Optimizer step on one dense slice, in torch."""

    def __init__(self, rule: OptimizerRule, value: Floats, moments: Sequence[Floats]) -> None:
        for array in (value, *moments):
            require(array, FLOAT, value.shape[:1], "A dense slice")
        self._rule = rule
        self._value = torch.from_numpy(value)
        self._moments = [torch.from_numpy(moment) for moment in moments]

    def __call__(self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float) -> None:
        for grad, _ in parts:
            require(grad, FLOAT, (len(self._value),), "A dense gradient")
        for low in range(0, len(self._value), 16 * CHUNK):
            part = slice(low, low + 16 * CHUNK)
            value = self._value[part]
            x = combine(parts, part.start, part.stop) / float32(divisor) + float32(decay) * value
            moments = [moment[part] for moment in self._moments]
            step_values(self._rule, value, moments, x, float32(step), float32(root))

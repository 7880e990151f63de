"""Optimizer steps of the torch twin: one operation at a time, in the order of kernels.cpp.

Costs a copy of the touched rows and a few temporaries of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gbactl.kernels.base import COUNT, FLOAT, INT, DensePart, Floats, Ints, Rule, float32, require

CHUNK = 1 << 15
Scale = float | Tensor


def _root(x: Tensor) -> Tensor:
    """Square root, correctly rounded; torch's own goes through MKL, which misses by one ulp at times."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def combine(parts: Sequence[DensePart], low: int, high: int) -> Tensor:
    """Sum of weight * part[low:high] over the parts, in their order."""
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
    for column in range(grad.shape[1]):  # in column order: part of the definition
        total = total + grad[:, column] * grad[:, column]
    moment += total / float(grad.shape[1])
    value -= step * (grad / (_root(moment) + eps)[:, None])


def step_values(
    rule: Rule, value: Tensor, moments: Sequence[Tensor], grad: Tensor, step: Scale, root: Scale
) -> None:
    """One optimizer step in place; `grad` already holds divisor and decay."""
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


class TwinRowStep:
    """Steps of one bound table."""

    def __init__(self, rule: Rule, table: Floats, moments: Sequence[Floats], counts: Any) -> None:
        require(table, FLOAT, (-1, -1), "A table")
        shape = table.shape[:1] if rule.name == "rowwise_adagrad" else table.shape
        for moment in moments:
            require(moment, FLOAT, shape, "A moment")
        if counts is not None:
            require(counts, COUNT, table.shape[:1], "Step counts")
        self._rule, self._counts = rule, counts
        self._table = torch.from_numpy(table)
        self._moments = [torch.from_numpy(moment) for moment in moments]

    def _scales(self, rows: Any, lr: float) -> tuple[Scale, Scale]:
        if self._rule.bias is None:
            return lr, 1.0
        self._counts[rows] += 1
        at = np.minimum(self._counts[rows].astype(np.int64), len(self._rule.bias) - 1)
        bias = torch.from_numpy(self._rule.bias[at])
        return lr * bias[:, :1], bias[:, 1:]

    def listed(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """See `RowStep.listed`."""
        require(index, INT, (-1,), "An index")
        require(grad, FLOAT, (len(index), self._table.shape[1]), "A gradient")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self._table)):
            raise ValueError("Refused: an index lies outside the table.")
        at = torch.from_numpy(index.astype(np.int64))
        value = self._table.index_select(0, at)
        moments = [moment.index_select(0, at) for moment in self._moments]
        per_row = float32(divisor) if contributors is None else torch.from_numpy(contributors)[:, None]
        x = torch.from_numpy(grad) * float32(weight) / per_row + float32(decay) * value
        step_values(self._rule, value, moments, x, *self._scales(index, float32(lr)))
        for whole, part in zip([self._table, *self._moments], [value, *moments], strict=True):
            whole.index_copy_(0, at, part)

    def every(
        self, slot: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """See `RowStep.every`."""
        require(slot, INT, (len(self._table),), "A slot map")
        if len(slot) and int(slot.max()) >= len(grad):
            raise ValueError("Refused: an index lies outside the table.")
        source = torch.from_numpy(grad) * float32(weight)
        source = source / (
            float32(divisor) if contributors is None else torch.from_numpy(contributors)[:, None]
        )
        for low in range(0, len(slot), CHUNK):
            part = slice(low, min(low + CHUNK, len(slot)))
            value = self._table[part]
            x = torch.zeros_like(value)
            touched = np.flatnonzero(slot[part] >= 0)
            x[torch.from_numpy(touched)] = source[torch.from_numpy(slot[part][touched].astype(np.int64))]
            x = x + float32(decay) * value
            scales = self._scales(part, float32(lr))
            step_values(self._rule, value, [moment[part] for moment in self._moments], x, *scales)


class TwinDenseStep:
    """Steps of one bound dense slice."""

    def __init__(self, rule: Rule, value: Floats, moments: Sequence[Floats]) -> None:
        for array in (value, *moments):
            require(array, FLOAT, value.shape[:1], "A dense slice")
        self._rule = rule
        self._value = torch.from_numpy(value)
        self._moments = [torch.from_numpy(moment) for moment in moments]

    def __call__(
        self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float
    ) -> None:
        for grad, _ in parts:
            require(grad, FLOAT, (len(self._value),), "A dense gradient")
        for low in range(0, len(self._value), 16 * CHUNK):
            part = slice(low, low + 16 * CHUNK)
            value = self._value[part]
            x = combine(parts, part.start, part.stop) / float32(divisor) + float32(decay) * value
            moments = [moment[part] for moment in self._moments]
            step_values(self._rule, value, moments, x, float32(step), float32(root))

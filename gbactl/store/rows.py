"""The rows of one shard with their optimizer: one fused pass over the rows a step touches.

A single gradient goes straight into the optimizer; several are summed per row first, in order, in a buffer
that is kept between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gbactl.kernels.base import FLOAT, INT, Floats, Ints, Kernels, RowPart, Workspace
from gbactl.store.memory import zeros
from gbactl.store.optim import OptimizerSpec, RowOptimizer


class RowBlock:
    """A table f32[rows, width]. `every`: all rows step each time, their gradient being decay * row plus the
    data's; `touches`: count the steps whose data touched each row."""

    def __init__(
        self, rows: int, width: int, optimizer: OptimizerSpec, kernels: Kernels, *,
        decay: float = 0.0, every: bool = False, touches: bool = False,
    ) -> None:  # fmt: skip
        self.table: Floats = zeros((rows, width))
        self._kernels, self._decay = kernels, decay
        self._optimizer = RowOptimizer(optimizer, self.table, kernels)
        self._slot: Ints | None = np.full(rows, -1, INT) if every else None
        self._workspace = Workspace()
        own = touches and (every or self.counts is None)  # elsewhere Adam's counts are just that
        self._touches: Any = zeros((rows,), np.uint32) if own else None

    def initialise(self, seed: int, first: int, stride: int, scale: float) -> None:
        """Give row i the initial value of global row first + i * stride."""
        self._kernels.init_rows(self.table, seed, first, stride, scale)

    @property
    def moments(self) -> dict[str, Floats]:
        """The optimizer's moments by name."""
        return self._optimizer.moments

    @property
    def counts(self) -> Any:
        """Adam's steps of each row, uint32[rows]; None for the others."""
        return self._optimizer.counts

    @property
    def touches(self) -> Any:
        """Steps whose data touched each row, uint32[rows] (modulo 2^32); None where nobody counts them."""
        if self._touches is not None:
            return self._touches
        return self.counts if self._slot is None else None

    def reset_optimizer(self) -> None:
        """Back to the optimizer's state before the first step; the rows stay."""
        self._optimizer.reset()

    def apply(
        self, parts: Sequence[RowPart], divisor: float, lr_scale: float, shares: Sequence[float] = ()
    ) -> None:
        """One step from (index int32[n] distinct, grad f32[n, W], weight > 0) parts, summed in order. A row's sum is
        divided by `divisor`, plus the `shares`, if any, of the parts that carry it."""
        per_row: Floats | None = None
        if len(parts) == 1:
            index, grad, weight = parts[0]
            divisor = float(FLOAT.type(divisor) + FLOAT.type(shares[0])) if shares else divisor
        else:
            index, grad, carried = self._kernels.aggregate(parts, self._workspace, shares)
            weight = 1.0
            if shares:
                per_row, divisor = np.add(carried, FLOAT.type(divisor), out=carried), 1.0
        if self._touches is not None:
            self._touches[index] += np.uint32(1)
        if self._slot is None:
            self._optimizer.listed(
                index, grad, per_row, weight=weight, divisor=divisor, lr_scale=lr_scale, decay=self._decay
            )
            return
        self._slot[index] = np.arange(len(index), dtype=INT)
        self._optimizer.every(
            self._slot, grad, per_row, weight=weight, divisor=divisor, lr_scale=lr_scale, decay=self._decay
        )
        self._slot[index] = -1

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        slot = 0 if self._slot is None else self._slot.nbytes
        return {
            "table": self.table.nbytes,
            "moments": sum(moment.nbytes for moment in self.moments.values()),
            "counts": sum(array.nbytes for array in (self.counts, self._touches) if array is not None),
            "scratch": slot + self._workspace.nbytes,
        }

"""Embedding rows of one shard with their optimizer, which updates the rows of a step in one fused pass.

A single gradient goes straight into the optimizer. Several gradients are summed per row first, in order, in a buffer
that is kept between steps. A row may have its own staleness: the number of steps that touched it since it was pulled
(following the idea of GBA, a rarely seen row is not penalised for steps that never touched it). That costs 4 bytes a
pulled row while its batch is outstanding, and a copy of the gradient where its rows have different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.kernels.base import COUNT, FLOAT, INT, Floats, Ints, Kernels, RowPart, Workspace, aligned_zeros
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.optimizer_settings import OptimizerSpec

NORMS_SAMPLED = 32  # rows of a step whose gradient norms are reported


class RowBlock:
    """Embedding table of one shard with its optimizer; `table` float32[rows, width] is held, and updated in place.

    `every`: all rows step each time, their gradient being decay * row plus that of the data. `touches`: count the steps
    whose data touched each row. `moments`: those of the optimizer, by name. `counts`: Adam's step count of each row,
    uint32[rows]; None for other optimizers."""

    def __init__(
        self, table: Floats, optimizer: OptimizerSpec, kernels: Kernels, *,
        decay: float = 0.0, every: bool = False, touches: bool = False,
    ) -> None:  # fmt: skip
        self.table, self._optimizer, self._kernels = table, optimizer, kernels
        self._decay, self._every = decay, every
        self.moments = optimizer.new_moments(table.shape[:1] if optimizer.name == "rowwise_adagrad" else table.shape)
        self.counts: Any = aligned_zeros(table.shape[:1], np.uint32) if optimizer.name == "adam" else None
        self._step = kernels.bind_rows(optimizer.rule(), table, list(self.moments.values()), self.counts, every)
        self._workspace = Workspace()
        own = touches and (every or self.counts is None)  # otherwise Adam's counts are the touch counts
        self._touches: Any = aligned_zeros(table.shape[:1], np.uint32) if own else None

    def initialise(self, seed: int, first: int, stride: int, scale: float) -> None:
        """Set every local row i to the initial value of global row first + i * stride."""
        self._kernels.init_rows(self.table, seed, first, stride, scale)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of the block, by their names in checkpoints: table, moments and step counts."""
        found = {"rows": self.table, **{f"row_moment.{name}": moment for name, moment in self.moments.items()}}
        return found if self.counts is None else {**found, "row_counts": self.counts}

    @property
    def touch_counts(self) -> Any:
        """Number of steps whose data touched each row, uint32[rows] (modulo 2^32); None if that is not counted."""
        if self._touches is not None:
            return self._touches
        return None if self._every else self.counts

    def reset_optimizer(self) -> None:
        """Reset the optimizer to its state before the first step; the rows' values stay."""
        for moment in self.moments.values():
            moment.fill(self._optimizer.start)
        if self.counts is not None:
            self.counts.fill(0)

    def apply(self, parts: Sequence[RowPart], divisor: float, lr_scale: float, shares: Sequence[float] = ()) -> None:
        """Apply one optimizer step from slices (distinct rows, gradients, weight > 0), summed in order.

        A slice: index int32[n], grad f32[n, width], weight.
        A row's sum is divided by `divisor` plus the `shares`, if any, of the slices that carry the row.
        """
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
        self._step(index, grad, per_row, weight, divisor, self._optimizer.lr * lr_scale, self._decay)

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held by kind: table, moments, counts, scratch memory."""
        slot = INT.itemsize * len(self.table) if self._every else 0
        return {
            "table": self.table.nbytes,
            "moments": sum(moment.nbytes for moment in self.moments.values()),
            "counts": sum(array.nbytes for array in (self.counts, self._touches) if array is not None),
            "scratch": slot + self._workspace.nbytes,
        }


class PullCounts:
    """Touch counts of the rows that outstanding batches pulled, from which their rows' staleness is computed.

    `counts` uint32[rows] is held, not copied.
    """

    def __init__(self, counts: Any) -> None:
        self._counts = counts
        self._at_pull: dict[int, tuple[Ints, Any]] = {}

    def record_pull(self, batch: int, index: Ints) -> None:
        """Record the touch counts that the rows `index` int32[n] have now, when batch `batch` pulls them.

        Raises ValueError on an index outside.
        """
        index = index.copy()
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(self._counts):
            raise ValueError("Refused: an index lies outside the table.")
        self._at_pull[batch] = index, self._counts[index]

    def attach(self, batch: int, part: GradientSlice) -> None:
        """Move a batch's touch counts into its gradient slice; discard them if the slice has other rows than pulled."""
        index, counts = self._at_pull.pop(batch, (None, None))
        if index is not None and np.array_equal(index, part.index):
            part.touches = counts

    def forget(self, batch: int | None = None) -> None:
        """Forget the touch counts that rows had when one batch pulled them, or those of all batches."""
        if batch is None:
            self._at_pull.clear()
        else:
            self._at_pull.pop(batch, None)

    @property
    def nbytes(self) -> int:
        """Size of all recorded touch counts in bytes."""
        return sum(index.nbytes + counts.nbytes for index, counts in self._at_pull.values())

    def group_by_weight(self, part: GradientSlice, weights: Sequence[float]) -> list[RowPart]:
        """Group the rows of a gradient slice by weight: (row indexes, their gradients, weight) for each group.

        The weight is `weights`[the row's own staleness]. Rows of weight 0 are left out. The last of `weights` is that
        of the token's staleness, which no row's staleness exceeds. All rows of a slice without a pull record get the
        last weight.
        """
        if part.touches is None:
            return [(part.index, part.grad, weights[-1])] if weights[-1] > 0 and len(part.index) else []
        since = self._counts[part.index] - part.touches
        own = np.array(weights)[np.minimum(since, COUNT.type(len(weights) - 1))]
        found = own[:1] if (own == own[:1]).all() else np.unique(own)
        if len(found) == 1 and found[0] > 0:
            return [(part.index, part.grad, float(found[0]))]
        chosen = [(float(weight), np.flatnonzero(own == weight)) for weight in found if weight > 0]
        return [(part.index[at], part.grad[at], weight) for weight, at in chosen]


def row_norms(parts: Sequence[RowPart], divisor: float, kernels: Kernels, shares: Sequence[float] = ()) -> list[float]:
    """Compute the L2 norms of at most NORMS_SAMPLED rows' gradients, evenly spread over a step's rows.

    A row is divided by `divisor` plus the `shares`, if any, of the slices that carry it. Used by studies of how
    gradients differ between modes; costs a second pass over the step's gradients.
    """
    if not any(len(part[0]) for part in parts):
        return []
    index, total, carried = kernels.aggregate(parts, None, shares)
    chosen = np.argsort(index, kind="stable")[:: -(-len(index) // NORMS_SAMPLED)]
    size = np.linalg.norm(total[chosen].astype(np.float64), axis=1)
    found: list[float] = (size / (divisor + carried[chosen] if shares else divisor)).tolist()
    return found

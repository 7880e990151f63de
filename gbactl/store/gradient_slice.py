"""Gradient slice that a worker pushes to one shard, and the coordinator's order to apply such slices.

A slice's arrays may be views of shared memory: they are held, not copied, until `close` or `detach`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gbactl.kernels.base import FLOAT, INT, Floats, Ints

NO_ROWS, NO_GRADIENTS = np.empty(0, INT), np.empty((0, 0), FLOAT)


@dataclass(slots=True)
class GradientSlice:
    """Gradient of one batch for one shard: row gradients and, if the shard holds dense parameters, dense ones.

    `index` int32[n]: distinct local rows. `grad` f32[n, W]. `dense`: f32 of the shard's dense slice. `release`, if
    given, is called once when the arrays are no longer needed. `touches` uint32[n]: touch count of each row when it was
    pulled, where the shard counts touches. `lost`: the slice never arrived, and this empty one replaces it. `report`:
    the message with which its server told the coordinator of it.
    """

    index: Ints
    grad: Floats
    dense: Floats | None = None
    release: Callable[[], None] | None = None
    touches: Any = None
    lost: bool = False
    report: Any = None

    @classmethod
    def empty(cls, width: int) -> GradientSlice:
        """Make an empty slice that replaces a lost one, for a table with rows of `width` floats."""
        return cls(np.empty(0, INT), np.empty((0, width), FLOAT), None, lost=True)

    @property
    def nbytes(self) -> int:
        """Size of the slice's arrays in bytes."""
        held = (self.index, self.grad, self.dense, self.touches)
        return sum(array.nbytes for array in held if array is not None)

    def detach(self) -> None:
        """Copy the slice's arrays to the heap, and release the shared memory that they were views of."""
        if self.release is None:
            return
        self.index, self.grad = self.index.copy(), self.grad.copy()
        self.dense = None if self.dense is None else self.dense.copy()
        self._let_go()

    def close(self) -> None:
        """Drop the slice's arrays, and release the shared memory that they were views of; further calls do nothing."""
        self.index, self.grad, self.dense = NO_ROWS, NO_GRADIENTS, None
        self.touches = None
        self._let_go()

    def _let_go(self) -> None:
        release, self.release = self.release, None
        if release is not None:
            release()


class StepOrder(NamedTuple):
    """Coordinator's order to apply staged gradients as step `step`; `members`: (batch, weight >= 0) in summing order.

    Rows and dense parameters are divided by `divisor`, batch-norm statistics by `weight_sum`. `row_weights`, if any,
    has an entry for each member: the weight of a row by the row's own staleness; the last weight is that of the token's
    staleness. `accepted`: the divisor is the sum of the weights, so a row is divided by the sum of its own weights.
    `shares`: each member's samples / local batch; empty where all are 1.
    """

    step: int
    members: tuple[tuple[int, float], ...]
    divisor: float
    weight_sum: float
    lr_scale: float = 1.0
    row_weights: tuple[tuple[float, ...], ...] = ()
    accepted: bool = False
    shares: tuple[float, ...] = ()

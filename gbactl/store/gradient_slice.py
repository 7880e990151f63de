"""What a worker pushes for one batch, and the order in which staged batches are applied.

A part's arrays may be views of shared memory: they are held, not copied, until `close` or `detach`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gbactl.kernels.base import FLOAT, INT, Floats, Ints


@dataclass(slots=True)
class Part:
    """One shard's part of a gradient: `index` int32[n] distinct local rows, `grad` f32[n, W], `dense` f32 of
    the shard's slice. `release`, if given, is called once when the arrays are no longer needed. `touches`
    uint32[n]: how often each row had been touched when it was pulled, where the shard counts that. `lost`: the
    part itself never came; this empty one stands for it."""

    index: Ints
    grad: Floats
    dense: Floats | None = None
    release: Callable[[], None] | None = None
    touches: Any = None
    lost: bool = False

    @classmethod
    def missing(cls, width: int) -> Part:
        """An empty one of rows of `width` in the place of one that is lost."""
        return cls(np.empty(0, INT), np.empty((0, width), FLOAT), None, lost=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        held = (self.index, self.grad, self.dense, self.touches)
        return sum(array.nbytes for array in held if array is not None)

    def detach(self) -> None:
        """Copy the arrays to the heap and release what they were views of."""
        if self.release is None:
            return
        self.index, self.grad = self.index.copy(), self.grad.copy()
        self.dense = None if self.dense is None else self.dense.copy()
        self._let_go()

    def close(self) -> None:
        """Forget the arrays and release what they were views of; more calls do nothing."""
        self.index, self.grad, self.dense = np.empty(0, INT), np.empty((0, 0), FLOAT), None
        self.touches = None
        self._let_go()

    def _let_go(self) -> None:
        release, self.release = self.release, None
        if release is not None:
            release()


@dataclass(frozen=True, slots=True)
class Order:
    """Step `step` applies `members` ((batch, weight >= 0), ...) in this order.

    Rows and dense parameters are divided by `divisor`, batch-norm statistics by `weight_sum`. `row_weights`,
    if any, has an entry a member: the weight of a row by its own staleness, the last that of the token's.
    `accepted`: the divisor is the sum of the weights, so a row's is that of its own. `shares`: each member's
    samples / local batch; empty where all are 1.
    """

    step: int
    members: tuple[tuple[int, float], ...]
    divisor: float
    weight_sum: float
    lr_scale: float = 1.0
    row_weights: tuple[tuple[float, ...], ...] = ()
    accepted: bool = False
    shares: tuple[float, ...] = ()

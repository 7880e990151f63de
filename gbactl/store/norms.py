"""How large the gradients of a step are: of the dense slice, and of a sample of the rows it touches.

For studies of what stands between the modes; costs a second pass over the step's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gbactl.kernels.base import DensePart, Kernels, RowPart

SAMPLE = 32


def dense_square(parts: Sequence[DensePart], params: int, divisor: float) -> float:
    """Squared L2 norm of (sum of weight x gradient) / divisor over the first `params` values."""
    total = np.zeros(params, np.float64)
    for gradient, weight in parts:
        total += weight * gradient[:params].astype(np.float64)
    return float(np.dot(total, total)) / divisor**2


def row_norms(
    parts: Sequence[RowPart], divisor: float, kernels: Kernels, shares: Sequence[float] = ()
) -> list[float]:
    """L2 norms of at most SAMPLE rows' gradients, evenly spread over the rows in ascending order. A row is divided by
    `divisor`, plus the `shares`, if any, of the parts that carry it."""
    if not any(len(part[0]) for part in parts):
        return []
    index, total, carried = kernels.aggregate(parts, None, shares)
    chosen = np.argsort(index, kind="stable")[:: -(-len(index) // SAMPLE)]
    size = np.linalg.norm(total[chosen].astype(np.float64), axis=1)
    found: list[float] = (size / (divisor + carried[chosen] if shares else divisor)).tolist()
    return found

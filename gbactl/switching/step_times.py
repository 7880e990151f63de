"""Observations that grow old, and what is to be expected of the slowest of several. Pure; a microsecond each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

FEW, MOST = 4, 64  # remembered however old they are, and however new


def expected_maximum(columns: Sequence[Sequence[float]]) -> float:
    """Mean of the largest of one draw from each column's values, exactly: the integral of 1 - prod F_i."""
    ordered = [np.sort(np.asarray(column, np.float64)) for column in columns]
    steps = [np.diff(np.log(np.arange(1, len(c) + 1) / len(c)), prepend=0.0) for c in ordered]
    points = np.concatenate(ordered)
    order = np.argsort(points, kind="stable")
    points, below = points[order], np.exp(np.cumsum(np.concatenate(steps)[order]))
    low = max(float(column[0]) for column in ordered)
    first = int(np.searchsorted(points, low, side="right")) - 1  # from here on no F_i is 0
    return low + float(np.diff(points[first:]) @ (1.0 - below[first:-1]))


class Recent:
    """(time, value) pairs of the last `seconds`: the FEW newest at least, MOST at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pairs: deque[tuple[float, float]] = deque(maxlen=MOST)

    def add(self, now: float, value: float) -> None:
        """The newest pair."""
        self.pairs.append((now, value))
        self.trim(now)

    def trim(self, now: float) -> None:
        """Forget what is too old."""
        while len(self.pairs) > FEW and self.pairs[0][0] < now - self.seconds:
            self.pairs.popleft()

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return [value for _, value in self.pairs]

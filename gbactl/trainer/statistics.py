"""Notes of a trainer about its exchanges in one phase. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.kernels.base import Floats

SPACING = 1.1  # distances are taken at exchanges 1, 2, 3, ... 10, 12, 14, ...: a hundred in ten thousand


@dataclass
class ExchangeStatistics:
    """Notes of one trainer. Times are seconds; `gaps` counts local iterations between two exchanges.

    Exchanges that it only answers, because it is `idle`, make no gap."""

    iterations: int = 0
    exchanges: int = 0
    seconds: float = 0.0
    foreground: float = 0.0
    sent: float = 0.0
    gaps: Counter[int] = field(default_factory=Counter)
    distances: list[tuple[float, float]] = field(default_factory=list)
    idle: bool = False
    _last: int = 0
    _next: float = 1.0

    def distance(self, at: float, replica: Floats, other: Floats) -> None:
        """Record the L2 distance of f32[n] replica from the mean or centre, `at` seconds into the phase.

        Not every time."""
        if self.exchanges + 1 >= self._next:
            self._next = max(self._next + 1, self._next * SPACING)
            self.distances.append((at, float(np.linalg.norm(replica - other))))

    def met(self, iterations: int, seconds: float, sent: float) -> None:
        """Record an exchange: its seconds and bytes, and the iterations that the trainer had done by then."""
        self.exchanges += 1
        if iterations > self._last or not self.idle:
            self.gaps[iterations - self._last] += 1
        self._last = iterations
        self.seconds += seconds
        self.sent += sent

    def fields(self) -> dict[str, Any]:
        """Convert to the fields of a message."""
        return {
            "iterations": self.iterations, "exchanges": self.exchanges, "seconds": self.seconds,
            "foreground": self.foreground, "sent": self.sent,
            "gaps": {str(gap): count for gap, count in sorted(self.gaps.items())},
            "distances": [list(point) for point in self.distances],
        }  # fmt: skip

"""All-reduce of replicas on a virtual clock: a round is summed when all live ranks have joined it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.ring import SimulatedRing

TICK = 1e-5  # seconds a round takes at least


class RingRounds:
    """Rounds of all ranks of a ring. Sums are in rank order; a rank that fails counts if it had joined the round."""

    def __init__(self, ring: SimulatedRing) -> None:
        self.ring = ring
        self._living = set(range(len(ring.hosts)))
        self._summing = False
        self._there: dict[int, tuple[Floats, Callable[[], None]]] = {}

    @property
    def ranks(self) -> int:
        """Number of live ranks."""
        return len(self._living)

    def meet(self, rank: int, vector: Floats, done: Callable[[], None]) -> None:
        """Join a round with f32[n], which holds the sum when `done` is called."""
        self._there[rank] = (vector, done)
        self._look()

    def left(self, rank: int) -> None:
        """Stop waiting for a failed rank."""
        self._living.discard(rank)
        self._look()

    def joined(self, rank: int) -> None:
        """Add a rank, perhaps a successor, while nothing is in flight."""
        self._living.add(rank)

    def _look(self) -> None:
        if self._summing or not self._there or not self._living <= set(self._there):
            return
        self._summing = True
        self.ring.sum(next(iter(self._there.values()))[0].size, sorted(self._there), 0.0, self._sum)

    def _sum(self) -> None:
        self._summing = False
        there, self._there = [self._there[rank] for rank in sorted(self._there)], {}
        total = there[0][0].copy()
        for vector, _ in there[1:]:
            np.add(total, vector, out=total)
        for vector, _ in there:
            np.copyto(vector, total)
        for _, done in there:
            done()

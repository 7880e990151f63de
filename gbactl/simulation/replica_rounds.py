"""The all-reduce of replicas on a virtual clock: a round is summed when everybody who lives has come to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.ring import Ring

TICK = 1e-5  # seconds a round takes at least


class Rounds:
    """All ranks of a ring take part. Sums are in rank order; one that dies counts if it had come."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._living = set(range(len(ring.hosts)))
        self._summing = False
        self._there: dict[int, tuple[Floats, Callable[[], None]]] = {}

    @property
    def ranks(self) -> int:
        """How many take part."""
        return len(self._living)

    def meet(self, rank: int, vector: Floats, done: Callable[[], None]) -> None:
        """Take part with f32[n]; when `done` is called it is the sum."""
        self._there[rank] = (vector, done)
        self._look()

    def left(self, rank: int) -> None:
        """A rank is gone: nobody waits for it."""
        self._living.discard(rank)
        self._look()

    def joined(self, rank: int) -> None:
        """Nothing is in flight: a rank takes part from now on, perhaps in the place of one that is gone."""
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

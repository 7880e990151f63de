"""The all-reduce of replicas on a virtual clock: a round is summed when every rank has come to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.virtual.cost import CostModel
from gbactl.virtual.events import Events

TICK = 1e-5  # seconds a round takes at least


class Rounds:
    """`ranks` take part, over so many hosts. Sums are in rank order."""

    def __init__(self, events: Events, cost: CostModel, ranks: int, hosts: int) -> None:
        self.events, self.cost, self.ranks, self.hosts = events, cost, ranks, hosts
        self._there: dict[int, tuple[Floats, Callable[[], None]]] = {}

    def meet(self, rank: int, vector: Floats, done: Callable[[], None]) -> None:
        """Take part with f32[n]; when `done` is called it is the sum."""
        self._there[rank] = (vector, done)
        if len(self._there) == self.ranks:
            seconds = self.cost.all_reduce(vector.nbytes, self.ranks, self.hosts, 0.0)
            self.events.after(max(TICK, seconds), self._sum)

    def _sum(self) -> None:
        there, self._there = [self._there[rank] for rank in sorted(self._there)], {}
        total = there[0][0].copy()
        for vector, _ in there[1:]:
            np.add(total, vector, out=total)
        for vector, _ in there:
            np.copyto(vector, total)
        for _, done in there:
            done()

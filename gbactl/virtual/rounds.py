"""The all-reduce of replicas on a virtual clock: a round is summed when everybody who lives has come to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gbactl.cluster.traffic import Traffic
from gbactl.collective.base import ring_bytes
from gbactl.kernels.base import Floats
from gbactl.virtual.cost import CostModel
from gbactl.virtual.events import Events
from gbactl.virtual.network import Host

TICK = 1e-5  # seconds a round takes at least
PIECES = 8  # what a rank sends in a round goes in so many, between which others have their turn on its line


class Rounds:
    """Ranks on these `hosts` take part, and agree first if `agreed` is 1. Sums are in rank order; one that dies counts
    if it had come. Between hosts the ring's bytes wait for rows on their way, and those for them."""

    def __init__(
        self, events: Events, cost: CostModel, hosts: Sequence[Host], traffic: Traffic | None = None, agreed: int = 0
    ) -> None:
        self.events, self.cost, self.hosts, self.traffic = events, cost, list(hosts), traffic or Traffic()
        self.agreed = agreed
        self._living = set(range(len(hosts)))
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
        nbytes, ranks = next(iter(self._there.values()))[0].nbytes, sorted(self._there)
        hosts = [self.hosts[rank] for rank in ranks]
        lines = [(a, b) for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True) if a is not b]
        seconds = self.cost.all_reduce(nbytes, len(ranks), len(set(map(id, hosts))), 0.0, self.agreed)
        sending = self.cost.sending(nbytes, len(ranks)) if lines else 0.0
        self.events.after(max(TICK, seconds - sending), self._send, lines, sending / PIECES, PIECES)

    def _send(self, lines: list[tuple[Host, Host]], seconds: float, pieces: int) -> None:
        """Every rank's next piece to the one behind it, `seconds` on every line; after the last there is the sum."""
        if not lines or not pieces:
            self._sum()
            return
        begins = [line.reserve(seconds) for a, b in lines for line in (a.outward, b.inward)]
        self.events.at(max(begins) + seconds, self._send, lines, seconds, pieces - 1)

    def _sum(self) -> None:
        self._summing = False
        there, self._there = [self._there[rank] for rank in sorted(self._there)], {}
        self.traffic.summed(ring_bytes(len(there[0][0]), len(there)), False)
        total = there[0][0].copy()
        for vector, _ in there[1:]:
            np.add(total, vector, out=total)
        for vector, _ in there:
            np.copyto(vector, total)
        for _, done in there:
            done()

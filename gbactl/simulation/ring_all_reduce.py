"""All-reduce on a virtual clock: gradients of `sync`, or replicas, summed by ranks in a ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gbactl.collective.base import ring_bytes
from gbactl.kernels.base import Floats
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.network import Host
from gbactl.wire.traffic import TrafficCounter


class SimulatedRing:
    """Ring with one rank per entry of `hosts`, which may repeat a host; `item`: bytes of a value on the wire.

    Between hosts its bytes share the interfaces with other traffic. `agreed`: number of buckets that ranks agree on
    before they sum; `least`: minimum seconds of a sum."""

    def __init__(
        self, events: EventQueue, cost: CostModel, hosts: Sequence[Host],
        traffic: TrafficCounter | None = None, agreed: int = 0,
        item: int = 4, least: float = 0.0,
    ) -> None:  # fmt: skip
        self.events, self.cost, self.hosts, self.traffic = events, cost, list(hosts), traffic or TrafficCounter()
        self.agreed, self.item, self.least = agreed, item, least

    def sum(self, floats: int, ranks: Sequence[int], compute: float, done: Callable[[], None]) -> None:
        """Simulate a sum over these ranks, which begins in `compute` seconds, when the slowest rank has computed.

        Call `done` when they have the sum."""
        hosts = [self.hosts[rank] for rank in ranks]
        links = [(here, there) for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True) if here is not there]
        nbytes, over = self.item * floats, len(set(map(id, hosts)))
        seconds = self.cost.all_reduce(nbytes, len(ranks), over, compute, self.agreed)
        sending = min(seconds, self.cost.sending(nbytes, len(ranks), over)) if links else 0.0

        def summed() -> None:
            self.traffic.count_all_reduce(ring_bytes(floats, len(ranks), self.item), False)
            done()

        self.events.after(max(self.least, seconds - sending), self._send, links, sending, summed)

    def _send(self, links: list[tuple[Host, Host]], seconds: float, summed: Callable[[], None]) -> None:
        """Send every rank's bytes to the next rank, in `seconds` if the interfaces have no other traffic."""
        left = 2 * len(links)

        def sent() -> None:
            nonlocal left
            left -= 1
            if not left:
                summed()

        for here, there in links:
            here.outward.run(seconds, sent)
            there.inward.run(seconds, sent)
        if not links:
            summed()


TICK = 1e-5  # seconds a round takes at least


class RingRounds:
    """Rounds of an all-reduce in a ring. Sums are in rank order, and include a rank that failed after it had joined."""

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
        """Join a round with the vector f32[n], which is overwritten by the sum before `done` is called."""
        self._there[rank] = (vector, done)
        self._look()

    def left(self, rank: int) -> None:
        """Remove a failed rank: rounds no longer wait for it."""
        self._living.discard(rank)
        self._look()

    def joined(self, rank: int) -> None:
        """Add a rank, perhaps a failed rank's successor, while no round is in progress."""
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

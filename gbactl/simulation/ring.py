"""All-reduce on a virtual clock: gradients of `sync` or replicas, summed by ranks in a ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gbactl.collective.base import ring_bytes
from gbactl.simulation.clock import EventQueue
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.network import Host
from gbactl.wire.traffic import TrafficCounter


class SimulatedRing:
    """Ring with one rank on each of `hosts` (several may be on one); values take `item` bytes on the wire.

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
        """Sum over these ranks, the last of which arrives after `compute` seconds.

        Call `done` when they have the sum."""
        hosts = [self.hosts[rank] for rank in ranks]
        links = [(here, there) for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True) if here is not there]
        nbytes, over = self.item * floats, len(set(map(id, hosts)))
        seconds = self.cost.all_reduce(nbytes, len(ranks), over, compute, self.agreed)
        sending = min(seconds, self.cost.sending(nbytes, len(ranks), over)) if links else 0.0

        def summed() -> None:
            self.traffic.summed(ring_bytes(floats, len(ranks), self.item), False)
            done()

        self.events.after(max(self.least, seconds - sending), self._send, links, sending, summed)

    def _send(self, links: list[tuple[Host, Host]], seconds: float, summed: Callable[[], None]) -> None:
        """Send every rank's bytes to the next, for `seconds` without other traffic on the interfaces."""
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

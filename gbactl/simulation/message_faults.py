"""Model of connections that lose, delay, duplicate and reorder messages, and of wire/reliable.py on top.

A lost transmission is repeated after RETRY_SECONDS; the receiver takes each message once, in order. Duplicates are sent
twice. Not modelled: the acknowledgements, and repetitions of messages that are only delayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gbactl.faults.message_faults import MessageFaultStream
from gbactl.faults.plan import FaultPlan
from gbactl.simulation.network import Endpoint, Network, VirtualChannel
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.reliable import RETRY_SECONDS, message_faults_of


class LossyChannel(VirtualChannel):
    """End of a lossy connection. `weather` decides its transmissions' faults; `on`: the active message faults."""

    def __init__(
        self, network: Network, near: Endpoint, far: Endpoint, weather: MessageFaultStream,
        on: Callable[[], frozenset[int]],
        counts: Counter[str],
    ) -> None:  # fmt: skip
        super().__init__(network, near, far)
        self.weather, self.on, self.counts = weather, on, counts
        self._next = self._expected = 0
        self._early: dict[int, Frame] = {}

    def carry(self, frame: Frame, nbytes: int) -> None:
        """See VirtualChannel.carry; a closed connection is reported without faults."""
        if frame.kind == CLOSED:
            super().carry(frame, nbytes)
            return
        number, self._next = self._next, self._next + 1
        self._transmit(number, frame, nbytes)

    def _transmit(self, number: int, frame: Frame, nbytes: int) -> None:
        if self.other is None:
            return
        fate = self.weather.draw(self.on())
        self.counts.update(fate.names)
        for delay in fate.delays:
            self.network.events.after(delay, self._send_copy, number, frame, nbytes)
        if not fate.delays:
            self.counts["retried"] += 1
            self.network.events.after(RETRY_SECONDS, self._transmit, number, frame, nbytes)

    def _send_copy(self, number: int, frame: Frame, nbytes: int) -> None:
        nbytes = self.network.wire_bytes(frame, nbytes, self.near.host is self.far.host)
        self.wire.carry(nbytes, lambda: self._come(number, frame))

    def _come(self, number: int, frame: Frame) -> None:
        if number < self._expected or number in self._early:
            return
        self._early[number] = frame
        while self._expected in self._early:
            self._arrive(self._early.pop(self._expected))
            self._expected += 1


@dataclass(frozen=True)
class LossyNetwork(Network):
    """Network whose connections have a fault plan's message faults.

    `on`: the message faults that are active; `counts`: what happened to transmissions."""

    plan: FaultPlan
    on: Callable[[], frozenset[int]]
    counts: Counter[str]

    def connect(self, near: Endpoint, far: Endpoint) -> VirtualChannel:
        """See Network.connect."""
        here, there = self._end(near, far), self._end(far, near)
        here.other, there.other = there, here
        return here

    def _end(self, near: Endpoint, far: Endpoint) -> VirtualChannel:
        weather = message_faults_of(self.plan, near.peer, far.peer)
        if weather is None:
            return VirtualChannel(self, near, far)
        return LossyChannel(self, near, far, weather, self.on, self.counts)

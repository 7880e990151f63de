"""Hosts, network interfaces, channels (wire/channel_interface.py on a clock) and all-reduce rings of a virtual cluster.

Nothing is serialized: a frame carries its message, and its payload is passed on, not copied; a sent payload must not be
written to afterwards. A message costs one event (5 us), or four (20 us) between hosts if it exceeds a packet.

Connections may lose, delay, duplicate and reorder messages, as a fault plan says, below wire/reliable.py: a lost
transmission is repeated after RETRY_SECONDS; the receiver takes each message once, in order. Duplicates are sent twice.
Not modelled: the acknowledgements, and repetitions of messages that are only delayed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gbactl.collective.base import ring_bytes, sum_in_rank_order
from gbactl.cpu import shared_equally
from gbactl.faults.fault_plan import FaultPlan
from gbactl.faults.message_faults import MessageFaultStream
from gbactl.kernels.base import Floats
from gbactl.kernels.half_precision import Codec, rounded
from gbactl.simulation.cost_model import MESSAGE_BYTES, CostModel
from gbactl.simulation.discrete_events import CoreSlot, EventQueue, InterfaceDirection, SerialProcess, SharedCores
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import NO_BYTES
from gbactl.wire.frames import CLOSED, Bytes, Frame
from gbactl.wire.half_precision_transport import VALUES, ids_of, narrowed_bytes
from gbactl.wire.messages import KIND
from gbactl.wire.node_measurements import TrafficCounter
from gbactl.wire.reliable import RETRY_SECONDS, message_faults_of

PACKET_BYTES = 1500


class Host:
    """Host of a virtual cluster: its cores, and the two directions of its network interface.

    `slots`: time slots of each core, where several of the host's `workers` share it; else empty."""

    def __init__(self, events: EventQueue, cores: int, workers: int = 0) -> None:
        self.cores = SharedCores(events, cores)
        self.slots = [CoreSlot() for _ in range(cores)] if shared_equally(workers, cores) else []
        self.outward, self.inward = InterfaceDirection(events), InterfaceDirection(events)


class Endpoint(Protocol):
    """Node at one end of a channel, which receives its frames."""

    peer: Peer
    host: Host

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """Handle a frame that has arrived."""


class HostLocalLink:
    """One direction of a connection within a host, which shares no bandwidth with other connections."""

    def __init__(self, events: EventQueue, cost: CostModel) -> None:
        self.events, self.cost = events, cost
        self._free = 0.0  # when the bytes under way have left

    def carry(self, nbytes: int, arrive: Callable[..., None], *args: Any) -> None:
        """Send `nbytes` over the host's memory after the bytes already under way, then call `arrive(*args)`."""
        self._free = max(self.events.now, self._free) + nbytes / self.cost.local_bandwidth
        self.events.schedule_at(self._free + self.cost.local_latency, arrive, *args)


class HostToHostLink:
    """One direction of a connection between hosts, through their network interfaces, shared with other traffic.

    A message flows through without being stored: it arrives when all of it has left and all of it is in. One of at most
    a packet waits only for other packets, and for earlier messages of this connection."""

    def __init__(self, events: EventQueue, cost: CostModel, source: Host, target: Host) -> None:
        self.events, self.latency, self.bandwidth = events, cost.latency, cost.bandwidth
        self.leaving, self.entering = SerialProcess(source.outward), SerialProcess(target.inward)
        self._ends = source.outward, target.inward
        self.under_way = 0  # messages of more than a packet, and those behind them
        self.packets_until = 0.0  # arrival of the last packet before them

    def carry(self, nbytes: int, arrive: Callable[..., None], *args: Any) -> None:
        """Send `nbytes` through the two interfaces after the bytes already under way, then call `arrive(*args)`."""
        seconds = nbytes / self.bandwidth
        if nbytes <= PACKET_BYTES and not self.under_way:
            outward, inward = self._ends
            self.packets_until = max(outward.send_small(seconds), inward.send_small(seconds)) + self.latency
            self.events.schedule_at(self.packets_until, arrive, *args)
            return
        self.under_way += 1
        passing = _Passing(self, seconds, arrive, args)
        self.leaving.submit(passing.begin, passing.sent)


class _Passing:
    """Message in transit between two hosts."""

    __slots__ = ("args", "arrival", "arrive", "seconds", "through", "wire")

    def __init__(
        self, wire: HostToHostLink, seconds: float, arrive: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.wire, self.seconds, self.arrive, self.args = wire, seconds, arrive, args
        self.arrival = math.inf  # when its last bytes are at the target
        self.through = False  # whether it passed the target's interface completely before that

    def begin(self) -> float:
        """Begin to send: the first bytes arrive after the latency. Returns the seconds that sending takes."""
        self.wire.events.schedule_after(self.wire.latency, self._enter)
        return self.seconds

    def sent(self) -> None:
        """Record that the last bytes have left the sending interface."""
        self.arrival = self.wire.events.now + self.wire.latency
        if self.through:
            self.wire.events.schedule_at(self.arrival, self._deliver)

    def _enter(self) -> None:
        self.wire.entering.submit(lambda: self.seconds, self._received)

    def _received(self) -> None:
        self.through = self.arrival > self.wire.events.now
        if not self.through:
            self._deliver()
        elif self.arrival < math.inf:
            self.wire.events.schedule_at(self.arrival, self._deliver)

    def _deliver(self) -> None:
        wire = self.wire
        if wire.packets_until > wire.events.now:
            wire.events.schedule_at(wire.packets_until, self._deliver)
            return
        wire.under_way -= 1
        self.arrive(*self.args)


@dataclass(frozen=True)
class Network:
    """Network of a virtual cluster: cost model, half precision, traffic counters, message faults of all channels.

    `plan`: a fault plan, whose message faults its channels have; `active_faults`: indexes of those that are active;
    `counts`: what happened to transmissions."""

    events: EventQueue
    cost: CostModel
    codec: Codec | None = None  # see wire/half_precision_transport.py
    traffic: TrafficCounter = field(default_factory=TrafficCounter)
    plan: FaultPlan | None = None
    active_faults: Callable[[], frozenset[int]] = frozenset
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.traffic.item = 4 if self.codec is None else 2

    def arrived(self, values: Floats) -> Floats:
        """Values as a worker or server receives them, rounded to half precision if that is configured."""
        return rounded(self.codec, values)

    def wire_bytes(self, frame: Frame, nbytes: int, within: bool) -> int:
        """Bytes of a frame on the wire, `within` a host or between hosts; `nbytes`: its payload with float32."""
        nbytes = nbytes if self.codec is None else narrowed_bytes(frame.message, nbytes)
        self.traffic.sent(frame.message, MESSAGE_BYTES, nbytes, within)
        return MESSAGE_BYTES + nbytes

    def connect(self, near: Endpoint, far: Endpoint) -> VirtualChannel:
        """Connect two nodes. Returns the near end of the channel."""
        near_end, far_end = self.end(near, far), self.end(far, near)
        near_end.other, far_end.other = far_end, near_end
        return near_end

    def end(self, near: Endpoint, far: Endpoint) -> VirtualChannel:
        """Make one end of a channel, a lossy one if the fault plan disturbs its messages."""
        faults = None if self.plan is None else message_faults_of(self.plan, near.peer, far.peer)
        return VirtualChannel(self, near, far) if faults is None else LossyChannel(self, near, far, faults)

    def wire(self, source: Host, target: Host) -> HostLocalLink | HostToHostLink:
        """Make one direction of a new connection, which keeps the order of messages."""
        if source is target:
            return HostLocalLink(self.events, self.cost)
        return HostToHostLink(self.events, self.cost, source, target)


class VirtualChannel:
    """One end of a channel between two virtual nodes."""

    def __init__(self, network: Network, near: Endpoint, far: Endpoint) -> None:
        self.network, self.far = network, far
        self.peer = far.peer
        self.other: VirtualChannel | None = None
        self.wire, self._within = network.wire(near.host, far.host), near.host is far.host

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory for a payload."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Send a message over virtual time (Channel.send); the payload belongs to the receiver from here on."""
        data = NO_BYTES if payload is None else payload
        if self.network.codec is not None and isinstance(message, VALUES):
            ids = ids_of(message)
            values = self.network.arrived(data[ids:].view(np.float32))
            data = np.concatenate([data[:ids], values.view(np.uint8)])
        self.carry(Frame(KIND[type(message)], b"", data, None, message), data.nbytes)

    def carry(self, frame: Frame, nbytes: int) -> None:
        """Send a frame whose size is computed as for a payload that has `nbytes` bytes with float32 values."""
        if self.other is not None:
            nbytes = self.network.wire_bytes(frame, nbytes, self._within)
            self.wire.carry(nbytes, self._arrive, frame)

    def _arrive(self, frame: Frame) -> None:
        if self.other is not None:
            self.far.receive(self.other, frame)

    def close(self) -> None:
        """Close the channel; the peer is notified after all earlier messages."""
        if self.other is not None:
            self.carry(Frame(CLOSED, b"", NO_BYTES), 0)


class LossyChannel(VirtualChannel):
    """End of a lossy channel. `message_faults` are drawn for each of its messages."""

    def __init__(self, network: Network, near: Endpoint, far: Endpoint, message_faults: MessageFaultStream) -> None:
        super().__init__(network, near, far)
        self.message_faults = message_faults
        self._next = self._expected = 0
        self._out_of_order: dict[int, Frame] = {}

    def carry(self, frame: Frame, nbytes: int) -> None:
        """Send a frame with random loss, delay and duplication; the notice of a closed channel is exempt."""
        if frame.kind == CLOSED:
            super().carry(frame, nbytes)
            return
        number, self._next = self._next, self._next + 1
        self._transmit(number, frame, nbytes)

    def _transmit(self, number: int, frame: Frame, nbytes: int) -> None:
        if self.other is None:
            return
        outcome = self.message_faults.draw(self.network.active_faults())
        self.network.counts.update(outcome.names)
        for delay in outcome.delays:
            self.network.events.schedule_after(delay, self._send_copy, number, frame, nbytes)
        if not outcome.delays:
            self.network.counts["retried"] += 1
            self.network.events.schedule_after(RETRY_SECONDS, self._transmit, number, frame, nbytes)

    def _send_copy(self, number: int, frame: Frame, nbytes: int) -> None:
        nbytes = self.network.wire_bytes(frame, nbytes, self._within)
        self.wire.carry(nbytes, self._receive_in_order, number, frame)

    def _receive_in_order(self, number: int, frame: Frame) -> None:
        if number < self._expected or number in self._out_of_order:
            return
        self._out_of_order[number] = frame
        while self._expected in self._out_of_order:
            self._arrive(self._out_of_order.pop(self._expected))
            self._expected += 1


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
        links = [
            (source, target)
            for source, target in zip(hosts, [*hosts[1:], hosts[0]], strict=True)
            if source is not target
        ]
        nbytes, over = self.item * floats, len(set(map(id, hosts)))
        seconds = self.cost.all_reduce(nbytes, len(ranks), over, compute, self.agreed)
        sending = min(seconds, self.cost.sending(nbytes, len(ranks), over)) if links else 0.0

        def summed() -> None:
            self.traffic.count_all_reduce(ring_bytes(floats, len(ranks), self.item), False)
            done()

        self.events.schedule_after(max(self.least, seconds - sending), self._send, links, sending, summed)

    def _send(self, links: list[tuple[Host, Host]], seconds: float, summed: Callable[[], None]) -> None:
        """Send every rank's bytes to the next rank, in `seconds` if the interfaces have no other traffic."""
        left = 2 * len(links)

        def sent() -> None:
            nonlocal left
            left -= 1
            if not left:
                summed()

        for source, target in links:
            source.outward.run(seconds, sent)
            target.inward.run(seconds, sent)
        if not links:
            summed()


TICK = 1e-5  # seconds an all-reduce round takes at least


class RingRounds:
    """Rounds of a ring all-reduce, summed in rank order; the vector of a rank that fails after joining still counts."""

    def __init__(self, ring: SimulatedRing) -> None:
        self.ring = ring
        self._live = set(range(len(ring.hosts)))
        self._sum_in_progress = False
        self._arrived: dict[int, tuple[Floats, Callable[[], None]]] = {}

    @property
    def ranks(self) -> int:
        """Number of live ranks."""
        return len(self._live)

    def join_round(self, rank: int, vector: Floats, done: Callable[[], None]) -> None:
        """Join an all-reduce round with the vector f32[n], which is overwritten by the sum before `done` is called."""
        self._arrived[rank] = (vector, done)
        self._sum_if_complete()

    def remove_rank(self, rank: int) -> None:
        """Remove a failed rank: all-reduce rounds no longer wait for it."""
        self._live.discard(rank)
        self._sum_if_complete()

    def add_rank(self, rank: int) -> None:
        """Add a rank, perhaps a failed rank's successor, while no all-reduce round is in progress."""
        self._live.add(rank)

    def _sum_if_complete(self) -> None:
        if self._sum_in_progress or not self._arrived or not self._live <= self._arrived.keys():
            return
        self._sum_in_progress = True
        self.ring.sum(next(iter(self._arrived.values()))[0].size, sorted(self._arrived), 0.0, self._sum)

    def _sum(self) -> None:
        self._sum_in_progress = False
        arrived, self._arrived = [self._arrived[rank] for rank in sorted(self._arrived)], {}
        total = sum_in_rank_order([vector for vector, _ in arrived])
        for vector, _ in arrived:
            np.copyto(vector, total)
        for _, done in arrived:
            done()

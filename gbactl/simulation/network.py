"""Hosts, network interfaces and channels of a virtual cluster: the protocols of wire/channel.py on a clock.

Nothing is serialized: a frame carries its message, and its payload is passed on, not copied; a sent payload must
not be written to afterwards. A message costs one event, or four between hosts if it exceeds a packet: 5 or 20 us.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gbactl.errors import ClusterError, WireError
from gbactl.kernels.base import Floats
from gbactl.kernels.half_precision import Codec, rounded
from gbactl.simulation.clock import EventQueue
from gbactl.simulation.cost_model import MESSAGE_BYTES, CostModel
from gbactl.simulation.resources import Fifo, InterfaceDirection, SerialProcess, SharedCores
from gbactl.wire.auth import Peer
from gbactl.wire.channel import COORDINATOR, NO_BYTES, Channel
from gbactl.wire.compression import VALUES, ids_of, narrowed_bytes
from gbactl.wire.frames import CLOSED, Bytes, Frame
from gbactl.wire.messages import kind_of
from gbactl.wire.traffic import TrafficCounter

PACKET_BYTES = 1500


class Host:
    """Host: its cores, and the two directions of its network interface."""

    def __init__(self, events: EventQueue, cores: int) -> None:
        self.cores = SharedCores(events, cores)
        self.outward, self.inward = InterfaceDirection(events), InterfaceDirection(events)


class Endpoint(Protocol):
    """Endpoint of a channel."""

    peer: Peer
    host: Host

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """Take a frame that has arrived."""


class LinkDirection(Protocol):
    """Direction of a connection."""

    def carry(self, nbytes: int, arrive: Callable[[], None]) -> None:
        """Send `nbytes` after those already under way, then call `arrive`."""


class HostLocalLink:
    """Connection within a host: each has its own pipe."""

    def __init__(self, events: EventQueue, cost: CostModel) -> None:
        self.cost, self._pipe = cost, Fifo(events)

    def carry(self, nbytes: int, arrive: Callable[[], None]) -> None:
        """See LinkDirection.carry."""
        pipe = self._pipe
        pipe.reserve(nbytes / self.cost.local_bandwidth)
        pipe.events.at(pipe.free + self.cost.local_latency, arrive)


class HostToHostLink:
    """Connection between hosts: through both network interfaces, shared with their other traffic.

    A message flows through without being stored: it arrives when all of it has left and all of it is in. One of at most
    a packet waits only for other packets, and for earlier messages of this connection."""

    def __init__(self, events: EventQueue, cost: CostModel, source: Host, target: Host) -> None:
        self.events, self.latency, self.bandwidth = events, cost.latency, cost.bandwidth
        self.leaving, self.entering = SerialProcess(source.outward), SerialProcess(target.inward)
        self._ends = source.outward, target.inward
        self.under_way = 0  # messages of more than a packet, and those behind them
        self.packets_until = 0.0  # arrival of the last packet before them

    def carry(self, nbytes: int, arrive: Callable[[], None]) -> None:
        """See LinkDirection.carry."""
        seconds = nbytes / self.bandwidth
        if nbytes <= PACKET_BYTES and not self.under_way:
            self.packets_until = max(end.slip_in(seconds) for end in self._ends) + self.latency
            self.events.at(self.packets_until, arrive)
            return
        self.under_way += 1
        passing = _Passing(self, seconds, arrive)
        self.leaving.submit(passing.begins, passing.left)


class _Passing:
    """Message in transit between two hosts."""

    __slots__ = ("arrive", "last", "seconds", "there", "wire")

    def __init__(self, wire: HostToHostLink, seconds: float, arrive: Callable[[], None]) -> None:
        self.wire, self.seconds, self.arrive = wire, seconds, arrive
        self.there = math.inf  # when its last bytes are at the target
        self.last = False  # whether it passed the target's interface completely before that

    def begins(self) -> float:
        """Begin sending the first bytes."""
        self.wire.events.after(self.wire.latency, self._enters)
        return self.seconds

    def left(self) -> None:
        """Record that the last bytes have left."""
        self.there = self.wire.events.now + self.wire.latency
        if self.last:
            self.wire.events.at(self.there, self._whole)

    def _enters(self) -> None:
        self.wire.entering.submit(self._takes, self._in)

    def _takes(self) -> float:
        return self.seconds

    def _in(self) -> None:
        self.last = self.there > self.wire.events.now
        if not self.last:
            self._whole()
        elif self.there < math.inf:
            self.wire.events.at(self.there, self._whole)

    def _whole(self) -> None:
        wire = self.wire
        if wire.packets_until > wire.events.now:
            wire.events.at(wire.packets_until, self._whole)
            return
        wire.under_way -= 1
        self.arrive()


@dataclass(frozen=True)
class Network:
    """Network of a cluster: what all its channels share."""

    events: EventQueue
    cost: CostModel
    codec: Codec | None = field(default=None, kw_only=True)  # see wire/compression.py
    traffic: TrafficCounter = field(default_factory=TrafficCounter, kw_only=True)

    def __post_init__(self) -> None:
        self.traffic.item = 4 if self.codec is None else 2

    def arrived(self, values: Floats) -> Floats:
        """Values as they arrive after transmission between a worker and a server."""
        return rounded(self.codec, values)

    def wire_bytes(self, frame: Frame, nbytes: int, within: bool = False) -> int:
        """Bytes on the wire of a frame, `within` a host or not, with a payload of `nbytes` before compression."""
        nbytes = nbytes if self.codec is None else narrowed_bytes(frame.message, nbytes)
        self.traffic.sent(frame.message, MESSAGE_BYTES, nbytes, within)
        return MESSAGE_BYTES + nbytes

    def connect(self, near: Endpoint, far: Endpoint) -> VirtualChannel:
        """Connect two nodes; returns the near end."""
        here, there = VirtualChannel(self, near, far), VirtualChannel(self, far, near)
        here.other, there.other = there, here
        return here

    def wire(self, source: Host, target: Host) -> LinkDirection:
        """Make one direction of a new connection, which keeps the order of messages."""
        return (
            HostLocalLink(self.events, self.cost)
            if source is target
            else HostToHostLink(self.events, self.cost, source, target)
        )


class VirtualChannel:
    """End of a connection."""

    def __init__(self, network: Network, near: Endpoint, far: Endpoint) -> None:
        self.network, self.near, self.far = network, near, far
        self.peer = far.peer
        self.other: VirtualChannel | None = None
        self.wire = network.wire(near.host, far.host)

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """See Channel.send; the payload belongs to the receiver from here on."""
        data = NO_BYTES if payload is None else payload
        if self.network.codec is not None and isinstance(message, VALUES):
            ids = ids_of(message)
            values = self.network.arrived(data[ids:].view(np.float32))
            data = np.concatenate([data[:ids], values.view(np.uint8)])
        self.carry(Frame(kind_of(message), b"", data, None, message), data.nbytes)

    def carry(self, frame: Frame, nbytes: int) -> None:
        """Send a frame that counts as one with a payload of `nbytes` before compression."""
        if self.other is not None:
            nbytes = self.network.wire_bytes(frame, nbytes, self.near.host is self.far.host)
            self.wire.carry(nbytes, lambda: self._arrive(frame))

    def _arrive(self, frame: Frame) -> None:
        if self.other is not None:
            self.far.receive(self.other, frame)

    def close(self) -> None:
        """Close the connection; the peer is told after all earlier messages."""
        if self.other is not None:
            self.carry(Frame(CLOSED, b"", NO_BYTES), 0)


class VirtualHub:
    """Hub of the coordinator: its `poll` advances virtual time."""

    address = "C"

    def __init__(self, events: EventQueue, host: Host, seconds: float) -> None:
        """Make the hub. `seconds`: process time for every message."""
        self.events, self.host, self.peer = events, host, COORDINATOR
        self.process = SerialProcess(host.cores)
        self.refused: Counter[str] = Counter()
        self.traffic = TrafficCounter()  # of the whole cluster
        self.counts: Counter[str] = Counter()  # message faults that the fault plan caused
        self.waits = 0.0  # seconds without events to wait for, where a node may hang
        self._waited = 0.0
        self.away = 0.0  # seconds for which the coordinator was absent
        self._left: float | None = None
        self._seconds = seconds
        self._inbox: deque[tuple[Channel, Frame]] = deque()

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """See Endpoint.receive."""
        self.process.submit(self._cost, self._inbox.append, (channel, frame))

    def _cost(self) -> float:
        return self._seconds

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See Hub.poll; one frame at a time. Raises ClusterError when no event is left."""
        events = self.events
        if self.absent:
            while self.absent:
                events.step()
            return []
        deadline = float("inf") if timeout is None else events.now + timeout
        if timeout and deadline == events.now:  # shorter than the clock's resolution: the clock would never advance
            deadline = math.nextafter(deadline, math.inf)
        while not self._inbox:
            if not len(events) and self._waited < self.waits and deadline < float("inf"):
                self._waited += deadline - events.now
                events.wait(deadline)
                return []
            if not len(events):
                raise ClusterError("Nothing is left to happen in the virtual cluster; this is a bug, please report it.")
            if events.next_time > deadline:
                events.wait(deadline)
                return []
            events.step()
        self._waited = 0.0
        return [self._inbox.popleft()]

    @property
    def absent(self) -> bool:
        """Whether the coordinator is absent."""
        return self._left is not None

    def leave(self) -> None:
        """Make the coordinator absent: messages wait from now on."""
        self._left = self.now()
        self.process.hold()

    def come_back(self) -> None:
        """Make the coordinator present again."""
        assert self._left is not None
        self.away, self._left = self.away + self.now() - self._left, None
        self.process.release()

    def now(self) -> float:
        """Virtual wall-clock time in seconds."""
        return self.events.clock

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> Channel:
        """Raise WireError: nodes connect to the coordinator, it does not connect."""
        raise WireError(f"The virtual coordinator cannot connect to {address}.")

    def close(self) -> None:
        """Do nothing."""

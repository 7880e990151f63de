"""In-memory hubs for tests: nodes are threads of one process, frames go through queues.

Messages are packed and unpacked as on the wire, so that tests exercise the same descriptors.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import Counter
from typing import Any

import numpy as np

from gbactl.errors import WireError
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import COORDINATOR, NO_BYTES, Channel
from gbactl.wire.frames import CLOSED, PREFIX, Bytes, Frame
from gbactl.wire.messages import kind_of, pack
from gbactl.wire.node_measurements import TrafficCounter


class MemoryChannel:
    """Channel between two hubs of one process."""

    def __init__(self, mine: MemoryHub, peer: Peer) -> None:
        self.peer = peer
        self._hub = mine
        self.other: MemoryChannel | None = None

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate fresh memory for a payload."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Put a frame into the peer's inbox; the payload is copied, as a wire would."""
        other = self.other  # the peer may close it meanwhile
        if other is not None:
            data, descriptor = NO_BYTES if payload is None else payload.copy(), pack(message)
            self._hub.traffic.sent(message, PREFIX + len(descriptor), data.size)
            other._hub.inbox.put((other, Frame(kind_of(message), descriptor, data)))

    def close(self) -> None:
        """Close the channel and tell the peer that the connection is lost."""
        other, self.other = self.other, None
        if other is not None:  # the peer may close it meanwhile
            other.other = None
            other._hub.inbox.put((other, Frame(CLOSED, b"", NO_BYTES)))


class MemoryHub:
    """In-memory hub of one node; `network` maps addresses to hubs and is shared by the nodes of a test.

    As on sockets, only a coordinator has the address of the one before: a dead server's leads nowhere."""

    def __init__(self, network: dict[str, MemoryHub], me: Peer) -> None:
        self.network = network
        self.me = me
        self.address = str(me) if me.role == "coordinator" or not me.incarnation else f"{me}-{me.incarnation}"
        self.refused: Counter[str] = Counter()
        self.traffic = TrafficCounter()
        self.inbox: queue.SimpleQueue[tuple[Channel, Frame]] = queue.SimpleQueue()
        self._channels: list[MemoryChannel] = []
        self._closed = False
        network[self.address] = self

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> MemoryChannel:
        """Connect two hubs of one network."""
        there = self.network.get(address)
        if there is None or self._closed:
            raise WireError(f"No gbactl process answers at {address}.")
        near, far = MemoryChannel(self, there.me), MemoryChannel(there, self.me)
        near.other, far.other = far, near
        self._channels.append(near)
        there._channels.append(far)
        if there._closed:  # meanwhile
            far.close()
        return near

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See Hub.poll."""
        found: list[tuple[Channel, Frame]] = []
        with contextlib.suppress(queue.Empty):
            found.append(self.inbox.get(block=timeout != 0, timeout=timeout or None))
            while True:
                found.append(self.inbox.get_nowait())
        return found

    def now(self) -> float:
        """See Hub.now."""
        return time.monotonic()

    def close(self) -> None:
        """Close every channel and leave the network."""
        self._closed = True
        if self.network.get(self.address) is self:
            del self.network[self.address]
        for channel in self._channels:
            channel.close()

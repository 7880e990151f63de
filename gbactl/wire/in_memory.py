"""The in-memory twin of the sockets: hubs in threads of one process, frames through queues.

Messages are packed and unpacked as on the wire, so that a test on it exercises the same descriptors.
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
from gbactl.wire.channel import COORDINATOR, NO_BYTES, Channel
from gbactl.wire.frames import CLOSED, PREFIX, Bytes, Frame
from gbactl.wire.messages import kind_of, pack
from gbactl.wire.traffic import Traffic


class MemoryChannel:
    """One direction pair between two hubs."""

    def __init__(self, mine: MemoryHub, peer: Peer) -> None:
        self.peer = peer
        self._hub = mine
        self.other: MemoryChannel | None = None

    def reserve(self, nbytes: int) -> Bytes:
        """Fresh memory."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Put a frame into the peer's inbox; the payload is copied, as a wire would."""
        other = self.other  # the peer may close it meanwhile
        if other is not None:
            data, descriptor = NO_BYTES if payload is None else payload.copy(), pack(message)
            self._hub.traffic.sent(message, PREFIX + len(descriptor), data.size)
            other._hub.inbox.put((other, Frame(kind_of(message), descriptor, data)))

    def close(self) -> None:
        """Tell the peer that the connection is gone."""
        other, self.other = self.other, None
        if other is not None:  # the peer may close it meanwhile
            other.other = None
            other._hub.inbox.put((other, Frame(CLOSED, b"", NO_BYTES)))


class MemoryHub:
    """A node's end; `network` maps addresses to hubs and is shared by the test's nodes."""

    def __init__(self, network: dict[str, MemoryHub], me: Peer) -> None:
        self.network = network
        self.me = me
        self.address = str(me)
        self.refused: Counter[str] = Counter()
        self.traffic = Traffic()
        self.inbox: queue.SimpleQueue[tuple[Channel, Frame]] = queue.SimpleQueue()
        self._channels: list[MemoryChannel] = []
        self._closed = False
        network[self.address] = self

    def connect(
        self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR
    ) -> MemoryChannel:
        """Connect two hubs of one network."""
        there = self.network.get(address)
        if there is None or self._closed:
            raise WireError(f"No gbactl process answers at {address}.")
        near, far = MemoryChannel(self, there.me), MemoryChannel(there, self.me)
        near.other, far.other = far, near
        self._channels.append(near)
        there._channels.append(far)
        return near

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See channel.Hub."""
        found: list[tuple[Channel, Frame]] = []
        with contextlib.suppress(queue.Empty):
            found.append(self.inbox.get(block=timeout != 0, timeout=timeout or None))
            while True:
                found.append(self.inbox.get_nowait())
        return found

    def now(self) -> float:
        """See channel.Hub."""
        return time.monotonic()

    def close(self) -> None:
        """Close every channel."""
        self._closed = True
        if self.network.get(self.address) is self:
            del self.network[self.address]
        for channel in self._channels:
            channel.close()

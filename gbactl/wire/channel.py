"""The one small interface between nodes: a channel carries frames, a hub has many channels.

Two implementations: sockets (event_loop.py; payloads of one host in shared_memory.py) and queues in memory
(in_memory.py), so that whole clusters are testable without a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gbactl.wire.auth import Peer
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.traffic import Traffic

COORDINATOR = Peer("coordinator", 0)
NO_BYTES: Bytes = np.empty(0, np.uint8)
MOST_KEPT = 1 << 30  # bytes of buffers that wait to be used again, a connection


class Channel(Protocol):
    """An authenticated, ordered connection to one peer."""

    peer: Peer

    def reserve(self, nbytes: int) -> Bytes:
        """Memory to write an outgoing payload into, uint8[nbytes]. Must be sent or given up before the next."""

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Queue a message; never blocks. `payload` comes from `reserve`, or is any contiguous uint8 array."""

    def close(self) -> None:
        """Close; what is queued may be lost."""


class Hub(Protocol):
    """A node's end of the network."""

    address: str
    #: what was turned away, by reason
    refused: Counter[str]
    #: what was sent, in bytes
    traffic: Traffic

    def connect(
        self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR
    ) -> Channel:
        """Connect and authenticate, blocking. With sizes (out slot, in slot): use shared memory.

        Raises WireError when the other end is not there or does not know the key."""

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """Frames that have arrived; waits up to `timeout` seconds for the first (None: for ever).

        A lost connection is told once, as a frame of kind frames.CLOSED."""

    def now(self) -> float:
        """The time in seconds; only differences mean anything."""

    def close(self) -> None:
        """Close every channel and stop listening."""


class BufferPool:
    """Reuses receive buffers: a fresh multi-megabyte allocation page-faults at every use. Keeps `keep` of them, of
    MOST_KEPT bytes together."""

    def __init__(self, keep: int = 8) -> None:
        self.keep = keep
        self.free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """A buffer of at least `nbytes`."""
        for i, buffer in enumerate(self.free):
            if buffer.size >= nbytes:
                return self.free.pop(i)
        return np.empty(max(nbytes, 4096), np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Hand a buffer back."""
        if len(self.free) < self.keep and sum(kept.size for kept in self.free) + buffer.size <= MOST_KEPT:
            self.free.append(buffer)


class AroundHub:
    """`hub` does what is not changed here. `counts`: what was done to messages on their way, by name."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address, self.refused, self.traffic = hub.address, hub.refused, hub.traffic
        self.counts: Mapping[str, int] = getattr(hub, "counts", {})

    def now(self) -> float:
        """See channel.Hub."""
        return self.hub.now()

    def close(self) -> None:
        """See channel.Hub."""
        self.hub.close()

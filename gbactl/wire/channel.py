"""Interface between nodes: a channel carries frames to one peer, a hub has many channels.

Two implementations: sockets (event_loop.py; payloads within one host in shared_memory.py) and queues in memory
(in_memory.py), with which whole clusters are tested without a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gbactl.wire.auth import Peer
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.traffic import TrafficCounter

COORDINATOR = Peer("coordinator", 0)
NO_BYTES: Bytes = np.empty(0, np.uint8)
MOST_KEPT = 1 << 30  # bytes of unused buffers that a connection keeps


class Channel(Protocol):
    """Authenticated, ordered connection to one peer."""

    peer: Peer

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory for an outgoing payload, uint8[nbytes]. It must be sent or given up before the next call."""

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Queue a message without blocking. `payload` comes from `reserve`, or is any contiguous uint8 array."""

    def close(self) -> None:
        """Close the connection; queued messages may be lost."""


class Hub(Protocol):
    """A node's end of the network: its channels and its listening address."""

    address: str
    #: rejected connections and frames, by reason
    refused: Counter[str]
    #: bytes sent, by kind
    traffic: TrafficCounter

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> Channel:
        """Connect and authenticate, blocking. With `segment_bytes` (out slot, in slot): use shared memory.

        Raises WireError when the other end does not answer or does not know the key."""

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """Return the frames that have arrived; wait up to `timeout` seconds for the first (None: for ever).

        A lost connection is reported once, as a frame of kind frames.CLOSED."""

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""

    def close(self) -> None:
        """Close every channel and stop listening."""


class BufferPool:
    """Pool of receive buffers: at most `keep` of them, MOST_KEPT bytes together.

    A fresh multi-megabyte allocation would page-fault at every use."""

    def __init__(self, keep: int = 8) -> None:
        self.keep = keep
        self.free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """Take a buffer of at least `nbytes` from the pool, or allocate one."""
        for i, buffer in enumerate(self.free):
            if buffer.size >= nbytes:
                return self.free.pop(i)
        return np.empty(max(nbytes, 4096), np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Return a receive buffer to the pool."""
        if len(self.free) < self.keep and sum(kept.size for kept in self.free) + buffer.size <= MOST_KEPT:
            self.free.append(buffer)


class HubWrapper:
    """Base of hubs that wrap another hub and change some of its methods.

    `counts`: messages that the wrapped hub changed on their way, by name of the change."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address, self.refused, self.traffic = hub.address, hub.refused, hub.traffic
        self.counts: Mapping[str, int] = getattr(hub, "counts", {})

    def now(self) -> float:
        """See Hub.now."""
        return self.hub.now()

    def close(self) -> None:
        """See Hub.close."""
        self.hub.close()

"""Interface between nodes: a channel carries frames to one peer, a hub has many channels.

Two implementations: sockets (node_connections.py; payloads within one host in shared_memory.py) and queues in memory
(tests/support/in_memory.py), with which whole clusters are tested without a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gbactl.wire.auth import Peer
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.node_measurements import TrafficCounter

COORDINATOR = Peer("coordinator", 0)
NO_BYTES: Bytes = np.empty(0, np.uint8)
MOST_FREE, MOST_KEPT = 8, 1 << 30  # unused buffers that a connection keeps: their number, and bytes in all


class Channel(Protocol):
    """Authenticated, ordered connection to one peer."""

    peer: Peer

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory for an outgoing payload, uint8[nbytes].

        Send or drop the payload before the next call."""

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Queue a message without blocking; `payload` comes from `reserve`, or is any contiguous uint8 array."""

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
        """Connect to a node and authenticate; blocks. Two slot sizes in `segment_bytes` select shared memory.

        `segment_bytes`: bytes of the slot for outgoing payloads and of the one for incoming payloads. Raises WireError
        when the other end does not answer or does not know the key."""

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """Return the frames that have arrived; wait up to `timeout` seconds for the first (None: for ever).

        A lost connection is reported once, as a frame of kind frames.CLOSED."""

    def now(self) -> float:
        """Return the clock's time in seconds, from an arbitrary origin."""

    def close(self) -> None:
        """Close every channel and stop listening."""


class BufferPool:
    """Pool of free receive buffers: at most MOST_FREE buffers and MOST_KEPT bytes in total.

    A fresh multi-megabyte allocation would page-fault at every use."""

    def __init__(self) -> None:
        self.free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of at least `nbytes` from the pool, or a new one if none is free."""
        for i, buffer in enumerate(self.free):
            if buffer.size >= nbytes:
                return self.free.pop(i)
        return np.empty(max(nbytes, 4096), np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Return a receive buffer to the pool, or free it if the pool is full."""
        if len(self.free) < MOST_FREE and sum(kept.size for kept in self.free) + buffer.size <= MOST_KEPT:
            self.free.append(buffer)


class ChannelWrapper:
    """Base of channels that pass their messages on to another channel, `inner`, changed or unchanged."""

    def __init__(self, inner: Channel) -> None:
        self.inner, self.peer = inner, inner.peer

    def reserve(self, nbytes: int) -> Bytes:
        return self.inner.reserve(nbytes)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        self.inner.send(message, payload)

    def close(self) -> None:
        self.inner.close()


W = TypeVar("W", bound=ChannelWrapper)


class HubWrapper(Generic[W]):
    """Base of a hub around another hub.

    Channels for which `wrap` returns a wrapper are wrapped too; the others are passed through.

    `counts`: messages that the wrapped hub changed on their way, by name of the change."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address, self.refused, self.traffic = hub.address, hub.refused, hub.traffic
        self.counts: Mapping[str, int] = getattr(hub, "counts", {})
        self._wrappers: dict[int, W] = {}

    def wrap(self, inner: Channel) -> W | None:
        """Create the wrapper of a channel; None for a channel that needs none."""
        return None

    def wrapper_of(self, inner: Channel) -> W | None:
        """Return the wrapper of a channel, created at the first call; None for a channel that needs none."""
        known = self._wrappers.get(id(inner))
        if known is None and (known := self.wrap(inner)) is not None:
            self._wrappers[id(inner)] = known
        return known

    def forget(self, inner: Channel) -> None:
        """Remove the wrapper of a closed channel."""
        del self._wrappers[id(inner)]

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> Channel:
        inner = self.hub.connect(address, segment_bytes, peer)
        return self.wrapper_of(inner) or inner

    def now(self) -> float:
        return self.hub.now()

    def close(self) -> None:
        self.hub.close()

"""Replacement of a worker's channel to a failed server by a channel to the server's successor.

Pushes to a shard without a server wait here. Pushes sent to a failed server are lost; an empty slice replaces each on
its successor, so that the gradient is announced nevertheless. A push costs a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from gbactl.errors import WireError
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import Bytes
from gbactl.wire.messages import Push, ShardRelocated

REMEMBERED = 256  # pushes per shard: more than a worker can have in flight
Dial = Callable[[str, Peer], Channel]


class ParkedConnection:
    """Stand-in for a lost connection: queues pushes for the replacement server, and drops other messages."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._lock = threading.Lock()
        self._queued: list[tuple[Push, Bytes | None]] = []
        self._replacement: Channel | None = None

    def reserve(self, nbytes: int) -> Bytes:
        return np.empty(nbytes, np.uint8)

    def send(self, message: object, payload: Bytes | None = None) -> None:
        if not isinstance(message, Push):
            return
        with self._lock:
            if self._replacement is None:
                self._queued.append((message, payload))
            else:
                self._replacement.send(message, payload)

    def close(self) -> None:
        """Do nothing, as there is no connection."""

    def forward_to(self, channel: Channel) -> None:
        """Send the queued pushes over the new connection `channel`, and forward later pushes to it."""
        with self._lock:
            for message, payload in self._queued:
                channel.send(message, payload)
            self._queued.clear()
            self._replacement = channel


class Routes:
    """Channels of all shards; `servers` is updated in place. Any thread may push, only one thread may update."""

    def __init__(self, servers: list[Channel]) -> None:
        self.servers = servers
        self._lock = threading.Lock()
        self._shard = {id(channel): shard for shard, channel in enumerate(servers)}
        self._sent: list[deque[tuple[Push, Channel]]] = [deque(maxlen=REMEMBERED) for _ in servers]

    def shard_of(self, channel: Channel) -> int | None:
        """Return the shard that a channel leads to; None if the channel was replaced."""
        return self._shard.get(id(channel))

    def leads_to(self, shard: int, incarnation: int) -> bool:
        """Whether a shard's channel already leads to the server with incarnation number `incarnation`."""
        channel = self.servers[shard]
        return not isinstance(channel, ParkedConnection) and channel.peer.incarnation == incarnation

    def channel_for_push(self, shard: int, push: Push) -> Channel:
        """Record a push, to repeat it if the server is replaced; return the channel for it."""
        with self._lock:
            channel = self.servers[shard]
            self._sent[shard].append((push, channel))
        return channel

    def park(self, shard: int) -> None:
        """Replace the channel of a failed server by a ParkedConnection until a replacement server is connected."""
        self._replace(shard, ParkedConnection(self.servers[shard].peer))

    def renew(self, message: ShardRelocated, dial: Dial) -> Channel | None:
        """Connect to a shard's new server and push the slices that it lacks; None if the new server has failed, too."""
        shard, batches = message.shard, set(message.batches)
        try:
            channel = dial(message.address, Peer("server", shard, message.incarnation))
        except WireError:
            if not isinstance(self.servers[shard], ParkedConnection):
                self.park(shard)
            return None
        old = self._replace(shard, channel)
        parked = old if isinstance(old, ParkedConnection) else None
        for push, sent_on in list(self._sent[shard]):
            if sent_on not in (parked, channel) and (push.phase, push.batch) in batches:
                channel.send(push._replace(rows=~push.rows, dense=0))
        if parked is not None:
            parked.forward_to(channel)
        return channel

    def _replace(self, shard: int, channel: Channel) -> Channel:
        with self._lock:
            old, self.servers[shard] = self.servers[shard], channel
            self._shard.pop(id(old), None)
            self._shard[id(channel)] = shard
        old.close()
        return old

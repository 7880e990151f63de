"""A worker's connections to the servers, of which one may be lost and another come in its place.

What is pushed to a shard while nobody serves it waits here. What had been sent to a server that is gone is lost; an
empty part takes its place on the next one, so that the gradient is announced all the same. Costs a lock a push.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from gbactl.errors import WireError
from gbactl.wire.auth import Peer
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Bytes
from gbactl.wire.messages import Push, Relocated

REMEMBERED = 256  # pushes a shard: more than a worker can have out
Dial = Callable[[str, Peer], Channel]


class Parked:
    """In the place of a connection that is lost: keeps pushes for the next one, forgets what else is sent."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._lock = threading.Lock()
        self._held: list[tuple[Push, Bytes | None]] = []
        self._then: Channel | None = None

    def reserve(self, nbytes: int) -> Bytes:
        """See channel.Channel."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: object, payload: Bytes | None = None) -> None:
        """See channel.Channel."""
        if not isinstance(message, Push):
            return
        with self._lock:
            if self._then is None:
                self._held.append((message, payload))
            else:
                self._then.send(message, payload)

    def close(self) -> None:
        """See channel.Channel."""

    def hand_on(self, channel: Channel) -> None:
        """Send what was held, and what is still on its way here, to another connection."""
        with self._lock:
            for message, payload in self._held:
                channel.send(message, payload)
            self._held.clear()
            self._then = channel


class Routes:
    """`servers`: the channel of each shard, kept up to date in place. Any thread may push; one changes them."""

    def __init__(self, servers: list[Channel]) -> None:
        self.servers = servers
        self._lock = threading.Lock()
        self._shard = {id(channel): shard for shard, channel in enumerate(servers)}
        self._over: list[Channel] = []  # held, so that no other channel has the id of one of them
        self._sent: list[deque[tuple[Push, Channel]]] = [deque(maxlen=REMEMBERED) for _ in servers]

    def shard_of(self, channel: Channel) -> int | None:
        """Which shard a channel is that of; None if it is not any more."""
        return self._shard.get(id(channel))

    def serves(self, shard: int, epoch: int) -> bool:
        """Whether the connection to a shard is to that process already."""
        channel = self.servers[shard]
        return not isinstance(channel, Parked) and channel.peer.epoch == epoch

    def pushing(self, shard: int, push: Push) -> Channel:
        """Where a part goes that is sent now."""
        with self._lock:
            channel = self.servers[shard]
            self._sent[shard].append((push, channel))
        return channel

    def lose(self, shard: int) -> None:
        """Nobody serves a shard until somebody else does."""
        self._replace(shard, Parked(self.servers[shard].peer))

    def renew(self, message: Relocated, dial: Dial) -> Channel | None:
        """Another process serves a shard; None if that is gone again."""
        shard, numbers = message.shard, message.batches
        wanted = set(zip(numbers[::2], numbers[1::2], strict=True))
        try:
            channel = dial(message.address, Peer("server", shard, message.epoch))
        except WireError:
            if not isinstance(self.servers[shard], Parked):
                self.lose(shard)
            return None
        old = self._replace(shard, channel)
        held = old if isinstance(old, Parked) else None
        for push, where in list(self._sent[shard]):
            if where not in (held, channel) and (push.phase, push.batch) in wanted:
                channel.send(push._replace(rows=~push.rows, dense=0))
        if held is not None:
            held.hand_on(channel)
        return channel

    def _replace(self, shard: int, channel: Channel) -> Channel:
        with self._lock:
            old, self.servers[shard] = self.servers[shard], channel
            self._shard.pop(id(old), None)
            self._shard[id(channel)] = shard
            self._over.append(old)
        old.close()
        return old

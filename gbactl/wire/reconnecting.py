"""Connection to the coordinator that survives a failover.

A new coordinator listens at the same address. A node that loses its connection dials again, repeats its Hello and does
nothing else until it is answered. Messages that were sent and not read are lost; the new coordinator asks for them (see
coordinator/coordinator_failover.py), and the node answers from its own record of batches or slices. A node that has no
place in the run yet, or none any more, ends when its connection is lost.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from gbactl.errors import WireError
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import COORDINATOR, Channel, ChannelWrapper, Hub, HubWrapper
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import (
    KIND,
    Hello,
    Ready,
    ShardAddresses,
    Stop,
    Takeover,
    decode,
)

REDIAL_SECONDS, PAUSE_SECONDS = 5.0, 0.05  # duration of attempts to reconnect, and the pause between them
MOST_TRIES = 5  # connections in a row that may break before a frame arrives
log = logging.getLogger(__name__)


class ReconnectingChannel(ChannelWrapper):
    """Channel to the coordinator that survives a failover; `inner` is the current connection."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.ready = False
        self._hello: Hello | None = None

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Send a message; it is dropped if the connection is lost."""
        if isinstance(message, Hello):
            self._hello = message
        self.ready |= isinstance(message, Ready)
        self.inner.send(message, payload)

    def renew(self, inner: Channel) -> None:
        """Continue over the new connection `inner`, and send the Hello again."""
        self.inner = inner
        if self._hello is not None:
            inner.send(self._hello)


class ReconnectingHub(HubWrapper[ReconnectingChannel]):
    """Hub that reconnects to the coordinator.

    A `first` incarnation has its place in the run as soon as it is ready, a successor once the coordinator gives it
    work."""

    def __init__(self, hub: Hub, first: bool = True) -> None:
        super().__init__(hub)
        self._first_incarnation = first
        self._coordinator: ReconnectingChannel | None = None
        self._address = ""
        self._given_work = self._stopped = False
        self._tries = self._term = 0

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> Channel:
        inner = self.hub.connect(address, segment_bytes, peer)
        if peer != COORDINATOR:
            return inner
        self._address, self._coordinator = address, ReconnectingChannel(inner)
        return self._coordinator

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """Return the frames that have arrived; a lost coordinator is reported only if reconnecting fails."""
        found: list[tuple[Channel, Frame]] = []
        coordinator = self._coordinator
        for channel, frame in self.hub.poll(timeout):
            if coordinator is None or channel is not coordinator.inner:
                found.append((channel, frame))
            elif frame.kind != frames.CLOSED and self._is_current(frame):
                self._on_kind(frame.kind)
                found.append((coordinator, frame))
            elif not self._reconnect(coordinator):
                found.append((coordinator, frame))
        return found

    def _is_current(self, frame: Frame) -> bool:
        """Return whether to accept a frame: false for a Takeover of an outdated term."""
        if frame.kind != KIND[Takeover]:
            return True
        term = decode(frame).term
        if term <= self._term:
            return False
        self._term = term
        return True

    def _on_kind(self, kind: int) -> None:
        self._tries = 0
        self._given_work |= kind != KIND[ShardAddresses]
        self._stopped |= kind == KIND[Stop]

    def _reconnect(self, coordinator: ReconnectingChannel) -> bool:
        """Reconnect to the coordinator's address; returns whether a coordinator answered."""
        coordinator.close()
        is_member = (self._given_work or (self._first_incarnation and coordinator.ready)) and not self._stopped
        deadline = self.hub.now() + REDIAL_SECONDS
        while is_member and self._tries < MOST_TRIES and self.hub.now() < deadline:
            try:
                inner = self.hub.connect(self._address)
            except WireError:
                time.sleep(PAUSE_SECONDS)
                continue
            self._tries += 1
            log.warning("the coordinator was gone; another one is there")
            coordinator.renew(inner)
            return True
        return False

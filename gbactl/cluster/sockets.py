"""A node's sockets on one selector: TCP, or Unix sockets between the processes of one host.

One thread polls; any thread may reserve and send (one lock a hub).
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from gbactl.cluster import auth, frames, shm
from gbactl.cluster.addresses import address_of, dial, listen
from gbactl.cluster.auth import Peer
from gbactl.cluster.channel import COORDINATOR, NO_BYTES, Channel
from gbactl.cluster.frames import Frame
from gbactl.cluster.socket_channel import SocketChannel
from gbactl.errors import WireError

HANDSHAKE_SECONDS = 10.0
log = logging.getLogger(__name__)


class _Greeting:
    """A connection that has not proved yet that it knows the key."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.nonce = auth.nonce()
        self.got = b""
        sock.send(auth.greeting(self.nonce))


class SocketHub:
    """Channels of one node on one selector. `refused` counts what was turned away, by reason."""

    def __init__(self, key: bytes, me: Peer, bind: str | None = None, listener: socket.socket | None = None) -> None:
        self.key = key
        self.me = me
        self.refused: Counter[str] = Counter()
        self.on_refused: Callable[[str], None] = lambda _: None
        self.address = ""
        self.patience = HANDSHAKE_SECONDS  # the other end may still be importing, or filling its table
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._ready: deque[tuple[Channel, Frame]] = deque()
        self._channels: set[SocketChannel] = set()
        if listener is None and bind is not None:
            self._listener = listen(bind)
        if self._listener is not None:
            self._listener.setblocking(False)
            self.address = address_of(self._listener)
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def connect(
        self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR
    ) -> SocketChannel:
        """Connect, authenticate and agree on shared memory; blocks up to `patience` seconds."""
        try:
            sock = dial(address, self.patience)
            hello = _exactly(sock, auth.GREETING.size)
            mine = auth.nonce()
            sock.sendall(auth.answer(self.key, hello, self.me, mine))
            keys = auth.confirm(self.key, hello, mine, _exactly(sock, auth.PROOF_BYTES))
        except OSError as error:
            raise WireError(f"No gbactl process answers at {address} ({error}).") from error
        channel = SocketChannel(
            sock, peer, (keys.from_connector, keys.from_listener), self._lock
        )
        self._add(channel)
        if segment_bytes != (0, 0) and shm.available():
            self._agree_on_segment(channel, segment_bytes)
        return channel

    def _agree_on_segment(self, channel: SocketChannel, segment_bytes: tuple[int, int]) -> None:
        channel.offer(*segment_bytes)
        while channel.offering:
            arrived = self._collect(self.patience)
            if not arrived and channel.offering:
                channel.close()
                raise WireError("A peer does not answer the offer of shared memory.")
            self._ready.extend(arrived)

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See channel.Hub."""
        if self._ready:
            found = list(self._ready)
            self._ready.clear()
            return found
        return self._collect(timeout)

    def _collect(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        found: list[tuple[Channel, Frame]] = []
        events = self._selector.select(timeout)
        with self._lock:
            for entry, mask in events:
                if isinstance(entry.data, SocketChannel):
                    self._serve(entry.data, mask, found)
                elif isinstance(entry.data, _Greeting):
                    self._greet(entry.data)
                else:
                    self._accept()
        return found

    def _serve(self, channel: SocketChannel, mask: int, found: list[tuple[Channel, Frame]]) -> None:
        if channel.closed:
            return
        if mask & selectors.EVENT_WRITE:
            channel.flush()
            if not channel.pending:
                self._selector.modify(channel.sock, selectors.EVENT_READ, channel)
        if not mask & selectors.EVENT_READ:
            return
        arrived: list[Frame] = []
        try:
            channel.receive(arrived)
        except WireError as error:
            self._refuse(f"{channel.peer}: {error}")
            channel.close()
        except OSError:
            channel.close()
        if channel.closed:
            arrived.append(Frame(frames.CLOSED, b"", NO_BYTES))
        found.extend((channel, frame) for frame in arrived)

    def _forget(self, channel: SocketChannel) -> None:
        self._channels.discard(channel)
        self._selector.unregister(channel.sock)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
            self._selector.register(sock, selectors.EVENT_READ, _Greeting(sock))
        except OSError:
            return

    def _greet(self, greeting: _Greeting) -> None:
        try:
            greeting.got += greeting.sock.recv(auth.ANSWER.size - len(greeting.got)) or _closed()
            if len(greeting.got) < auth.ANSWER.size:
                return
            peer, proof, keys = auth.accept(self.key, greeting.nonce, greeting.got)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._refuse(str(error))
            self._selector.unregister(greeting.sock)
            greeting.sock.close()
            return
        self._selector.unregister(greeting.sock)
        greeting.sock.send(proof)
        self._add(
            SocketChannel(greeting.sock, peer, (keys.from_listener, keys.from_connector), self._lock)
        )

    def _add(self, channel: SocketChannel) -> None:
        channel.on_want_write = self._want_write
        channel.on_close = self._forget
        self._channels.add(channel)
        self._selector.register(channel.sock, selectors.EVENT_READ, channel)

    def _want_write(self, channel: SocketChannel) -> None:
        if channel in self._channels:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(channel.sock, both, channel)

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
        log.warning("refused %s", reason)
        self.on_refused(reason)

    def now(self) -> float:
        """See channel.Hub."""
        return time.monotonic()

    def drain(self, seconds: float = 1.0) -> None:
        """Give queued bytes a moment to leave."""
        deadline = time.monotonic() + seconds
        while any(c.pending for c in self._channels) and time.monotonic() < deadline:
            self._ready.extend(self._collect(0.05))

    def close(self) -> None:
        """Flush, close everything, stop listening."""
        self.drain()
        for channel in list(self._channels):
            channel.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()


def _closed() -> bytes:
    raise ConnectionResetError("A connection closed before it proved that it knows this run's key.")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other end closed the connection; is it of the same run?")
        data += part
    return data



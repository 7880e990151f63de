"""All socket connections of one node (its hub): TCP, or Unix sockets within one host, polled by one selector.

One thread polls; any thread may reserve and send (one lock a hub).
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter, deque

from gbactl import shared_memory_names
from gbactl.errors import WireError
from gbactl.wire import auth, frames
from gbactl.wire.auth import Peer, SessionKeys, TlsContexts
from gbactl.wire.channel_interface import COORDINATOR, NO_BYTES, Channel
from gbactl.wire.frames import Frame
from gbactl.wire.listener import (
    HANDSHAKE_SECONDS,
    Admission,
    RejectionCounter,
    UnauthenticatedConnection,
    address_of,
    allow_descriptors,
    dial,
    listen,
    receive_exactly,
)
from gbactl.wire.node_measurements import TrafficCounter
from gbactl.wire.socket_channel import SILENCE_SECONDS, QueuedBytes, SocketChannel

AGAIN_SECONDS = (0.0, 0.02, 0.1, 0.5)  # pause before each attempt to connect


class SocketHub:
    """Socket channels of one node on one selector.

    `refused` counts rejected connections and frames by reason. With `encrypt`, every connection but Unix sockets uses
    TLS. `silence`: seconds without an acknowledgement after which a connection is closed."""

    def __init__(
        self, key: bytes, me: Peer, bind: str | None = None, listener: socket.socket | None = None,
        encrypt: bool = False, silence: float = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        allow_descriptors()
        self.key = key
        self.me = me
        self.silence = silence
        rejections = RejectionCounter()
        self.refused: Counter[str] = rejections
        self._refuse = rejections.count
        self.address = ""
        self.patience = HANDSHAKE_SECONDS  # the peer may still be importing, or initialising its table
        self.queued = QueuedBytes()
        self.traffic = TrafficCounter()
        self._tls = TlsContexts(key) if encrypt else None
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._ready: deque[tuple[Channel, Frame]] = deque()
        self._channels: set[SocketChannel] = set()
        self._unread: list[SocketChannel] = []
        self.admission: Admission | None = None
        if listener is None and bind is not None:
            listener = listen(bind)
        if listener is not None:
            self.address = address_of(listener)
            self.admission = Admission(listener, self._selector, self._tls, self._refuse)

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> SocketChannel:
        """Connect, authenticate and agree on shared memory; blocks up to `patience` seconds."""
        sock, keys = self._connect_with_retries(address, peer)
        channel = self._add(sock, peer, (keys.from_connector, keys.from_listener))
        if segment_bytes != (0, 0) and shared_memory_names.available():
            self._agree_on_segment(channel, segment_bytes)
        return channel

    def _connect_with_retries(self, address: str, peer: Peer) -> tuple[socket.socket, SessionKeys]:
        """Connect, with retries where the listener closes the connection to admit newer ones (listener.py)."""
        for pause in AGAIN_SECONDS:
            time.sleep(pause)
            try:
                return self._connect_once(address, peer)
            except (ConnectionResetError, BrokenPipeError):
                continue
            except OSError as error:
                raise WireError(f"No gbactl process answers at {address} ({error}).") from error
        raise WireError(f"No gbactl process answers at {address} (it hangs up; is it of the same run?).")

    def _connect_once(self, address: str, peer: Peer) -> tuple[socket.socket, SessionKeys]:
        """Connect and complete the handshake, in which each end proves that it knows the key.

        Raises OSError or WireError."""
        deadline = time.monotonic() + self.patience
        sock = dial(address, self.patience)
        try:
            if self._tls is not None and sock.family != socket.AF_UNIX:
                sock = self._tls.dial(sock)
            hello = receive_exactly(sock, auth.GREETING.size, deadline)
            mine = auth.nonce()
            sock.sendall(auth.answer(self.key, hello, self.me, mine))
            proof = receive_exactly(sock, auth.PROOF_BYTES, deadline)
            return sock, auth.confirm(self.key, hello, mine, proof, peer)
        except BaseException:
            sock.close()
            raise

    def _agree_on_segment(self, channel: SocketChannel, segment_bytes: tuple[int, int]) -> None:
        channel.offer(*segment_bytes)
        deadline = time.monotonic() + self.patience
        while channel.offering:
            left = deadline - time.monotonic()
            if channel.closed or left <= 0:
                channel.close()
                raise WireError("A peer does not answer the offer of shared memory.")
            self._ready.extend(self._collect(left))

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        if self._ready:
            found = list(self._ready)
            self._ready.clear()
            return found
        return self._collect(timeout)

    def _collect(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        found: list[tuple[Channel, Frame]] = []
        if self._unread:
            timeout = 0.0
        elif self.admission is not None:
            timeout = self.admission.shorten(timeout)
        events = self._selector.select(timeout)
        with self._lock:
            unread, self._unread = self._unread, []
            for entry, mask in events:
                if isinstance(entry.data, SocketChannel):
                    self._serve(entry.data, mask, found)
                elif isinstance(entry.data, UnauthenticatedConnection):
                    self._continue_handshake(entry.data)
                elif self.admission is not None and (accepted := self.admission.accept()) is not None:
                    self._continue_handshake(accepted)
            for channel in unread:
                if all(entry.data is not channel for entry, _ in events):
                    self._serve(channel, selectors.EVENT_READ, found)
            if self.admission is not None:
                self.admission.close_expired()
        return found

    def _continue_handshake(self, connection: UnauthenticatedConnection) -> None:
        assert self.admission is not None
        authenticated = self.admission.continue_handshake(connection, self.key, self.me)
        if authenticated is not None:
            peer, keys = authenticated
            self._add(connection.sock, peer, (keys.from_listener, keys.from_connector))

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
            if channel.receive(arrived):
                self._unread.append(channel)
        except WireError as error:
            self._refuse(f"{channel.peer}: {error}")
            channel.close()
        except OSError:
            channel.close()
        if channel.closed:
            if channel.given_up:
                self._refuse(f"{channel.peer} does not read what it is sent.")
            arrived.append(Frame(frames.CLOSED, b"", NO_BYTES))
        found.extend((channel, frame) for frame in arrived)

    def _forget(self, channel: SocketChannel) -> None:
        self._channels.discard(channel)
        self._selector.unregister(channel.sock)

    def _add(self, sock: socket.socket, peer: Peer, keys: tuple[bytes, bytes]) -> SocketChannel:
        channel = SocketChannel(sock, peer, keys, self._lock, self.queued, self.traffic, self.silence)
        channel.on_want_write = self._want_write
        channel.on_close = self._forget
        self._channels.add(channel)
        self._selector.register(channel.sock, selectors.EVENT_READ, channel)
        return channel

    def _want_write(self, channel: SocketChannel) -> None:
        if channel in self._channels:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(channel.sock, both, channel)

    def now(self) -> float:
        return time.monotonic()

    def drain(self, seconds: float = 1.0) -> None:
        """Wait up to `seconds` for queued bytes to be sent."""
        deadline = time.monotonic() + seconds
        while any(c.pending for c in self._channels) and time.monotonic() < deadline:
            self._ready.extend(self._collect(0.05))

    def close(self) -> None:
        """Flush and close every channel, and stop listening."""
        self.drain()
        for channel in list(self._channels):
            channel.close()
        if self.admission is not None:
            self.admission.close()
        self._selector.close()

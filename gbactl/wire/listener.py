"""Listening addresses of nodes, and admission of connections that have not yet proved that they know the run's key.

An address is `HOST:PORT`, or `unix:NAME` for an abstract Unix socket (Linux, one host), which costs half of loopback
TCP a message and leaves no file behind.

Anybody who reaches the port can open a connection. It costs a socket and some hundred bytes (50 KB with encryption). At
most MOST_UNAUTHENTICATED wait at a time, each for at most HANDSHAKE_SECONDS in all. When one more arrives, the oldest
is closed. A node that knows the key needs a millisecond and therefore always gets in.

Rejections are counted by reason and logged ever more rarely, so that nobody can fill memory or disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import secrets
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable

from gbactl.errors import WireError
from gbactl.wire import auth
from gbactl.wire.auth import Peer, SessionKeys, TlsContexts

UNIX = "unix:"
BACKLOG = 4096  # or what the kernel allows: many nodes that connect at once must all get in
MOST_DESCRIPTORS = 1 << 18  # enough for a connection to every node of a run


def allow_descriptors() -> None:
    """Raise this process's limit of open file descriptors as far as the system allows.

    The usual limit of 1,024 would end a coordinator with 1,000 workers, and a launcher with 350 hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError):  # such as for a hard limit above the kernel's own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def local(bind: str, transport: str) -> str:
    """Choose the address for `listen`: a Unix socket if processes of this host share memory, else `bind`."""
    return UNIX if transport == "shm" and bind in ("127.0.0.1", "localhost") else bind


def listen(bind: str) -> socket.socket:
    """Open a listening socket on a free port of `bind`, or on a fresh name if it is `unix:`."""
    if bind != UNIX:
        return socket.create_server((bind, 0), backlog=BACKLOG)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0gbactl-{secrets.token_hex(16)}")
    listener.listen(BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address (HOST:PORT or unix:NAME) at which peers reach a listening socket."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return UNIX + bytes(name)[1:].decode()
    return f"{name[0]}:{name[1]}"


def shares_memory(address: str, host: str) -> bool:
    """Return whether the listener at `address` shares memory with a process on `host` ("": the run has one host)."""
    return not host or address.startswith(UNIX) or address.rpartition(":")[0] == host


def dial(address: str, timeout: float) -> socket.socket:
    """Connect to a node's address within `timeout` seconds. Raises OSError."""
    if not address.startswith(UNIX):
        host, port = address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=timeout)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect("\0" + address.removeprefix(UNIX))
    except OSError:
        sock.close()
        raise
    return sock


def receive_exactly(sock: socket.socket, count: int, deadline: float | None = None) -> bytes:
    """Read exactly `count` bytes. Raises OSError; TimeoutError when time.monotonic() reaches `deadline`."""
    data = b""
    while len(data) < count:
        if deadline is not None:
            sock.settimeout(max(1e-3, deadline - time.monotonic()))
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed")
        data += part
    return data


HANDSHAKE_SECONDS = 10.0
MOST_UNAUTHENTICATED = 128
PAUSE_SECONDS = 1.0  # pause in accepting connections when the process has no file descriptor left
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CREDENTIALS = struct.Struct("3i")
MOST_REASONS = 64  # further reasons are counted together under OTHER
MOST_LINES = 16  # rejections of one reason that are logged one by one; then each time the count doubles
OTHER = "for other reasons"
log = logging.getLogger(__name__)


class UnauthenticatedConnection:
    """Accepted connection whose peer has not yet proved that it knows the key; closed at `deadline`."""

    def __init__(self, sock: socket.socket, deadline: float, tls: TlsContexts | None) -> None:
        sock.setblocking(False)
        self.deadline = deadline
        self._nonce, self._received, self._greeted = auth.nonce(), b"", False
        self._encrypted = None if tls is None or sock.family == socket.AF_UNIX else tls.accept(sock)
        self.sock = self._encrypted or sock

    def continue_handshake(self, key: bytes, me: Peer) -> tuple[Peer, SessionKeys] | None:
        """Continue the handshake; return the peer that has proved that it knows the key, or None until then.

        The listener's first message follows TLS's own handshake, where there is one. Raises OSError or WireError where
        the handshake fails."""
        try:
            if not self._greeted:
                if self._encrypted is not None:
                    self._encrypted.do_handshake()
                self._greeted = True
                self.sock.send(auth.greeting(self._nonce))
            while len(self._received) < auth.ANSWER.size:
                self._received += self.sock.recv(auth.ANSWER.size - len(self._received)) or _closed()
        except BlockingIOError:
            return None
        peer, proof, keys = auth.accept(key, self._nonce, self._received, me)
        self.sock.send(proof)
        return peer, keys


class Admission:
    """Admission of connections to one listener, with a limit and deadlines for unauthenticated ones.

    `refuse` is called with the reason of a rejection."""

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, tls: TlsContexts | None,
        refuse: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.listener, self._selector, self._tls, self._refuse = listener, selector, tls, refuse
        self.most, self.seconds = MOST_UNAUTHENTICATED, HANDSHAKE_SECONDS
        self.unauthenticated: dict[UnauthenticatedConnection, None] = {}  # in order of arrival
        self._paused_until: float | None = None
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, None)

    def accept(self) -> UnauthenticatedConnection | None:
        """Accept a pending connection, whose handshake the caller begins; None if it is gone or not allowed."""
        try:
            sock, _ = self.listener.accept()
        except OSError as error:
            if error.errno in FULL:
                self._on_no_descriptors()
            return None
        if not _same_user(sock):
            sock.close()
            self._refuse("A connection of another user of this host.")
            return None
        if len(self.unauthenticated) >= self.most:
            self._reject(next(iter(self.unauthenticated)), "A connection gave way to others before it proved itself.")
        try:
            connection = UnauthenticatedConnection(sock, time.monotonic() + self.seconds, self._tls)
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        except OSError:
            sock.close()
            return None
        self.unauthenticated[connection] = None
        return connection

    def continue_handshake(
        self, connection: UnauthenticatedConnection, key: bytes, me: Peer
    ) -> tuple[Peer, SessionKeys] | None:
        """Continue a connection's handshake; return the authenticated peer if it is complete, else None."""
        if connection not in self.unauthenticated:
            return None
        try:
            authenticated = connection.continue_handshake(key, me)
        except (OSError, WireError) as error:
            self._reject(connection, str(error))
            return None
        if authenticated is not None:
            self._forget(connection)
        return authenticated

    def shorten(self, timeout: float | None) -> float | None:
        """Limit a poll's `timeout` seconds (None: for ever) to the time until the next handshake deadline."""
        if not self.unauthenticated and self._paused_until is None:
            return timeout
        due = [next(iter(self.unauthenticated)).deadline] if self.unauthenticated else []
        due += [] if self._paused_until is None else [self._paused_until]
        left = max(0.0, min(due) - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def close_expired(self) -> None:
        """Close unauthenticated connections whose deadline has passed, and resume accepting after a pause."""
        if not self.unauthenticated and self._paused_until is None:
            return
        now = time.monotonic()
        while self.unauthenticated and (oldest := next(iter(self.unauthenticated))).deadline <= now:
            self._reject(oldest, "A connection did not prove in time that it knows this run's key.")
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            self._selector.register(self.listener, selectors.EVENT_READ, None)

    def _on_no_descriptors(self) -> None:
        """Handle a lack of file descriptors: close the oldest unauthenticated connection, or pause accepting."""
        if self.unauthenticated:
            self._reject(next(iter(self.unauthenticated)), "A connection gave way to others before it proved itself.")
            return
        self._refuse("A connection came when this process had no file descriptor left.")
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        self._selector.unregister(self.listener)

    def _reject(self, connection: UnauthenticatedConnection, reason: str) -> None:
        self._forget(connection)
        connection.sock.close()
        self._refuse(reason)

    def _forget(self, connection: UnauthenticatedConnection) -> None:
        del self.unauthenticated[connection]
        self._selector.unregister(connection.sock)

    def close(self) -> None:
        """Close the listener and every unauthenticated connection."""
        for connection in list(self.unauthenticated):
            self._forget(connection)
            connection.sock.close()
        self.listener.close()


def _same_user(sock: socket.socket) -> bool:
    """Return whether a Unix socket's peer runs as this process's user or as root.

    Any user can connect, as the socket's name is public."""
    if sock.family != socket.AF_UNIX:
        return True
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in (os.getuid(), 0)


def _closed() -> bytes:
    raise ConnectionResetError(auth.HUNG_UP)


class RejectionCounter(Counter[str]):
    """Number of rejected connections and frames by reason."""

    def count(self, reason: str) -> None:
        """Count a rejection, and log the first few of each reason, later ones only when their count doubles."""
        if reason not in self and len(self) >= MOST_REASONS:
            reason = OTHER
        self[reason] += 1
        count = self[reason]
        if count <= MOST_LINES or not count & (count - 1):
            log.warning("refused %s%s", reason, "" if count <= MOST_LINES else f" ({count} times by now)")

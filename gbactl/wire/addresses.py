"""Listening addresses of nodes: `HOST:PORT`, or `unix:NAME` for an abstract Unix socket (Linux, one host).

A Unix socket costs half of loopback TCP a message and leaves no file behind.
"""

from __future__ import annotations

import secrets
import socket
import sys

UNIX = "unix:"
BACKLOG = 4096  # or what the kernel allows: many nodes that connect at once must all get in


def local(bind: str, transport: str) -> str:
    """Choose the bind address for `listen`: a Unix socket for processes that share memory on this host, else `bind`."""
    one_host = transport == "shm" and bind in ("127.0.0.1", "localhost") and sys.platform == "linux"
    return UNIX if one_host else bind


def listen(bind: str) -> socket.socket:
    """Open a listening socket on a free port of `bind`, or on a fresh name if it is `unix:`."""
    if bind != UNIX:
        return socket.create_server((bind, 0), backlog=BACKLOG)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0gbactl-{secrets.token_hex(16)}")
    listener.listen(BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address at which peers reach a listening socket."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return UNIX + bytes(name)[1:].decode()
    return f"{name[0]}:{name[1]}"


def near(address: str, host: str) -> bool:
    """Return whether the listener at `address` shares memory with a process on `host` ("": all processes do)."""
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

"""Reachability, latency and bandwidth between hosts, by plain TCP between two agents.

A listener on one address serves only clients that send the run's token first: it returns small messages and counts
large ones. Costs a thread a connection during a check or a measurement.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass

from gbactl.wire.listener import receive_exactly

TOKEN_BYTES = 32
PING, BULK = b"p", b"b"
PING_BYTES, PINGS = 64, 200
FIRST_BYTES, MOST_BYTES = 1 << 20, 256 << 20
SECONDS = 5.0  # a connection that is silent for so long is closed
MEASURED_SECONDS = 1.0  # approximate duration of a bandwidth measurement
MOST_OPEN = 64
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class LinkMeasurement:
    """Connection from one host to another: one-way latency in microseconds and Gbit/s, or the error."""

    latency_us: float = 0.0
    gbit: float = 0.0
    error: str = ""


class ReachabilityProbe:
    """Listener on one address that other hosts dial to test reachability and speed, until `close`."""

    def __init__(self, address: str, token: bytes) -> None:
        """Listen on a free port of `address`. Raises OSError where the address cannot be bound."""
        self.token = token
        self._open = threading.Semaphore(MOST_OPEN)
        self._listener = socket.create_server((address, 0))
        self.address = f"{address}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="probe", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="probed", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), sock:
                sock.settimeout(SECONDS)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not hmac.compare_digest(receive_exactly(sock, TOKEN_BYTES), self.token):
                    return
                sock.sendall(b"+")
                while True:
                    _answer(sock)
        finally:
            self._open.release()

    def close(self) -> None:
        """Stop listening for probes."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _answer(sock: socket.socket) -> None:
    kind = receive_exactly(sock, 1)
    if kind == PING:
        sock.sendall(receive_exactly(sock, PING_BYTES))
        return
    (left,) = _COUNT.unpack(receive_exactly(sock, _COUNT.size))
    if kind != BULK or left > MOST_BYTES:
        raise ConnectionAbortedError
    buffer = bytearray(1 << 18)
    while left:
        got = sock.recv_into(buffer, min(left, len(buffer)))
        if got == 0:
            raise ConnectionResetError
        left -= got
    sock.sendall(b"+")


def dial(address: str, token: bytes, measure: bool, seconds: float = SECONDS) -> LinkMeasurement:
    """Test the connection to another host's probe and, if `measure`, its latency and bandwidth."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as sock:
            sock.settimeout(seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(token)
            receive_exactly(sock, 1)
            if not measure:
                return LinkMeasurement()
            sock.settimeout(None)
            return LinkMeasurement(_latency(sock), _bandwidth(sock))
    except OSError as error:
        return LinkMeasurement(error=error.strerror or str(error) or type(error).__name__)


def _latency(sock: socket.socket) -> float:
    """Measure the latency in microseconds one way: half the median round trip of a small message."""
    message, taken = PING + bytes(PING_BYTES), []
    for _ in range(PINGS):
        began = time.perf_counter()
        sock.sendall(message)
        receive_exactly(sock, PING_BYTES)
        taken.append(time.perf_counter() - began)
    return 1e6 * statistics.median(taken) / 2


def _bandwidth(sock: socket.socket) -> float:
    """Measure the bandwidth in Gbit/s by sending bulk data for about a second."""
    first = _send(sock, FIRST_BYTES)
    count = int(FIRST_BYTES * MEASURED_SECONDS / max(first, 1e-6))
    count = min(max(count, FIRST_BYTES), MOST_BYTES)
    return 8e-9 * count / _send(sock, count)


def _send(sock: socket.socket, count: int) -> float:
    """Send `count` bytes; returns the seconds until the receiver has confirmed the last one."""
    block, left = bytes(1 << 20), count
    began = time.perf_counter()
    sock.sendall(BULK + _COUNT.pack(count))
    while left:
        part = min(left, len(block))
        sock.sendall(memoryview(block)[:part])
        left -= part
    receive_exactly(sock, 1)
    return time.perf_counter() - began

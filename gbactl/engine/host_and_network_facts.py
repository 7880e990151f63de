"""Facts about a host that a run depends on (versions, cores, memory, addresses), and its connections to other hosts.

An agent collects and measures them on its host, and the launcher checks them. Reachability, latency and bandwidth are
measured by plain TCP between two agents: a listener on one address serves only clients that send the run's token first,
and confirms each message, small or large. Each connection costs a thread while it is measured.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import platform
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from gbactl import shared_memory_names
from gbactl.collective.gloo import address_of_own_name, interface_of
from gbactl.errors import ClusterError
from gbactl.host_limits import free_memory, usable_cores
from gbactl.install import running_code, version
from gbactl.wire.listener import receive_exactly

PACKAGES = ("gbactl", "python", "torch", "horovod")
SAME = (*PACKAGES, "code")  # versions that must be equal on all hosts


def facts() -> dict[str, Any]:
    """Collect facts about this host: versions, hash of gbactl's source files, cores, free memory, addresses."""
    from gbactl import __version__

    return {
        "gbactl": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "horovod": version("horovod"),
        "code": running_code(),
        "cores": usable_cores(),
        "memory": free_memory(),
        "shared_memory": shutil.disk_usage(shared_memory_names.DIRECTORY).free
        if shared_memory_names.available()
        else 0,
        "client": client_of_ssh(),
        "name": socket.gethostname(),
        "own_name": address_of_own_name(),
    }


IMPORT = "import importlib, sys; at = sys.argv[1].rpartition('.'); getattr(importlib.import_module(at[0]), at[2])"


def import_error(target: str) -> str:
    """Import MODULE.CLASS in a process of its own, and return the error; "" if there is none."""
    done = subprocess.run([sys.executable, "-c", IMPORT, target], capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return "" if not done.returncode else lines[-1] if lines else f"exit code {done.returncode}"


ANY_PORT = 9  # port of a connected UDP socket over which nothing is sent


def route_to(address: str) -> str:
    """Return this machine's IPv4 address on its route to another host. Raises ClusterError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, ANY_PORT))
        except OSError as error:
            raise ClusterError(f"there is no route to {address} ({error.strerror})") from error
        found: str = probe.getsockname()[0]
    return found


def interface_to(address: str) -> tuple[str, str]:
    """Return (address, interface) of this machine on its route to another host. Raises ClusterError."""
    own = route_to(address)
    return own, interface_of(own)


def client_of_ssh() -> str | None:
    """Return the address of this session's ssh client; None outside ssh."""
    given = os.environ.get("SSH_CONNECTION", "").split()
    return given[0] if len(given) == 4 and ":" not in given[0] else None


TOKEN_BYTES = 32
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
        """Listen on a free port of `address`. Raises OSError if the address cannot be bound."""
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
                    _receive(sock)
        finally:
            self._open.release()

    def close(self) -> None:
        """Stop listening for probes."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _receive(sock: socket.socket) -> None:
    """Receive a message of as many bytes as its header says, and confirm the last one."""
    (left,) = _COUNT.unpack(receive_exactly(sock, _COUNT.size))
    if left > MOST_BYTES:
        raise ConnectionAbortedError
    buffer = bytearray(min(left, 1 << 18))
    while left:
        got = sock.recv_into(buffer, min(left, len(buffer)))
        if got == 0:
            raise ConnectionResetError
        left -= got
    sock.sendall(b"+")


def dial(address: str, token: bytes, measure: bool) -> LinkMeasurement:
    """Test the connection to another host's probe and, if `measure`, its latency and bandwidth."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=SECONDS) as sock:
            sock.settimeout(SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(token)
            receive_exactly(sock, 1)
            if not measure:
                return LinkMeasurement()
            sock.settimeout(None)
            round_trip = statistics.median(_send(sock, PING_BYTES) for _ in range(PINGS))
            return LinkMeasurement(1e6 * round_trip / 2, _bandwidth(sock))
    except OSError as error:
        return LinkMeasurement(error=error.strerror or str(error) or type(error).__name__)


def _bandwidth(sock: socket.socket) -> float:
    """Measure the bandwidth in Gbit/s by sending bulk data for about a second."""
    first = _send(sock, FIRST_BYTES)
    count = int(FIRST_BYTES * MEASURED_SECONDS / max(first, 1e-6))
    count = min(max(count, FIRST_BYTES), MOST_BYTES)
    return 8e-9 * count / _send(sock, count)


def _send(sock: socket.socket, count: int) -> float:
    """Send a message of `count` bytes; returns the seconds until the receiver has confirmed the last one."""
    block = bytes(min(count, 1 << 20))
    began = time.perf_counter()
    sock.sendall(_COUNT.pack(count) + block)
    for sent in range(len(block), count, len(block)):
        sock.sendall(memoryview(block)[: count - sent])
    receive_exactly(sock, 1)
    return time.perf_counter() - began

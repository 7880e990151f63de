"""Two connected hubs driven from one test thread, whatever carries the frames."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gbactl.wire import auth
from gbactl.wire.auth import Peer
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import TakeBatch, unpack
from gbactl.wire.node_connections import SocketHub
from tests.support.in_memory import MemoryHub

KEY = auth.new_key()
SLOT = 1 << 18
SECONDS = 30.0
SERVER, WORKER = Peer("server", 0), Peer("worker", 1)


def noise(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def while_polling(hub: Any, act: Callable[[], Any]) -> tuple[Any, list[tuple[Any, Frame]]]:
    """`act()` on this thread while another polls `hub`: (its result, what arrived)."""
    arrived: list[tuple[Any, Frame]] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            arrived.extend(hub.poll(0.01))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        return act(), arrived
    finally:
        done.set()
        thread.join(SECONDS)


def refusals(hub: SocketHub) -> int:
    """How often a hub has refused somebody, who may know it before the hub has counted it."""
    deadline = time.monotonic() + SECONDS
    while not hub.refused and time.monotonic() < deadline:
        hub.poll(0.01)
    return sum(hub.refused.values())


def dial(hub: SocketHub) -> socket.socket:
    """A raw connection to a hub's listener."""
    host, port = hub.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def authenticated(sock: socket.socket, hub: SocketHub) -> auth.SessionKeys:
    """Have a raw connection prove that it is WORKER and knows the run's key."""

    def go() -> auth.SessionKeys:
        hello, mine = sock.recv(auth.GREETING.size, socket.MSG_WAITALL), auth.nonce()
        sock.sendall(auth.answer(KEY, hello, WORKER, mine))
        return auth.confirm(KEY, hello, mine, sock.recv(auth.PROOF_BYTES, socket.MSG_WAITALL), SERVER)

    keys: auth.SessionKeys = while_polling(hub, go)[0]
    return keys


class Pair:
    """`far` (a server) listens, `near` (a worker) has connected; both channels are known."""

    def __init__(self, kind: str) -> None:
        if kind == "memory":
            network: dict[str, MemoryHub] = {}
            self.far_hub: Any = MemoryHub(network, SERVER)
            self.near_hub: Any = MemoryHub(network, WORKER)
        else:
            encrypt = kind.startswith("tls")
            self.far_hub = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=encrypt)
            self.near_hub = SocketHub(KEY, WORKER, encrypt=encrypt)
        sizes = (SLOT, SLOT) if kind.endswith("shm") else (0, 0)
        self.near, _ = while_polling(self.far_hub, lambda: self.near_hub.connect(self.far_hub.address, sizes, SERVER))
        self.near.send(TakeBatch(0))
        [(self.far, _)] = self.arrivals(self.far_hub, 1)

    def arrivals(self, at: Any, count: int) -> list[tuple[Any, Frame]]:
        """The next `count` frames at one hub; both make progress meanwhile."""
        other = self.near_hub if at is self.far_hub else self.far_hub
        found: list[tuple[Any, Frame]] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += at.poll(0.01)
            assert other.poll(0) == [], "an unexpected frame"
        assert len(found) == count
        return found

    def receive(self, at: Any, count: int = 1) -> list[tuple[Any, bytes]]:
        """(message, payload) of the next frames, released."""
        got = []
        for _, frame in self.arrivals(at, count):
            got.append((unpack(frame.kind, frame.descriptor), frame.payload.tobytes()))
            frame.release()
        return got

    def close(self) -> None:
        self.near_hub.close()
        self.far_hub.close()

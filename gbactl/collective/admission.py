"""How many may stand at the rendezvous, and for how long: each visitor costs a thread of the launcher."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

MOST_VISITORS = 128
VISIT_SECONDS = 10.0  # for one request, however slowly it is written


class Visitors:
    """Connections that are being answered. Where one more comes, whoever has been here longest goes. `refuse` is called
    for everybody who is sent away."""

    def __init__(self, refuse: Callable[[], None], most: int = MOST_VISITORS, seconds: float = VISIT_SECONDS) -> None:
        self.most, self.seconds, self._refuse = most, seconds, refuse
        self._lock = threading.Lock()
        self._here: dict[socket.socket, float] = {}  # until when, in the order in which they came

    def __len__(self) -> int:
        return len(self._here)

    def comes(self, visitor: socket.socket) -> None:
        """Somebody has connected."""
        with self._lock:
            if len(self._here) >= self.most:
                self._send_away(next(iter(self._here)))
            self._here[visitor] = time.monotonic() + self.seconds

    def leaves(self, visitor: socket.socket) -> None:
        """The answer has been given."""
        with self._lock:
            self._here.pop(visitor, None)

    def tend(self) -> None:
        """Whose time is over goes."""
        now = time.monotonic()
        with self._lock:
            for visitor in [visitor for visitor, until in self._here.items() if until <= now]:
                self._send_away(visitor)

    def _send_away(self, visitor: socket.socket) -> None:
        """Its thread finds the connection at its end, and ends."""
        del self._here[visitor]
        self._refuse()
        with contextlib.suppress(OSError):
            visitor.shutdown(socket.SHUT_RDWR)

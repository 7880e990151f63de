"""Somebody on the network between two processes: hears every byte, and may change one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

Change = Callable[[bytes], bytes]


class Relay:
    """Listens in the place of `address` and hands everything on. `sent` and `answered`: what went each way."""

    def __init__(self, address: str, change: Change = lambda data: data) -> None:
        host, port = address.rsplit(":", 1)
        self._there, self._change = (host, int(port)), change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        self.sent, self.answered = bytearray(), bytearray()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    @property
    def heard(self) -> bytes:
        """Everything, both ways."""
        return bytes(self.sent + self.answered)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(self._there)
            self._sockets += [near, far]
            back = threading.Thread(target=self._pump, args=(far, near, self.answered, lambda data: data), daemon=True)
            back.start()
            self._threads.append(back)
            self._pump(near, far, self.sent, self._change)

    def _pump(self, source: socket.socket, target: socket.socket, record: bytearray, change: Change) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                record += data
                target.sendall(change(data))
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up on both."""
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

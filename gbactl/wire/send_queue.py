"""Send queues with limits: one for each peer, and one for all peers of a node together."""

from __future__ import annotations

import socket
from collections import deque

from gbactl.wire.channel import BufferPool
from gbactl.wire.frames import Bytes

MOST_QUEUED, MOST_IN_ALL = 1 << 30, 4 << 30
AT_ONCE = 8  # buffers handed to the kernel in one call


class QueuedBytes:
    """Bytes queued for all peers of a node, and their limits."""

    def __init__(self) -> None:
        self.bytes = 0
        self.most, self.most_in_all = MOST_QUEUED, MOST_IN_ALL


class SendQueue:
    """Send queue of one peer. `pool` gets buffers back once they are written."""

    def __init__(self, sock: socket.socket, pool: BufferPool, of_all: QueuedBytes) -> None:
        self._sock, self._pool, self._of_all = sock, pool, of_all
        self._pieces: deque[tuple[memoryview, Bytes | None]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def too_much(self) -> bool:
        """Whether the queue is over a limit. A message of any size fits an empty queue."""
        return self.bytes > 0 and (self.bytes > self._of_all.most or self._of_all.bytes > self._of_all.most_in_all)

    def add(self, piece: memoryview, owner: Bytes | None = None) -> None:
        """Append a buffer to the queue; `owner` is the pool's buffer that it lies in."""
        self._pieces.append((piece, owner))
        self._count(piece.nbytes)

    def write(self) -> None:
        """Write queued bytes to the socket. Raises BlockingIOError where it does not take all, and OSError."""
        while self._pieces:
            self._drop(self._sock.sendmsg([piece for piece, _ in list(self._pieces)[:AT_ONCE]]))

    def clear(self) -> None:
        """Discard all queued bytes."""
        self._pieces.clear()
        self._count(-self.bytes)

    def _count(self, nbytes: int) -> None:
        self.bytes += nbytes
        self._of_all.bytes += nbytes

    def _drop(self, written: int) -> None:
        self._count(-written)
        while written > 0:
            piece, owner = self._pieces[0]
            if written < piece.nbytes:
                self._pieces[0] = (piece[written:], owner)
                return
            written -= piece.nbytes
            self._pieces.popleft()
            if owner is not None:
                self._pool.give(owner)

"""Authenticated connection over a socket: control and small payloads on the wire, large ones in shared memory.

Non-blocking throughout: a node never waits for a slow peer to read. The send queues have limits, one for each peer, and
one for all peers of a node together. A request and its answer cost about 100 us on one host, independent of the payload
when it lies in shared memory.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from gbactl.errors import WireError
from gbactl.wire import frames, shared_memory
from gbactl.wire.auth import Peer, TlsConnection
from gbactl.wire.channel_interface import NO_BYTES, BufferPool
from gbactl.wire.frames import Bytes, Frame, Header
from gbactl.wire.messages import kind_of, pack
from gbactl.wire.node_measurements import TrafficCounter

MOST_QUEUED, MOST_IN_ALL = 1 << 30, 4 << 30
BUFFERS_AT_ONCE = 8  # buffers handed to the kernel in one call


class QueuedBytes:
    """Number of bytes queued for all peers of a node, and the limits of the queues."""

    def __init__(self) -> None:
        self.bytes = 0
        self.most, self.most_in_all = MOST_QUEUED, MOST_IN_ALL


class SendQueue:
    """Send queue of one peer; a written buffer returns to `pool`."""

    def __init__(self, sock: socket.socket, pool: BufferPool, total: QueuedBytes) -> None:
        self._sock, self._pool, self._total = sock, pool, total
        self._pieces: deque[tuple[memoryview, Bytes | None]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def too_much(self) -> bool:
        """Whether the queue exceeds a limit; an empty queue takes a message of any size."""
        return self.bytes > 0 and (self.bytes > self._total.most or self._total.bytes > self._total.most_in_all)

    def add(self, piece: memoryview, owner: Bytes | None = None) -> None:
        """Append bytes to the queue; `owner`: pooled buffer that contains them, returned to the pool once written."""
        self._pieces.append((piece, owner))
        self._count(piece.nbytes)

    def write(self) -> None:
        """Write queued bytes to the socket until the queue is empty. Raises BlockingIOError or another OSError."""
        while self._pieces:
            self._drop(self._sock.sendmsg([piece for piece, _ in islice(self._pieces, BUFFERS_AT_ONCE)]))

    def clear(self) -> None:
        """Discard all queued bytes."""
        self._pieces.clear()
        self._count(-self.bytes)

    def _count(self, nbytes: int) -> None:
        self.bytes += nbytes
        self._total.bytes += nbytes

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


ATTACH, ATTACHED = 254, 255  # kinds of the channel's own frames, which are no messages
SMALL = 1 << 16  # payloads of at most this many bytes go over the wire and take no slot
RECEIVE_BYTES = 1 << 14  # kept for each connection, of which a server or coordinator has one to every worker
AT_ONCE = 64 << 20  # bytes read from one connection before the others are read
WORTH_WAKING = 1 << 18  # bytes of a slowly arriving payload that are worth a wake-up
SILENCE_SECONDS, LONGEST_SILENCE, LONGEST_IDLE = 60.0, 86400.0, 30


class SocketChannel:
    """Authenticated connection over a socket, created by SocketHub."""

    def __init__(
        self, sock: socket.socket, peer: Peer, keys: tuple[bytes, bytes], lock: threading.RLock,
        all_queued: QueuedBytes,
        traffic: TrafficCounter, silence: float = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            _set_tcp_options(sock, silence)
        self.sock = sock
        self.peer = peer
        self.closed = False
        self.given_up = False  # the peer does not read: the connection ends
        self.on_want_write: Callable[[SocketChannel], None] = lambda _: None
        self.on_close: Callable[[SocketChannel], None] = lambda _: None
        self._send_key, self._receive_key = keys
        self._lock = lock
        self._sent = self._received = 0
        self._encrypted = isinstance(sock, TlsConnection)
        # with TLS, data that were read ahead would not wake the selector
        self._sets_low_water = not self._encrypted and sock.family != socket.AF_UNIX
        self._pool, self._traffic = BufferPool(), traffic
        self._out = SendQueue(sock, self._pool, all_queued)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = self._end = self._read_budget = 0
        self._low_water = 1
        self._partial: tuple[Header, bytes, Bytes, int] | None = None
        self._offered: tuple[shared_memory.SegmentLayout, mmap.mmap] | None = None
        self._send_slots: list[Bytes] = []
        self._receive_slots: list[Bytes] = []
        self._free_slots: list[int] = []
        self._released_slots = 0
        self._lent_buffers: dict[int, Bytes] = {}  # address of a pooled buffer handed out by reserve -> buffer
        self._reserved_slots: dict[int, int] = {}  # address of a slot handed out by reserve -> slot

    # -- sending ------------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> Bytes:
        """Take a shared-memory slot if the payload is large and one is free, else a pooled buffer."""
        with self._lock:
            if self._free_slots and nbytes > SMALL and nbytes <= self._send_slots[0].size:
                slot = self._free_slots.pop()
                self._reserved_slots[self._send_slots[slot].ctypes.data] = slot
                return self._send_slots[slot][:nbytes]
            buffer = self._pool.take(nbytes)
            self._lent_buffers[buffer.ctypes.data] = buffer
            return buffer[:nbytes]

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """Queue a message and try to write it at once."""
        kind, descriptor = kind_of(message), pack(message)
        with self._lock:
            self._send_raw(kind, descriptor, payload, message)

    def _send_raw(self, kind: int, descriptor: bytes, payload: Bytes | None, message: Any = None) -> None:
        if self.closed or self.given_up:
            return
        if self._out.too_much:
            self._give_up()
            return
        slot = self._slot_of(payload)
        size = 0 if payload is None else payload.size
        head = frames.encode(
            self._send_key, kind, descriptor, size,
            sequence=self._sent, released=self._released_slots, slot=slot,
        )  # fmt: skip
        self._sent += 1
        self._released_slots = 0
        self._traffic.sent(message, len(head), size, slot is not None)
        self._out.add(memoryview(head))
        if payload is not None and slot is None and size:
            self._out.add(memoryview(payload), self._lent_buffers.pop(payload.ctypes.data, None))  # type: ignore[arg-type]
        self.flush()

    def _slot_of(self, payload: Bytes | None) -> int | None:
        if payload is None or not self._reserved_slots:
            return None
        return self._reserved_slots.pop(payload.ctypes.data, None)

    def flush(self) -> None:
        """Write as many queued bytes as the socket accepts; the selector reports when it accepts more."""
        try:
            self._out.write()
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the reader side reports the loss
            return
        if self._out:
            self.on_want_write(self)

    @property
    def pending(self) -> bool:
        """Whether queued bytes are still unwritten."""
        return bool(self._out)

    def _give_up(self) -> None:
        """Shut down the connection to a peer that does not read; the next poll reports it as closed."""
        self.given_up = True
        self._out.clear()
        with contextlib.suppress(OSError):
            # not the TLS socket's own shutdown, after which it would read undecrypted bytes
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    # -- receiving ----------------------------------------------------------------------------------

    def receive(self, found: list[Frame]) -> bool:
        """Append every complete frame to `found`. Raises WireError (malformed) or OSError (closed).

        Frames before an error are appended too. Returns whether there may be more that no selector reports."""
        more, self._read_budget = True, AT_ONCE
        while more:
            if self._read_budget <= 0:
                return True
            try:
                more = self._read_payload(found) if self._partial else self._read_buffer()
            except BlockingIOError:
                break
            self._parse(found)
        self._await()
        return False

    def _await(self) -> None:
        """Set the number of bytes that must arrive before the selector wakes this process.

        On a line slower than memory, a payload arrives in pieces of some kilobytes, each of which would cost a thread
        switch."""
        rest = 1 if self._partial is None else self._partial[0].payload_bytes - self._partial[3]
        least = min(rest, WORTH_WAKING)
        if least != self._low_water and self._sets_low_water:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._low_water = least

    def _read_buffer(self) -> bool:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        if self._end == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))
        room = len(self._buffer) - self._end
        got = self.sock.recv_into(memoryview(self._buffer)[self._end :])
        if got == 0:
            raise ConnectionResetError
        self._end += got
        self._read_budget -= got
        return got == room or self._encrypted  # the selector does not see what TLS has read ahead

    def _read_payload(self, found: list[Frame]) -> bool:
        assert self._partial is not None
        header, descriptor, payload, filled = self._partial
        got = self.sock.recv_into(memoryview(payload)[filled : header.payload_bytes])  # type: ignore[arg-type]
        if got == 0:
            raise ConnectionResetError
        filled += got
        self._read_budget -= got
        self._partial = (header, descriptor, payload, filled)
        if filled == header.payload_bytes:
            self._partial = None
            found.append(self._inline(header, descriptor, payload))
        return True

    def _parse(self, found: list[Frame]) -> None:
        while self._partial is None and self._end - self._start >= frames.PREFIX:
            view = memoryview(self._buffer)[self._start : self._end]
            header = frames.parse_header(view)
            size = frames.PREFIX + header.descriptor_bytes
            if len(view) < size:
                return
            descriptor = frames.verify(self._receive_key, view, header, self._received)
            self._received += 1
            self._start += size
            self._reclaim_slots(header.released)
            if header.slot is not None:
                self._add(found, self._in_slot(header, descriptor))
            elif header.payload_bytes:
                self._begin_payload(header, descriptor, found)
            else:
                self._add(found, Frame(header.kind, descriptor, NO_BYTES))

    def _add(self, found: list[Frame], frame: Frame) -> None:
        if frame.kind == ATTACH:
            self._answer_attach(frame.descriptor)
        elif frame.kind == ATTACHED:
            self._finish_attach(frame.descriptor)
        else:
            found.append(frame)

    def _begin_payload(self, header: Header, descriptor: bytes, found: list[Frame]) -> None:
        try:
            payload = self._pool.take(header.payload_bytes)
        except MemoryError as error:
            raise WireError(f"A frame claims {header.payload_bytes} bytes, for which there is no memory.") from error
        available = min(header.payload_bytes, self._end - self._start)
        memoryview(payload)[:available] = memoryview(self._buffer)[self._start : self._start + available]  # type: ignore[arg-type]
        self._start += available
        if available == header.payload_bytes:
            found.append(self._inline(header, descriptor, payload))
        else:
            self._partial = (header, descriptor, payload, available)

    def _inline(self, header: Header, descriptor: bytes, payload: Bytes) -> Frame:
        return Frame(header.kind, descriptor, payload[: header.payload_bytes], lambda: self._pool.give(payload))

    def _in_slot(self, header: Header, descriptor: bytes) -> Frame:
        slot = header.slot
        assert slot is not None
        if slot >= len(self._receive_slots) or header.payload_bytes > self._receive_slots[slot].size:
            raise WireError("A frame points outside the shared memory of its connection.")

        def release() -> None:
            with self._lock:
                self._released_slots |= 1 << slot

        return Frame(header.kind, descriptor, self._receive_slots[slot][: header.payload_bytes], release)

    def _reclaim_slots(self, released: int) -> None:
        if not released:
            return
        taken = {*self._free_slots, *self._reserved_slots.values()}
        for slot in range(len(self._send_slots)):
            if released >> slot & 1 and slot not in taken:
                self._free_slots.append(slot)

    # -- shared memory ------------------------------------------------------------------------------

    def offer(self, outgoing: int, incoming: int) -> None:
        """Create a shared-memory segment and offer it to the listener (connector only)."""
        self._offered = shared_memory.create(outgoing, incoming)
        self._send_raw(ATTACH, pack(self._offered[0]), None)

    def _answer_attach(self, descriptor: bytes) -> None:
        layout = _layout(descriptor)
        memory = shared_memory.attach(layout)
        if memory is not None:
            self._receive_slots, self._send_slots = layout.slots(memory)
            self._free_slots = list(range(len(self._send_slots)))
        self._send_raw(ATTACHED, pack(memory is not None), None)

    def _finish_attach(self, descriptor: bytes) -> None:
        if self._offered is None:
            raise WireError("A peer answers an offer that was not made.")
        (layout, memory), self._offered = self._offered, None
        shared_memory.unlink(layout)
        if descriptor == pack(True):
            self._send_slots, self._receive_slots = layout.slots(memory)
            self._free_slots = list(range(len(self._send_slots)))

    @property
    def offering(self) -> bool:
        """Whether the peer has not yet answered this end's offer of shared memory."""
        return self._offered is not None

    def close(self) -> None:
        """Close the socket; the shared-memory segment is freed with the last reference to it."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._out.clear()
                if self._offered is not None:
                    shared_memory.unlink(self._offered[0])
                self.on_close(self)
                self.sock.close()


def _set_tcp_options(sock: socket.socket, silence: float) -> None:
    """Set TCP options: no delay, and detection of a lost peer within about `silence` seconds.

    Keepalive probes an idle connection. Without TCP_USER_TIMEOUT, Linux would repeat unacknowledged data for a quarter
    of an hour (tcp_retries2). TCP_USER_TIMEOUT ends both cases, however few probes were lost, so several are sent in
    that time."""
    interval = min(LONGEST_IDLE, max(1, int(silence / 4)))
    options = (
        (socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, interval), (socket.TCP_KEEPINTVL, interval),
        (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, int(1000 * min(silence, LONGEST_SILENCE))),
    )  # fmt: skip
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _layout(descriptor: bytes) -> shared_memory.SegmentLayout:
    try:
        return msgspec.msgpack.decode(descriptor, type=shared_memory.SegmentLayout)
    except msgspec.DecodeError as error:
        raise WireError("An offer of shared memory cannot be read.") from error

"""transport.wire_dtype: values between workers and servers travel in two bytes each, and are computed with in four.

Rows, gradients, the dense slice and replicas are rounded where they are sent and widened where they arrive, whatever
carries them: over TCP, in shared memory and in virtual time the same, so that where a process runs changes no bit. What
workers sum among themselves is rounded before and after the sum, with any collective; a ring (Horovod, Gloo) also sends
fp16 in two bytes, and bf16 in four, as it knows no sum of those. Ids, evaluations, and what is moved or saved whole
(switches, checkpoints) stay as they are, and so do parameters and all arithmetic: what a server applies is what
arrived. Costs a pass over the values at either end (see kernels/halves.py).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gbactl.errors import WireError
from gbactl.kernels import codec_of
from gbactl.kernels.halves import Codec
from gbactl.wire import frames
from gbactl.wire.channel import COORDINATOR, AroundHub, BufferPool, Channel, Hub
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import KIND, Centre, Elastic, Push, Rows, decode

VALUES = (Push, Rows, Elastic, Centre)
_KINDS = frozenset(KIND[message] for message in VALUES)


def ids_of(message: Any) -> int:
    """Bytes of ids that come before the values in a message's payload."""
    return 4 * max(0, message.rows) if isinstance(message, Push) else 0


def narrowed_bytes(message: Any, nbytes: int) -> int:
    """How long the payload of a message is on the wire that has `nbytes` before it is narrowed."""
    ids = ids_of(message)
    return ids + (nbytes - ids) // 2 if isinstance(message, VALUES) else nbytes


class NarrowChannel:
    """A connection between a worker and a server. `inner` carries what is narrowed."""

    def __init__(self, inner: Channel, codec: Codec) -> None:
        self.inner, self.codec, self.peer = inner, codec, inner.peer
        self._pool, self._arriving, self._lock = BufferPool(), BufferPool(), threading.Lock()
        self._lent: dict[int, Bytes] = {}

    def reserve(self, nbytes: int) -> Bytes:
        """Memory for the payload as it is before it is narrowed."""
        with self._lock:
            buffer = self._pool.take(nbytes)
            self._lent[buffer.ctypes.data] = buffer
        return buffer[:nbytes]

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """See channel.Channel."""
        if payload is None or not isinstance(message, VALUES):
            if payload is not None:  # it goes as it is: the memory is the connection's until it is written
                with self._lock:
                    self._lent.pop(payload.ctypes.data, None)
            self.inner.send(message, payload)
            return
        ids = ids_of(message)
        out = self.inner.reserve(narrowed_bytes(message, payload.size))
        out[:ids] = payload[:ids]
        self.codec.narrow(payload[ids:].view(np.float32), out[ids:].view(np.uint16))
        with self._lock:
            buffer = self._lent.pop(payload.ctypes.data, None)
            if buffer is not None:
                self._pool.give(buffer)
        self.inner.send(message, out)

    def close(self) -> None:
        """See channel.Channel."""
        self.inner.close()

    def widened(self, frame: Frame) -> Frame:
        """A frame as it was before it was narrowed; one that cannot have been stays, and is refused as such."""
        try:
            message = decode(frame)
        except WireError:
            return frame
        ids = ids_of(message)
        values = frame.payload.size - ids
        if values < 0 or values % 2:
            return frame
        pool = self._arriving
        out = pool.take(ids + 2 * values)
        out[:ids] = frame.payload[:ids]
        widened = out[ids : ids + 2 * values].view(np.float32)
        self.codec.widen(frame.payload[ids:].view(np.uint16), widened)
        frame.release()
        return Frame(frame.kind, frame.descriptor, out[: ids + 2 * values], lambda: pool.give(out), message)


class NarrowHub(AroundHub):
    """A hub whose connections between workers and servers are narrow."""

    def __init__(self, hub: Hub, codec: Codec) -> None:
        super().__init__(hub)
        self.codec, self.traffic.item = codec, 2
        self._channels: dict[int, NarrowChannel] = {}

    def connect(
        self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Any = COORDINATOR
    ) -> Channel:
        """See channel.Hub."""
        return self._of(self.hub.connect(address, segment_bytes, peer))

    def _of(self, inner: Channel) -> Channel:
        if inner.peer.role not in ("worker", "server"):
            return inner
        known = self._channels.get(id(inner))
        if known is None:
            known = self._channels[id(inner)] = NarrowChannel(inner, self.codec)
        return known

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See channel.Hub."""
        return [self._received(inner, frame) for inner, frame in self.hub.poll(timeout)]

    def _received(self, inner: Channel, frame: Frame) -> tuple[Channel, Frame]:
        channel = self._of(inner)
        if not isinstance(channel, NarrowChannel):
            return channel, frame
        if frame.kind == frames.CLOSED:
            del self._channels[id(inner)]
        elif frame.kind in _KINDS:
            frame = channel.widened(frame)
        return channel, frame


def narrowed(hub: Hub, wire_dtype: str) -> Hub:
    """A server's or a worker's hub with transport.wire_dtype applied to it."""
    codec = codec_of(wire_dtype)
    return hub if codec is None else NarrowHub(hub, codec)

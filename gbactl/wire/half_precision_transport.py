"""Half-precision transport of values between workers and servers (transport.wire_dtype); arithmetic stays in float32.

Rows, gradients, dense slices and replicas are rounded by the sender and widened by the receiver. This holds for TCP,
shared memory and virtual time alike, so that the placement of a process changes no bit. An all-reduce among workers
rounds before and after the sum, with any collective. A ring (Horovod, Gloo) also sends fp16 in two bytes; it sends bf16
in four, as it has no bf16 sum. Not rounded: ids, evaluations, whole states (switches, checkpoints), parameters and all
arithmetic. A server applies what arrived. The transport costs a pass over the values at either end (see
kernels/half_precision.py).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gbactl.errors import WireError
from gbactl.kernels import codec_of
from gbactl.kernels.half_precision import Codec
from gbactl.wire import frames
from gbactl.wire.channel_interface import BufferPool, Channel, ChannelWrapper, Hub, HubWrapper
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import KIND, EasgdCentre, EasgdUpdate, Push, Rows, decode

VALUES = (Push, Rows, EasgdUpdate, EasgdCentre)
_KINDS = frozenset(KIND[message] for message in VALUES)


def ids_of(message: Any) -> int:
    """Return the size in bytes of the row ids that precede the float values in a message's payload."""
    return 4 * max(0, message.rows) if isinstance(message, Push) else 0


def narrowed_bytes(message: Any, nbytes: int) -> int:
    """Return the size on the wire of a payload of `nbytes` bytes, whose float32 values are sent as two bytes each."""
    ids = ids_of(message)
    return ids + (nbytes - ids) // 2 if isinstance(message, VALUES) else nbytes


class HalfPrecisionChannel(ChannelWrapper):
    """Channel between a worker and a server that sends values as two bytes each over the channel `inner`."""

    def __init__(self, inner: Channel, codec: Codec) -> None:
        super().__init__(inner)
        self.codec = codec
        self._pool, self._arriving, self._lock = BufferPool(), BufferPool(), threading.Lock()
        self._lent: dict[int, Bytes] = {}

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory for a payload in float32, which `send` converts."""
        with self._lock:
            buffer = self._pool.take(nbytes)
            self._lent[buffer.ctypes.data] = buffer
        return buffer[:nbytes]

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        if payload is None or not isinstance(message, VALUES):
            if payload is not None:  # sent unchanged: the connection owns the memory until it is written
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

    def widened(self, frame: Frame) -> Frame:
        """Return a received frame with its values converted to float32.

        A frame of an impossible size is returned unchanged, and rejected where it is handled."""
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


class HalfPrecisionHub(HubWrapper[HalfPrecisionChannel]):
    """Hub whose channels between workers and servers send values as two bytes each."""

    def __init__(self, hub: Hub, codec: Codec) -> None:
        super().__init__(hub)
        self.codec, self.traffic.item = codec, 2

    def wrap(self, inner: Channel) -> HalfPrecisionChannel | None:
        return HalfPrecisionChannel(inner, self.codec) if inner.peer.role in ("worker", "server") else None

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        return [self._received(inner, frame) for inner, frame in self.hub.poll(timeout)]

    def _received(self, inner: Channel, frame: Frame) -> tuple[Channel, Frame]:
        channel = self.wrapper_of(inner)
        if channel is None:
            return inner, frame
        if frame.kind == frames.CLOSED:
            self.forget(inner)
        elif frame.kind in _KINDS:
            frame = channel.widened(frame)
        return channel, frame


def with_half_precision(hub: Hub, wire_dtype: str) -> Hub:
    """Wrap a server's or worker's hub in a HalfPrecisionHub if transport.wire_dtype is fp16 or bf16."""
    codec = codec_of(wire_dtype)
    return hub if codec is None else HalfPrecisionHub(hub, codec)

"""float32 in two bytes, and back: what transport.wire_dtype does to values on their way.

Rounded to nearest, ties to even. fp16: 11 bits, 6e-8 to 65,504 (what is larger becomes that, infinity too); bf16: 8
bits, float32's range. NaN stays NaN in both, so that a training that diverges is seen to. Compiled (native.py)
or by NumPy, the same bits: a million values take .4 and .1 ms, or 3 and .5 ms.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
LARGEST = np.float32(65504.0)
_NAN_FP16, _NAN_BF16 = 0x7E00, 0x7FC0


class Codec(Protocol):
    """Two bytes a value."""

    def narrow(self, values: Floats, out: Halves) -> None:
        """Round float32[n] into uint16[n]."""

    def widen(self, halves: Halves, out: Floats) -> None:
        """uint16[n] as float32[n], exactly."""

    def round(self, values: Floats) -> None:
        """Make of float32[n], in place, what would come back."""


class _InNumpy:
    narrow: Any
    widen: Any

    def round(self, values: Floats) -> None:
        """See Codec."""
        halves = np.empty(values.size, np.uint16)
        self.narrow(values, halves)
        self.widen(halves, values)


class Fp16(_InNumpy):
    """IEEE half precision."""

    def narrow(self, values: Floats, out: Halves) -> None:
        """See Codec."""
        np.copyto(out.view(np.float16), np.clip(values, -LARGEST, LARGEST), casting="same_kind")
        strange = np.isnan(values)
        if strange.any():
            out[strange] = _NAN_FP16

    def widen(self, halves: Halves, out: Floats) -> None:
        """See Codec."""
        np.copyto(out, halves.view(np.float16))


class Bf16(_InNumpy):
    """The upper half of a float32."""

    def narrow(self, values: Floats, out: Halves) -> None:
        """See Codec."""
        bits = np.ascontiguousarray(values).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        odd += bits
        odd += np.uint32(0x7FFF)
        odd >>= np.uint32(16)
        np.copyto(out, odd, casting="unsafe")
        strange = np.isnan(values)
        if strange.any():
            out[strange] = _NAN_BF16

    def widen(self, halves: Halves, out: Floats) -> None:
        """See Codec."""
        bits = out.view(np.uint32)
        np.copyto(bits, halves)
        bits <<= np.uint32(16)


CODECS: dict[str, Codec] = {"fp16": Fp16(), "bf16": Bf16()}


def rounded(codec: Codec | None, values: Floats) -> Floats:
    """What arrives where `values`, float32[...], are sent: a copy, or they themselves without a codec."""
    if codec is None:
        return values
    flat = np.array(values, np.float32, order="C").reshape(-1)
    codec.round(flat)
    return flat.reshape(values.shape)


def round_here(codec: Codec | None, values: Floats) -> None:
    """Make of `values`, float32[n] in one piece, what arrives where they are sent."""
    if codec is not None:
        codec.round(values)

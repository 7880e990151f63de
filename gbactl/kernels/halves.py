"""float32 in two bytes, and back: what transport.wire_dtype does to values on their way.

Rounded to nearest, ties to even. fp16: 11 bits, 6e-8 to 65,504 (what is larger becomes that, infinity too); bf16: 8
bits, float32's range. NaN stays NaN in both, so that a training that diverges is seen to.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gbactl.kernels.base import Floats

Halves = NDArray[np.uint16]
LARGEST = np.float32(65504.0)
_NAN = 0x7FC0


class Codec(Protocol):
    """Two bytes a value."""

    def narrow(self, values: Floats, out: Halves) -> None:
        """Round float32[n] into uint16[n]."""

    def widen(self, halves: Halves, out: Floats) -> None:
        """uint16[n] as float32[n], exactly."""


class Fp16:
    """IEEE half precision."""

    def narrow(self, values: Floats, out: Halves) -> None:
        """See Codec."""
        np.copyto(out.view(np.float16), np.clip(values, -LARGEST, LARGEST), casting="same_kind")

    def widen(self, halves: Halves, out: Floats) -> None:
        """See Codec."""
        np.copyto(out, halves.view(np.float16))


class Bf16:
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
            out[strange] = _NAN

    def widen(self, halves: Halves, out: Floats) -> None:
        """See Codec."""
        bits = out.view(np.uint32)
        np.copyto(bits, halves)
        bits <<= np.uint32(16)


CODECS: dict[str, Codec] = {"fp16": Fp16(), "bf16": Bf16()}


def codec_of(name: str) -> Codec | None:
    """By the name of its type; None for fp32, which travels as it is."""
    return CODECS.get(name)


def rounded(codec: Codec | None, values: Floats) -> Floats:
    """What arrives where `values`, float32[...], are sent: a copy, or they themselves without a codec."""
    if codec is None:
        return values
    flat = np.ascontiguousarray(values).reshape(-1)
    halves, out = np.empty(flat.size, np.uint16), np.empty(flat.size, np.float32)
    codec.narrow(flat, halves)
    codec.widen(halves, out)
    return out.reshape(values.shape)


def round_here(codec: Codec | None, values: Floats) -> None:
    """Make of `values`, float32[n], what arrives where they are sent."""
    if codec is not None:
        np.copyto(values, rounded(codec, values))

"""Conversion between float32 and two-byte floats, used for values in transit (transport.wire_dtype).

Values are rounded to nearest, ties to even. fp16 has 11 bits and a range from 6e-8 to 65,504 (larger values and
infinity become 65,504). bf16 has 8 bits and float32's range. NaN stays NaN in both, so that a diverging training is
noticed. The conversions are compiled (native.py) or in NumPy, with the same bits: a million values take .1 to .4 ms
compiled, .5 to 3 ms in NumPy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
LARGEST = np.float32(65504.0)
_NAN_FP16, _NAN_BF16 = 0x7E00, 0x7FC0


class Codec(ABC):
    """Conversion between float32 and a two-byte float type."""

    @abstractmethod
    def narrow(self, values: Floats, out: Halves) -> None:
        """Round float32[n] to two-byte floats, uint16[n]."""

    @abstractmethod
    def widen(self, halves: Halves, out: Floats) -> None:
        """Convert two-byte floats, uint16[n], to float32[n] exactly."""

    def round(self, values: Floats) -> None:
        """Round float32[n] in place to values that a two-byte float can hold."""
        halves = np.empty(values.size, np.uint16)
        self.narrow(values, halves)
        self.widen(halves, values)


class Fp16(Codec):
    """Codec for IEEE half precision."""

    def narrow(self, values: Floats, out: Halves) -> None:
        np.copyto(out.view(np.float16), np.clip(values, -LARGEST, LARGEST), casting="same_kind")
        nan = np.isnan(values)
        if nan.any():
            out[nan] = _NAN_FP16

    def widen(self, halves: Halves, out: Floats) -> None:
        np.copyto(out, halves.view(np.float16))


class Bf16(Codec):
    """Codec for bfloat16, the upper half of a float32."""

    def narrow(self, values: Floats, out: Halves) -> None:
        bits = np.ascontiguousarray(values).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        odd += bits
        odd += np.uint32(0x7FFF)
        odd >>= np.uint32(16)
        np.copyto(out, odd, casting="unsafe")
        nan = np.isnan(values)
        if nan.any():
            out[nan] = _NAN_BF16

    def widen(self, halves: Halves, out: Floats) -> None:
        bits = out.view(np.uint32)
        np.copyto(bits, halves)
        bits <<= np.uint32(16)


CODECS: dict[str, Codec] = {"fp16": Fp16(), "bf16": Bf16()}


def rounded(codec: Codec | None, values: Floats) -> Floats:
    """Return a copy of `values` rounded to the two-byte type, equal to what the receiver decodes.

    Without a codec return `values` itself.
    """
    if codec is None:
        return values
    flat = np.array(values, np.float32, order="C").reshape(-1)
    codec.round(flat)
    return flat.reshape(values.shape)


def round_here(codec: Codec | None, values: Floats) -> None:
    """Round contiguous float32[n] in place to the two-byte type of `codec`; no effect without a codec."""
    if codec is not None:
        codec.round(values)

"""Integer hash (the finaliser of splitmix64) for shuffling, hidden models, bucketing of ids and random faults.

About 6 ns a value, vectorised; the same numbers on every machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash uint64 values to uint64 values; a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix_int(x: int) -> int:
    """Hash one Python integer like `mix`, taken modulo 2**64."""
    x &= MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def text_value(text: str) -> int:
    """Hash a text that is not a hexadecimal number to a stable 63-bit number."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def bucket(values: NDArray[np.int64], field: int, buckets: int) -> NDArray[np.int32]:
    """Hash the values of one field to ids 1..buckets-1; id 0 means "missing"."""
    salted = values.view(np.uint64) ^ np.uint64(mix_int((field + 1) * GOLDEN))
    top = mix(salted) >> np.uint64(32)
    return ((top * np.uint64(buckets - 1)) >> np.uint64(32)).astype(np.int32) + np.int32(1)

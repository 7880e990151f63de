"""A keyed pseudo-random permutation of range(n), any part of which costs only that part's memory.

A Feistel network over the next power of two, walked along its cycles until the value falls below n: fewer
than two passes on average, about 60 ns a position. The coordinator and every worker compute the same order
from (key, n) without exchanging it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gbactl.hashing import MASK64, mix, mix_int

ROUNDS = 8


def _encrypt(x: NDArray[np.uint64], bits: int, keys: list[int]) -> NDArray[np.uint64]:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = x & low_mask, x >> low_bits
    for i in range(0, ROUNDS, 2):
        high = high ^ (mix(low ^ np.uint64(keys[i])) & high_mask)
        low = low ^ (mix(high ^ np.uint64(keys[i + 1])) & low_mask)
    return (high << low_bits) | low


def permuted(lo: int, hi: int, n: int, key: int) -> NDArray[np.int64]:
    """int64[hi - lo]: positions lo..hi of the permutation of range(n) that belongs to `key` (any integer).

    Raises ValueError unless 0 <= lo <= hi <= n.
    """
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"positions {lo}..{hi} of a permutation of {n}")
    bits = max(2, (n - 1).bit_length())
    keys = [mix_int((key + i * 0x9E3779B97F4A7C15) & MASK64) for i in range(ROUNDS)]
    result = _encrypt(np.arange(lo, hi, dtype=np.uint64), bits, keys)
    outside = np.flatnonzero(result >= n)
    while len(outside):
        walked = _encrypt(result[outside], bits, keys)
        result[outside] = walked
        outside = outside[walked >= n]
    return result.astype(np.int64)

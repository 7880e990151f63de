"""Digests of parameters: a BLAKE2b digest of array bytes, and a sum of row hashes that does not depend on sharding.

The shard-independent one is a sum over rows of a hash of (row number, values). The sums of all shards are added up and
compared with those of a run with another number of shards. It makes temporaries and costs 10 times as much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 24
ROWS_AT_ONCE = 1 << 15
MOST_BYTES = 1 << 29  # above this the shard-independent sum is left out
_MIX = 0x9E3779B97F4A7C15
MODULUS = 1 << 64


def digest(arrays: Iterable[NDArray[Any]]) -> str:
    """Compute the BLAKE2b digest (128 bits, hex) of the types, shapes and bytes of contiguous arrays, in order."""
    hashed = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hashed.update(f"{array.dtype.str}{array.shape}".encode())
        data = array.reshape(-1).view(np.uint8).data
        for low in range(0, len(data), CHUNK):
            hashed.update(data[low : low + CHUNK])
    return hashed.hexdigest()


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x81DADEF4BC2DD44D)
    return values ^ (values >> np.uint64(33))


def row_sum(array: NDArray[Any], first: int, stride: int, salt: int) -> int:
    """Compute the shard-independent checksum of an array: the sum modulo 2^64 of a hash of each row.

    Hashed are salt, row number first + i * stride, and the bits of row i.
    `array` has 4-byte elements and any shape [n, ...].
    """
    if not array.size:
        return 0
    words = array.reshape(len(array), -1).view(np.uint32)
    columns = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(_MIX) | np.uint64(1)
    total = 0
    for low in range(0, len(words), ROWS_AT_ONCE):
        part = words[low : low + ROWS_AT_ONCE].astype(np.uint64)
        number = np.arange(low, low + len(part), dtype=np.uint64) * np.uint64(stride) + np.uint64(first)
        key = _mixed(number * np.uint64(_MIX) + np.uint64(salt + 1))
        hashed = _mixed(((part + np.uint64(1)) * columns).sum(axis=1, dtype=np.uint64) ^ key)
        total = (total + int(hashed.sum(dtype=np.uint64))) % MODULUS
    return total

"""Hashes that are the same on every machine, random numbers made of them, and digests of parameters.

The integer hash (the finaliser of splitmix64) shuffles, buckets ids and draws hidden models: 6 ns a value, vectorised.
Random numbers by counter are a pure function of (key, counter), so that all engines draw the same; a number costs 2 us.
Bits agree between machines up to the mathematics library's.

A digest of arrays covers their bytes. The checksum that does not depend on sharding is a sum over rows of a hash of
(row number, values); the sums of all shards are added up. It makes temporaries and costs 10 times as much.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Any

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


SIGMA, SHAPE = 1.0, 2.5
_NORMAL = NormalDist()


def key_of(*parts: int) -> int:
    """Hash integers to a 64-bit key: the same on all machines, different for different integers."""
    state = 0
    for part in parts:
        state = mix_int((state ^ part) + GOLDEN)
    return state


def training_key(*parts: int) -> int:
    """Mix integers (seed, epoch, ...) to a 63-bit key for shuffling samples or for dropout.

    It is the same on all machines, and different for different integers."""
    state = 0
    for part in parts:
        state = ((state ^ (part & MASK64)) * GOLDEN + 0x632BE59BD9B4E019) & MASK64
        state ^= state >> 29
    return state >> 1


def uniform(key: int, counter: int) -> float:
    """Return random number `counter` of the sequence with this key, uniform in the open interval (0, 1)."""
    return ((key_of(key, counter) >> 12) + 0.5) * 2.0**-52


def exponential(u: float, _: float | None = None) -> float:
    """Convert a uniform number to an exponential random number of mean 1."""
    return -math.log1p(-u)


def lognormal(u: float, sigma: float | None = None) -> float:
    """Convert a uniform number to a log-normal random number of mean 1 (`sigma` of the underlying normal)."""
    s = sigma or SIGMA
    return math.exp(s * _NORMAL.inv_cdf(u) - s * s / 2.0)


def pareto(u: float, shape: float | None = None) -> float:
    """Convert a uniform number to a Pareto random number of the second kind (from 0), of mean 1.

    `shape` > 1: tail exponent."""
    a = shape or SHAPE
    return (a - 1.0) * math.expm1(-math.log1p(-u) / a)


def weibull(u: float, shape: float | None = None) -> float:
    """Convert a uniform number to a Weibull random number of mean 1.

    `shape` 1: exponential, below 1: bursts of failures."""
    k = shape or 1.0
    return math.pow(-math.log1p(-u), 1.0 / k) / math.gamma(1.0 + 1.0 / k)


def gamma(u: float, shape: float | None = None) -> float:
    """Convert a uniform number to a gamma random number of mean 1, by rejection with `u` as the seed.

    `shape` 1: exponential."""
    k = shape or 1.0
    return random.Random(int(u * 2.0**52)).gammavariate(k, 1.0 / k)


DISTRIBUTIONS: dict[str, Callable[[float, float | None], float]] = {
    "exponential": exponential,
    "lognormal": lognormal,
    "pareto": pareto,
}
INTERVALS: dict[str, Callable[[float, float | None], float]] = {
    "exponential": exponential,
    "weibull": weibull,
    "gamma": gamma,
}


CHUNK = 1 << 24
ROWS_AT_ONCE = 1 << 15
MOST_BYTES = 1 << 29  # above this the shard-independent sum is left out
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
    columns = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(GOLDEN) | np.uint64(1)
    total = 0
    for low in range(0, len(words), ROWS_AT_ONCE):
        part = words[low : low + ROWS_AT_ONCE].astype(np.uint64)
        number = np.arange(low, low + len(part), dtype=np.uint64) * np.uint64(stride) + np.uint64(first)
        key = _mixed(number * np.uint64(GOLDEN) + np.uint64(salt + 1))
        hashed = _mixed(((part + np.uint64(1)) * columns).sum(axis=1, dtype=np.uint64) ^ key)
        total = (total + int(hashed.sum(dtype=np.uint64))) % MODULUS
    return total

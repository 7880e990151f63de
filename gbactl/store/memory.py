"""Arrays that start on a cache line, so that a 64-byte row never costs two misses.

Zeros are zero pages of the system: they cost memory only once they are written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64


def zeros(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """A zero array of `shape`, aligned to 64 bytes."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.zeros(size + LINE, np.uint8)
    skip = -raw.ctypes.data % LINE
    return raw[skip : skip + size].view(kind).reshape(shape)


def full(shape: tuple[int, ...], value: float) -> NDArray[np.float32]:
    """A float32 array filled with `value`; untouched pages when that is 0."""
    made = zeros(shape)
    if value:
        made.fill(value)
    return made

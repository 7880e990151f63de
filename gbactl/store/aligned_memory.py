"""Zeroed arrays aligned to cache lines, so that reading an embedding row of 64 bytes costs one cache miss, not two.

Large arrays ask for huge pages: rows far apart then cost a cache miss and no page-table walk, which makes a pull about
1.5 times as fast. Their pages are populated at allocation, so that no step waits for the system to find and clear 2 MB
when a row is the first of its page.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
HUGE = 1 << 21
LARGE = 2 * HUGE
POPULATE_WRITE = 23  # Linux 5.14; Python's mmap has no name for it


def zeros(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Allocate a zero array of `shape`, aligned to 64 bytes, or to 2 MB if it is large."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw, step = (_huge(size), HUGE) if size >= LARGE else (np.zeros(size + LINE, np.uint8), LINE)
    skip = -raw.ctypes.data % step
    return raw[skip : skip + size].view(kind).reshape(shape)


def _huge(size: int) -> NDArray[np.uint8]:
    """Allocate at least `size` zero bytes and room to align them: populated, and on huge pages where possible."""
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (getattr(mmap, "MADV_HUGEPAGE", 0), POPULATE_WRITE if sys.platform == "linux" else 0):
        with contextlib.suppress(AttributeError, OSError):  # switched off, kernel too old, or too few huge pages
            memory.madvise(advice)
    return np.frombuffer(memory, np.uint8)


def full(shape: tuple[int, ...], value: float) -> NDArray[np.float32]:
    """Allocate an aligned float32 array filled with `value`; 0 touches no pages."""
    made = zeros(shape)
    if value:
        made.fill(value)
    return made


def copied(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy values into an aligned array that a model can compute with in place."""
    made = zeros(values.shape)
    np.copyto(made, values)
    return made

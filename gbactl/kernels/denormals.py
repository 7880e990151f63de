"""Denormal numbers count as 0 on every node: a thread that computes says so once.

They are slow (a table of idle Adam moments fades into them), and bits are the same everywhere only if all do
it. The setting belongs to the thread; it costs a microsecond.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from gbactl.kernels.build import find_library
from gbactl.kernels.library import open_library


def flushes() -> bool:
    """Whether the calling thread flushes them."""
    return bool(np.multiply(np.float32(2e-38), np.float32(0.25)) == 0)


def flush(on: bool = True) -> None:
    """Set the calling thread to flush them, or not to."""
    path = find_library()
    if path is not None:
        open_library(path).gb_flush_denormals(int(on))
        return
    import torch

    torch.set_flush_denormal(on)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Inside, they are 0; afterwards what was before."""
    before = flushes()
    flush(True)
    try:
        yield
    finally:
        flush(before)

"""Dense replica of one trainer: compute threads step on it while exchanges add differences.

A compute thread holds only its own lock during its step, so threads never wait for each other (Hogwild). An exchange
takes all of them, for as long as one copy or one addition takes (0.1 ms for 0.5 M values) and never while it waits for
others. So no local step is lost: a difference is added to the replica as it is by then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.store.dense import DenseBlock


class Replica:
    """Dense replica: `block` is the vector with its optimizer state; `threads` compute on it."""

    def __init__(self, block: DenseBlock, threads: int = 1) -> None:
        self.block = block
        self._locks: list[threading.Lock] = []
        self._steps: list[int] = []
        self.grow(threads)

    def grow(self, count: int) -> None:
        """Allow `count` compute threads. No thread may be computing."""
        more = max(0, count - len(self._locks))
        self._locks += [threading.Lock() for _ in range(more)]
        self._steps += [0] * more

    @property
    def value(self) -> Floats:
        """Vector f32[P + Q], which other threads may be writing to."""
        return self.block.value

    @property
    def iterations(self) -> int:
        """Number of steps of all threads."""
        return sum(self._steps)

    def step(self, gradient: Floats, divisor: float, lr_scale: float, thread: int = 0) -> None:
        """Take a compute thread's optimizer step with f32[P + Q] gradient / divisor."""
        with self._locks[thread]:
            self.block.apply(gradient, divisor, divisor, lr_scale)
            self._steps[thread] += 1

    @contextmanager
    def still(self) -> Iterator[None]:
        """Block all threads' steps within the context."""
        with ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield

    def snapshot(self, out: Floats) -> None:
        """Copy the replica into f32[P + Q] as it is between two steps."""
        with self.still():
            np.copyto(out, self.block.value)

    def add(self, difference: Floats) -> None:
        """Add f32[P + Q] to the replica as it is now."""
        with self.still():
            np.add(self.block.value, difference, out=self.block.value)

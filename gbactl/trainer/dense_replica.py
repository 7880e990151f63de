"""Dense replica of one trainer: compute threads step it concurrently, and exchanges add differences to it.

A compute thread holds only its own lock during its step, so threads never wait for each other (Hogwild). An exchange
takes all of them, for as long as one copy or one addition takes (0.1 ms for 0.5 M values) and never while it waits for
others. So no local step is lost: a difference is added to the replica as it is by then.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.store.dense import DenseBlock


class Replica:
    """Dense replica of one trainer. `block`: its vector with optimizer state; `threads`: compute threads."""

    def __init__(self, block: DenseBlock, threads: int = 1) -> None:
        self.block = block
        self._locks: list[threading.Lock] = []
        self._steps: list[int] = []
        self.grow(threads)

    def grow(self, count: int) -> None:
        """Allow `count` compute threads; call it while no thread computes."""
        more = max(0, count - len(self._locks))
        self._locks += [threading.Lock() for _ in range(more)]
        self._steps += [0] * more

    @property
    def value(self) -> Floats:
        """Replica's vector (parameters, batch-norm buffers), which other threads may be writing to."""
        return self.block.value

    @property
    def iterations(self) -> int:
        """Number of local steps, summed over all threads."""
        return sum(self._steps)

    def step(self, gradient: Floats, divisor: float, lr_scale: float, thread: int = 0) -> None:
        """Apply an optimizer step of compute thread `thread` with gradient / divisor."""
        with self._locks[thread]:
            self.block.apply(gradient, divisor, divisor, lr_scale)
            self._steps[thread] += 1

    @contextmanager
    def all_threads_paused(self) -> Iterator[None]:
        """Context in which no thread can take a step."""
        with ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield

    def snapshot(self, out: Floats) -> None:
        """Copy the replica's vector to `out`, as it is between two steps."""
        with self.all_threads_paused():
            np.copyto(out, self.block.value)

    def add(self, difference: Floats) -> None:
        """Add a vector of differences to the current replica."""
        with self.all_threads_paused():
            np.add(self.block.value, difference, out=self.block.value)


SPACING = 1.1  # distances are taken at exchanges 1, 2, 3, ... 10, 12, 14, ...: a hundred in ten thousand


@dataclass
class ExchangeStatistics:
    """Statistics of one trainer's exchanges.

    Times are seconds; `gaps` counts local iterations between two exchanges. Those that the
    trainer only answers, because it is `idle`, make no gap."""

    iterations: int = 0
    exchanges: int = 0
    seconds: float = 0.0
    foreground: float = 0.0
    sent: float = 0.0
    gaps: Counter[int] = field(default_factory=Counter)
    distances: list[tuple[float, float]] = field(default_factory=list)
    idle: bool = False
    _last: int = 0
    _next: float = 1.0

    def distance(self, at: float, replica: Floats, other: Floats) -> None:
        """Record the L2 distance of the replica from the mean or centre `other`, `at` seconds into the phase.

        Not every time."""
        if self.exchanges + 1 >= self._next:
            self._next = max(self._next + 1, self._next * SPACING)
            self.distances.append((at, float(np.linalg.norm(replica - other))))

    def met(self, iterations: int, seconds: float, sent: float) -> None:
        """Record an exchange: its duration and bytes sent, and the local steps done so far."""
        self.exchanges += 1
        if iterations > self._last or not self.idle:
            self.gaps[iterations - self._last] += 1
        self._last = iterations
        self.seconds += seconds
        self.sent += sent

    def fields(self) -> dict[str, Any]:
        """Convert the statistics to the fields of a message."""
        return {
            "iterations": self.iterations, "exchanges": self.exchanges, "seconds": self.seconds,
            "foreground": self.foreground, "sent": self.sent,
            "gaps": {str(gap): count for gap, count in sorted(self.gaps.items())},
            "distances": [list(point) for point in self.distances],
        }  # fmt: skip

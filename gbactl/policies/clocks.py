"""Workers' clocks with the slowest one at hand. A tick costs O(1); a loss, what the slowest clock moves on."""

from __future__ import annotations

from collections.abc import Iterable


class Clocks:
    """A count of finished batches for each live worker. The slowest clock never goes back."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.slowest = 0
        self._of = dict.fromkeys(workers, 0)
        self._at = {0: len(self._of)}

    def ahead(self, worker: int) -> int:
        """Batches that a live worker is ahead of the slowest one."""
        return self._of[worker] - self.slowest

    def tick(self, worker: int) -> None:
        """A live worker has finished a batch."""
        clock = self._of[worker] + 1
        self._of[worker] = clock
        self._at[clock] = self._at.get(clock, 0) + 1
        self._leave(clock - 1)

    def add(self, worker: int) -> None:
        """A joiner takes the slowest clock; one that is there already keeps its own."""
        if worker not in self._of:
            self._of[worker] = self.slowest
            self._at[self.slowest] = self._at.get(self.slowest, 0) + 1

    def remove(self, worker: int) -> None:
        """Forget a worker; the next slowest one's clock counts then. Without any, the last one stands."""
        if worker in self._of:
            self._leave(self._of.pop(worker))

    def _leave(self, clock: int) -> None:
        self._at[clock] -= 1
        if self._at[clock] == 0:
            del self._at[clock]
        while self._at and self.slowest not in self._at:
            self.slowest += 1

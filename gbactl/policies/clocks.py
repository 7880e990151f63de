"""Clocks of the live workers, with the slowest one known. A tick costs O(1); a loss, the slowest clock's advance."""

from __future__ import annotations

from collections.abc import Iterable


class WorkerClocks:
    """Clocks: the number of finished batches of each live worker. The slowest clock never goes back."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.slowest = 0
        self._of = dict.fromkeys(workers, 0)
        self._at = {0: len(self._of)}

    def ahead(self, worker: int) -> int:
        """Number of batches that a live worker is ahead of the slowest one."""
        return self._of[worker] - self.slowest

    def tick(self, worker: int) -> None:
        """Count a finished batch of a live worker."""
        clock = self._of[worker] + 1
        self._of[worker] = clock
        self._at[clock] = self._at.get(clock, 0) + 1
        self._leave(clock - 1)

    def add(self, worker: int) -> None:
        """Add a worker at the slowest clock; one that is already there keeps its own."""
        if worker not in self._of:
            self._of[worker] = self.slowest
            self._at[self.slowest] = self._at.get(self.slowest, 0) + 1

    def remove(self, worker: int) -> None:
        """Remove a worker; the next slowest clock counts then. Without workers, the last one stays."""
        if worker in self._of:
            self._leave(self._of.pop(worker))

    def _leave(self, clock: int) -> None:
        self._at[clock] -= 1
        if self._at[clock] == 0:
            del self._at[clock]
        while self._at and self.slowest not in self._at:
            self.slowest += 1

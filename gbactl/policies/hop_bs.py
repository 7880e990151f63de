"""Policy of `hop_bs`: bounded staleness, following the idea of Hop; fast workers wait for the slowest one.

A worker's clock is the number of batches it has finished. Granting a batch costs the same at any number of workers.
Removing a worker costs one operation for each batch by which the slowest clock then advances.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from gbactl.checked_dataclasses import NumberOrInfinity
from gbactl.policies.async_and_bsp import AsyncPolicy
from gbactl.policies.policy import Grant, PolicyOptions


class WorkerClocks:
    """Workers' clocks: the number of batches that each live worker has finished."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.slowest = 0
        self._clock_of = dict.fromkeys(workers, 0)
        self._workers_at = {0: len(self._clock_of)}

    def batches_ahead(self, worker: int) -> int:
        """Compute how many batches a live worker is ahead of the slowest one."""
        return self._clock_of[worker] - self.slowest

    def tick(self, worker: int) -> None:
        """Count a batch that a live worker has finished."""
        clock = self._clock_of[worker] + 1
        self._clock_of[worker] = clock
        self._workers_at[clock] = self._workers_at.get(clock, 0) + 1
        self._leave(clock - 1)

    def add(self, worker: int) -> None:
        """Add a worker with the clock of the slowest one; a worker that is already there keeps its clock."""
        if worker not in self._clock_of:
            self._clock_of[worker] = self.slowest
            self._workers_at[self.slowest] = self._workers_at.get(self.slowest, 0) + 1

    def remove(self, worker: int) -> None:
        """Remove a worker's clock; the slowest of the remaining workers then limits the others."""
        if worker in self._clock_of:
            self._leave(self._clock_of.pop(worker))

    def _leave(self, clock: int) -> None:
        self._workers_at[clock] -= 1
        if self._workers_at[clock] == 0:
            del self._workers_at[clock]
        while self._workers_at and self.slowest not in self._workers_at:
            self.slowest += 1


@dataclass(frozen=True)
class HopBsOptions(PolicyOptions):
    """Options of `hop_bs`. `bound`: number of batches by which a worker that gets a batch may lead the slowest one."""

    bound: NumberOrInfinity = 2


class HopBsPolicy(AsyncPolicy):
    """Policy of `hop_bs`: each gradient is applied on arrival; a worker too far ahead of the slowest one must wait."""

    options: HopBsOptions
    number: ClassVar[int | None] = 4
    Options: ClassVar[type[PolicyOptions]] = HopBsOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clocks = WorkerClocks(self.phase.workers)

    def take(self, worker: int) -> Grant | None:
        """Grant the next batch, unless the worker is more than `bound` batches ahead of the slowest live one."""
        if worker in self.live and self.clocks.batches_ahead(worker) > self.options.bound:
            return None
        return super().take(worker)

    def _return(self, worker: int, batch: int) -> Grant | None:
        grant = super()._return(worker, batch)
        if grant is not None:
            before = self.clocks.slowest
            self.clocks.tick(worker)
            self.openings += self.clocks.slowest > before
        return grant

    def lost_worker(self, worker: int) -> list[int]:
        """Reassign a failed worker's batches, and remove its clock so that no worker waits for it."""
        self.clocks.remove(worker)
        return super().lost_worker(worker)

    def joined_worker(self, worker: int) -> None:
        """Let a worker take batches, with the clock of the slowest live one."""
        self.clocks.add(worker)
        super().joined_worker(worker)

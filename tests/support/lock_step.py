"""Policies whose workers run in lock-step, for the identities: batches in turn, arrivals put into batch order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gbactl.policies.async_and_bsp import AsyncPolicy, BufferedPolicy
from gbactl.policies.gba import GbaPolicy
from gbactl.policies.policy import Decision, Grant


class LockStep(BufferedPolicy):
    """Workers that happen to run in lock-step: the same policy, arrivals put into batch order."""

    prefetch_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.turns = dict.fromkeys(self.phase.workers, 0)
        self.early: dict[int, int] = {}
        self.announced = 0

    def take(self, worker: int) -> Grant | None:
        if worker not in self.turns:
            return None
        due = self.turns[worker] * len(self.phase.workers) + self.phase.workers.index(worker)
        if due != self.next_batch:
            return None
        grant = super().take(worker)
        if grant is None:
            return None
        self.turns[worker] += 1
        grant = dataclasses.replace(grant, after=self.phase.first_step + grant.batch // self.size)
        self.leases[worker][grant.batch] = grant
        return grant

    @property
    def exhausted(self) -> bool:
        return self.next_batch >= self.phase.batches

    @property
    def idle(self) -> bool:
        return self.exhausted and not self.leases and not self.early

    def announce(self, worker: int, batch: int) -> list[Decision]:
        self.openings += 1
        self.early[batch] = worker
        steps: list[Decision] = []
        while self.announced in self.early:
            due = self.announced
            self.announced += 1
            steps += super().announce(self.early.pop(due), due)
        return steps


class LockStepGba(LockStep, GbaPolicy):
    """`gba` in lock-step."""


class LockStepAsync(LockStep, AsyncPolicy):
    """`async` in lock-step: one gradient after the other."""

"""`hop_bw`: backup workers, following the idea of Hop: a step does not wait for the last `backup` workers.

Step by step on the servers; who comes too late has worked for nothing and goes on with the newest step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from gbactl.errors import ConfigError
from gbactl.policies.base import Policy, PolicyOptions, register
from gbactl.policies.records import Decision, Grant, Member, Step
from gbactl.typed import Natural


@dataclass(frozen=True)
class HopBwOptions(PolicyOptions):
    """`backup`: gradients of a step that are not waited for."""

    backup: Natural = 1

    def check_workers(self, workers: int) -> None:
        """See PolicyOptions."""
        if self.backup >= workers:
            raise ConfigError(
                f"mode.backup={self.backup} of cluster.workers={workers} leaves nobody to wait for; "
                f"type mode.backup={max(0, workers - 1)} or less."
            )


@register("hop_bw")
class HopBwPolicy(Policy):
    """A step closes at the first W - backup gradients of it, or as many as there are live workers."""

    Options: ClassVar[type[PolicyOptions]] = HopBwOptions
    prefetch_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quorum = len(self.phase.workers) - cast(HopBwOptions, self.options).backup
        self.arrived: list[Member] = []
        self.busy: set[int] = set()
        self.delivered: set[int] = set()

    def take(self, worker: int) -> Grant | None:
        """A batch of the newest step; one lease at a time, and one gradient a step and worker."""
        if worker not in self.live or worker in self.busy or worker in self.delivered:
            return None
        batch = self._next()
        if batch is None:
            return None
        self.busy.add(worker)
        start = batch * self.phase.local_batch
        return self._lease(worker, Grant(batch, self.step, start, self.phase.size(batch), after=self.step))

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """A gradient of the newest step joins it and may close it; a late one is dropped."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        self.busy.discard(worker)
        if grant.token < self.step:
            self.openings += 1
            return [self._drop(grant)]
        weight = grant.samples / self.phase.local_batch
        self.arrived.append(Member(batch, worker, weight, grant.samples, 0))
        self.delivered.add(worker)
        return self.poll()

    def poll(self) -> list[Decision]:
        """Close the step if fewer live workers make what has arrived enough."""
        due = self.live and len(self.arrived) >= min(self.quorum, len(self.live))
        return [self._close()] if due and self.arrived else []

    def _last_batch(self, batch: int) -> int:
        """Between two steps nothing is partial, however many batches were dropped before."""
        between = not self.arrived and not any(grant.token == self.step for _, grant in self.leases.values())
        return batch if batch == self.next_batch and between else super()._last_batch(batch)

    def finish(self) -> list[Step]:
        """What is left at the end of the data is a partial step."""
        return [self._close()] if self.arrived else []

    def _close(self) -> Step:
        members = tuple(sorted(self.arrived, key=lambda member: member.batch))
        self.arrived, self.delivered = [], set()
        self.openings += 1
        return self._emit(Step(self.step, members, sum(m.weight for m in members)))

    def lost_worker(self, worker: int) -> list[int]:
        """What it delivered counts; what it held is handed out again for the newest step."""
        self.busy.discard(worker)
        self.delivered.discard(worker)
        return super().lost_worker(worker)

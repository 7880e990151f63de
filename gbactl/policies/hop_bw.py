"""`hop_bw`: backup workers, following the idea of Hop: a step does not wait for the last `backup` workers.

Step by step on the servers; who comes too late has worked for nothing and goes on with the newest step. Which batch a
worker gets next is settled ahead where the phase says so, as soon as everybody has one of this step or is late with one
before; of what step it is, when the worker takes it.
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


@register("hop_bw", 5)
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
        self.reserved: dict[int, int] = {}  # worker -> its next batch, which may still go to another
        self._took: set[int] = set()

    def take(self, worker: int) -> Grant | None:
        """A batch of the newest step; one lease at a time, and one gradient a step and worker."""
        if worker not in self.live or worker in self.busy or worker in self.delivered:
            return None
        batch = self._settled(worker)
        if batch is None:
            return None
        self.busy.add(worker)
        if self.phase.ahead:
            self._took.add(worker)
            self.ahead = self._reserve()
        start = batch * self.phase.local_batch
        return self._lease(worker, Grant(batch, self.step, start, self.phase.size(batch), after=self.step))

    def _settled(self, worker: int) -> int | None:
        """The batch that was reserved for a worker, a new one, or, where no other is left, somebody else's."""
        if worker in self.reserved:
            return self.reserved.pop(worker)
        batch = self._next()
        if batch is None and self.reserved:
            return self.reserved.pop(min(self.reserved, key=self.reserved.__getitem__))
        return batch

    def _reserve(self) -> list[tuple[int, int]]:
        """Once nobody is free to take a batch of this step: who gets which of the next ones."""
        if len(self.busy) + len(self.delivered) < len(self.live):
            return []
        workers, self._took = sorted((self._took & self.live) - self.reserved.keys()), set()
        settled = [(worker, batch) for worker in workers if (batch := self._next()) is not None]
        self.reserved.update(settled)
        return settled

    @property
    def exhausted(self) -> bool:
        """See Policy: what is reserved was not handed out."""
        return super().exhausted and not self.reserved

    def forgo(self) -> list[int]:
        """See Policy; nobody gets what was reserved, either."""
        self.reissue.extend(self.reserved.values())
        self.reserved.clear()
        return super().forgo()

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
        begun = self.arrived or self.reserved or any(grant.token == self.step for _, grant in self.leases.values())
        return batch if batch == self.next_batch and not begun else super()._last_batch(batch)

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
        if worker in self.reserved:
            self.reissue.append(self.reserved.pop(worker))
        return super().lost_worker(worker)

"""Policy of `hop_bw`: backup workers, following the idea of Hop; a step does not wait for the slowest workers.

Steps are applied on the servers; a late gradient is dropped, and its worker goes on with the newest step. Where the
phase prefetches, a worker's next batch is reserved ahead, as soon as every worker has a batch of this step or is late
with an earlier one. The step of a reserved batch is decided when the worker takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gbactl.checked_dataclasses import Natural
from gbactl.errors import ConfigError
from gbactl.policies.policy import Decision, Grant, Member, Policy, PolicyOptions, Step


@dataclass(frozen=True)
class HopBwOptions(PolicyOptions):
    """Options of `hop_bw`. `backup`: number of workers whose gradients a step does not wait for."""

    backup: Natural = 1

    def check_workers(self, workers: int) -> None:
        if self.backup >= workers:
            raise ConfigError(
                f"mode.backup={self.backup} of cluster.workers={workers} leaves nobody to wait for; "
                f"type mode.backup={max(0, workers - 1)} or less."
            )


class HopBwPolicy(Policy):
    """Policy of `hop_bw`: a step closes at its first (workers - backup) gradients, or at all live workers' if fewer."""

    options: HopBwOptions
    number: ClassVar[int | None] = 5
    Options: ClassVar[type[PolicyOptions]] = HopBwOptions
    prefetch_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quorum = len(self.phase.workers) - self.options.backup
        self.arrived: list[Member] = []
        self.delivered: set[int] = set()
        self.reserved: dict[int, int] = {}  # worker -> its next batch, which may still go to another
        self._prefetching: set[int] = set()

    def take(self, worker: int) -> Grant | None:
        """Grant a worker a batch of the newest step, at most one at a time and one per step."""
        if worker not in self.live or self.leased_to(worker) or worker in self.delivered:
            return None
        batch = self._assign(worker)
        if batch is None:
            return None
        start = batch * self.phase.local_batch
        grant = self._lease(worker, Grant(batch, self.step, start, self.phase.size(batch), after=self.step))
        if self.phase.prefetches:
            self._prefetching.add(worker)
            self.ahead = self._reserve()
        return grant

    def _assign(self, worker: int) -> int | None:
        """Take a worker's next batch: the one reserved for it, else a new one, else another worker's reserved one."""
        if worker in self.reserved:
            return self.reserved.pop(worker)
        batch = self._next()
        if batch is None and self.reserved:
            return self.reserved.pop(min(self.reserved, key=self.reserved.__getitem__))
        return batch

    def _reserve(self) -> list[tuple[int, int]]:
        """Reserve the next step's batches for workers, once every live worker is computing or has delivered."""
        if len(self.leases) + len(self.delivered) < len(self.live):
            return []
        workers, self._prefetching = sorted((self._prefetching & self.live) - self.reserved.keys()), set()
        reserved = [(worker, batch) for worker in workers if (batch := self._next()) is not None]
        self.reserved.update(reserved)
        return reserved

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left to hand out, reserved batches included."""
        return super().exhausted and not self.reserved

    def forgo(self) -> list[int]:
        """Give up the batches in flight and those reserved: they count as decayed, and the phase ends. Returns them."""
        self.reissue.extend(self.reserved.values())
        self.reserved.clear()
        return super().forgo()

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Add a gradient to the newest step, and close the step if complete; drop a gradient of an earlier step."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        if grant.token < self.step:
            self.openings += 1
            return [self._drop(grant)]
        weight = grant.samples / self.phase.local_batch
        self.arrived.append(Member(batch, worker, weight, grant.samples, 0))
        self.delivered.add(worker)
        return self.poll()

    def poll(self) -> list[Decision]:
        """Close the current step if enough gradients have arrived: those of all live workers, or all but `backup`."""
        due = self.live and len(self.arrived) >= min(self.quorum, len(self.live))
        return [self._close()] if due and self.arrived else []

    def _last_batch(self, batch: int) -> int:
        """Compute the batch at which hand-out stops so that no step is partial; `batch` itself if no step is open."""
        leased = (grant for held in self.leases.values() for grant in held.values())
        begun = self.arrived or self.reserved or any(grant.token == self.step for grant in leased)
        return batch if batch == self.next_batch and not begun else super()._last_batch(batch)

    def finish(self) -> list[Step]:
        """Close the last step with the gradients that arrived, at the end of the data."""
        return [self._close()] if self.arrived else []

    def _close(self) -> Step:
        members = tuple(sorted(self.arrived, key=lambda member: member.batch))
        self.arrived, self.delivered = [], set()
        self.openings += 1
        return self._emit(Step(self.step, members, sum(m.weight for m in members)))

    def lost_worker(self, worker: int) -> list[int]:
        """Reassign a failed worker's leased and reserved batches; its delivered gradients still count."""
        self.delivered.discard(worker)
        if worker in self.reserved:
            self.reissue.append(self.reserved.pop(worker))
        return super().lost_worker(worker)

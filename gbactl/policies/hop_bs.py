"""Policy of `hop_bs`: bounded staleness, following the idea of Hop. Fast workers wait for the slowest one.

A worker's clock is the number of batches it has finished. The slowest clock is kept up to date, not searched
for: a decision costs the same at any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from gbactl.config_types import NumberOrInfinity
from gbactl.policies.async_ps import AsyncPolicy
from gbactl.policies.base import PolicyOptions, register
from gbactl.policies.clocks import WorkerClocks
from gbactl.policies.records import Grant


@dataclass(frozen=True)
class HopBsOptions(PolicyOptions):
    """Options of `hop_bs`. `bound`: batches that a worker may be ahead of the slowest one and still take the next."""

    bound: NumberOrInfinity = 2


@register("hop_bs", 4)
class HopBsPolicy(AsyncPolicy):
    """Policy of `hop_bs`: each gradient is applied on arrival; the next batch is granted only within the bound."""

    Options: ClassVar[type[PolicyOptions]] = HopBsOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clocks = WorkerClocks(self.phase.workers)
        self._bound = cast(HopBsOptions, self.options).bound

    def take(self, worker: int) -> Grant | None:
        """Grant the next batch, unless the worker is more than `bound` batches ahead of the slowest live one."""
        if worker in self.live and self.clocks.ahead(worker) > self._bound:
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
        """See Policy.lost_worker; no worker waits for a failed one."""
        self.clocks.remove(worker)
        return super().lost_worker(worker)

    def joined_worker(self, worker: int) -> None:
        """See Policy.joined_worker; the worker starts at the clock of the slowest live one."""
        self.clocks.add(worker)
        super().joined_worker(worker)

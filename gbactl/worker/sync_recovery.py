"""Worker's recovery in `sync` after other workers' failures: recomputed batches, and steps to go back to.

A step's batches have places in its sum, and any worker may fill any of them. When a worker fails, another computes its
batch and fills its place, and no step is restarted: the sum is in batch order, the bits are those of a run
without the failure. Where the failed worker had filled its place but its rows had not arrived, the others have already
taken the dense step; the batch is then computed again with the parameters before it, for its rows alone. Costs a
copy of the dense vector a step.
"""

from __future__ import annotations

import numpy as np

from gbactl.collective.base import Vector
from gbactl.collective.fault_tolerant import FaultTolerantCollective
from gbactl.models.flat import FlatModel
from gbactl.worker.client import WorkerClient
from gbactl.worker.core import BatchInProgress, ReplicatedSteps


class SyncRecovery:
    """Recovery of one worker in `sync`. `value`: its dense parameters float32[n], updated in place."""

    def __init__(
        self,
        collective: FaultTolerantCollective,
        exchange: WorkerClient,
        flat: FlatModel,
        value: Vector,
        steps: ReplicatedSteps,
    ) -> None:
        self.collective, self.exchange, self.flat, self.value = collective, exchange, flat, value
        self.steps = steps
        self._before = value.copy()  # parameters before the last step
        self._now = value.copy()
        self._first: int | None = None  # first step of this generation
        self._token = -1  # current step
        collective.wanted = self._wanted
        exchange.on_more = self._more_comes

    def begin(self, item: BatchInProgress) -> bool:
        """Announce the place that a batch fills.

        False where its step is taken already, and only its rows are missing."""
        token, place = item.grant.token, self.steps.place(item)
        if place is None:
            np.copyto(self._now, self.value)
            self.flat.load(self._before)
            return False
        self._first = token if self._first is None else self._first
        self._token = token
        self.collective.deal(token - self._first + 1, place.part, place.parts, token + 1)
        return True

    def forward(self) -> None:
        """Load the current parameters again after a batch of an earlier step was computed."""
        self.flat.load(self._now)

    def more(self) -> bool:
        """Whether this worker has another batch of the current step."""
        return self.exchange.core.has_batch_of(self._token)

    def _more_comes(self, step: int) -> None:
        if step <= self._token:
            self.collective.interrupt()

    def _wanted(self) -> bool:
        return self.exchange.over() or self.more()

    def take(self) -> None:
        """Keep the parameters before the step that is taken now."""
        np.copyto(self._before, self.value)

    def renew(self, generation: int) -> None:
        """Begin a new generation, in which all workers have the same parameters."""
        self._first = None
        self.collective.renew(generation)

"""A worker's part in `sync` where others may die: whose batch it computes, and steps that it must go back to.

A step's batches have places in its sum, and any worker may fill any of them. So when one dies, another computes its
batch and fills its place, and nobody has to begin again: the sum is in batch order, the bits are those of a run in
which nobody died. Where the dead one had filled its place and its rows had not arrived, the others have taken the
dense step already; the batch is then computed once more with the parameters before it, for its rows alone. Costs a
copy of the dense vector a step.
"""

from __future__ import annotations

import numpy as np

from gbactl.collective.base import Vector
from gbactl.collective.fault_tolerant import Surviving
from gbactl.models.flat import FlatModel
from gbactl.worker.client import Exchange
from gbactl.worker.core import Item, ReplicatedSteps


class Survival:
    """One worker's. `value`: its dense parameters float32[n], where they are changed."""

    def __init__(
        self, collective: Surviving, exchange: Exchange, flat: FlatModel, value: Vector, steps: ReplicatedSteps
    ) -> None:
        self.collective, self.exchange, self.flat, self.value = collective, exchange, flat, value
        self.steps = steps
        self._before = value.copy()  # the parameters that the last step was taken from
        self._now = value.copy()
        self._first: int | None = None  # of this generation
        self._token = -1  # of the step at hand
        collective.wanted = self._wanted
        exchange.on_more = self._more_comes

    def begin(self, item: Item) -> bool:
        """Before a batch: say which place is filled next. False where its step is taken: only its rows are missing."""
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
        """A batch of a step that was taken is computed: back to the parameters of now."""
        self.flat.load(self._now)

    def more(self) -> bool:
        """Whether another batch of the step at hand is this worker's."""
        return self.exchange.core.has_batch_of(self._token)

    def _more_comes(self, step: int) -> None:
        if step <= self._token:
            self.collective.interrupt()

    def _wanted(self) -> bool:
        return self.exchange.over() or self.more()

    def take(self) -> None:
        """The sum of a step is there: it is taken now."""
        np.copyto(self._before, self.value)

    def renew(self, generation: int) -> None:
        """Everybody has the same parameters and begins anew."""
        self._first = None
        self.collective.renew(generation)

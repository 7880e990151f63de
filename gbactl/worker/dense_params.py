"""Who holds the dense parameters, seen from a worker: the servers, or every worker the same ones (see trainer/ for
those of its own).

The compute loop does not know which: it calls `load` before and `finish` after a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gbactl.collective.base import Buckets, Collective
from gbactl.collective.fault_tolerant import InterruptedSum
from gbactl.collective.overlap import Filling
from gbactl.kernels.halves import Codec
from gbactl.models.flat import FlatModel
from gbactl.store.checksum import digest
from gbactl.store.dense import DenseBlock, dense_square
from gbactl.store.schedule import due
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Norms
from gbactl.worker.core import Item, ReplicatedSteps, weigh
from gbactl.worker.dense_slices import Slices
from gbactl.worker.sync_recovery import Survival

NOT_HERE = (0, -1, np.empty(0, np.float32))  # see DensePlacement.packed


class Placements:
    """The dense placements that a run uses, by home, and the one in use."""

    def __init__(self, placements: Mapping[str, DensePlacement], first: str) -> None:
        self.placements, self.now = placements, placements[first]

    @property
    def trainer(self) -> Any:
        """That of this worker as a trainer (see trainer/dense_params.py)."""
        return self.placements["replicas"]

    def move(self, home: str, gives: bool, turn: int = 0) -> None:
        """Nothing is in flight: from now on they are at `home`, this worker having done its part in moving them.

        `turn` is the same for all. It may be asked again, and `gives` then, where who was to give them died."""
        if self.now is not self.placements[home]:
            self.now.leave()
            self.placements[home].take_over(turn)
        if home == "servers" and gives:
            self.placements["workers"].hand_over()
        self.now = self.placements[home]


class DensePlacement(Protocol):
    """Where a worker's dense vector comes from and where its gradient goes."""

    def load(self, item: Item) -> None:
        """Put the dense parameters this batch is to be computed with into the model."""

    def checksum(self) -> tuple[str, str]:
        """(checksum, model sum) of the dense parameters held here; empty where the servers hold them."""

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """(optimizer steps, P, DenseBlock.packed) of what is held here when `after` steps (0: any number) are taken,
        for a checkpoint; None before that. P is -1 where that is over, or nothing is held here."""

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Hand on the gradient that was just computed; `row_gradient` is None in a batch of no samples."""

    def leave(self) -> None:
        """Let go of borrowed memory: somebody else holds the parameters from now on."""

    def take_over(self, turn: int) -> None:
        """Get parameters and optimizer state from the servers; `turn` counts moves, the same for all workers."""

    def hand_over(self) -> None:
        """Give parameters and optimizer state to the servers."""


class ServedDense:
    """The servers hold it: pulled with the rows, pushed with their gradients."""

    def __init__(self, flat: FlatModel, slices: Slices) -> None:
        self.flat, self.exchange, self.cuts = flat, slices.exchange, slices.cuts
        self.gradient = np.empty(flat.size, np.float32)
        self._held: Frame | None = None

    def size(self, shard: int) -> int:
        """See client.DenseParts."""
        low, high = self.cuts[shard]
        return high - low

    def write(self, shard: int, out: Any) -> None:
        """See client.DenseParts."""
        low, high = self.cuts[shard]
        if high - low == self.flat.size:
            self.flat.gradient_into(out)
            return
        if shard == 0:
            self.flat.gradient_into(self.gradient)
        out[:] = self.gradient[low:high]

    def load(self, item: Item) -> None:
        """Use the vector where it lies if one server holds all of it, else copy the slices that changed."""
        for shard, (rows, frame) in item.answers.items():
            if rows.dense and rows.dense == self.flat.size:
                if self.flat.use(frame.payload[: 4 * rows.dense].view(np.float32)):
                    self._hold(item, frame)
            elif rows.dense:
                self.flat.load_slice(self.cuts[shard][0], frame.payload.view(np.float32)[: rows.dense])

    def _hold(self, item: Item, frame: Frame) -> None:
        """Keep the memory the model computes with; give the one before back."""
        item.kept = frame
        if self._held is not None:
            self._held.release()
        self._held = frame

    def leave(self) -> None:
        """See DensePlacement."""
        self.flat.come_home()
        if self._held is not None:
            self._held.release()
            self._held = None

    def take_over(self, turn: int) -> None:
        """The servers have it."""

    def hand_over(self) -> None:
        """The servers have it."""

    def checksum(self) -> tuple[str, str]:
        """See DensePlacement."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """See DensePlacement: nothing is held here."""
        return NOT_HERE

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Push rows and dense slices."""
        if row_gradient is None:
            self.exchange.take(item)
        else:
            self.exchange.push(item, row_gradient, self)


class ReplicatedDense:
    """Every worker holds it: gradients are summed by an all-reduce, every worker applies the same step.

    The all-reduce of a bucket begins while the backward pass computes the next.
    """

    def __init__(
        self, flat: FlatModel, slices: Slices, collective: Collective, block: DenseBlock, buckets: int,
        steps: ReplicatedSteps, norms_every: int = 0, survival: Survival | None = None, codec: Codec | None = None,
    ) -> None:  # fmt: skip
        self.steps = steps
        self.survival, self.slices, self.exchange = survival, slices, slices.exchange
        self.flat, self.collective, self.block = flat, collective, block
        self.norms_every = norms_every if self.exchange.index == 0 else 0  # all have the same sum: one tells
        self.gradient = np.zeros(flat.size, np.float32)
        spans = [*flat.spans, *([(flat.params, flat.size)] if flat.buffers else [])]
        cuts = Buckets.of_parameters("dense", [high - low for low, high in spans], buckets)
        self._spans, self._filling = spans, Filling(collective, cuts, self.gradient, spans, codec)
        self._weight = 1.0
        self._begun = self._again = False

    def leave(self) -> None:
        """See DensePlacement."""
        self.flat.listen(None)

    def take_over(self, turn: int) -> None:
        """See DensePlacement."""
        if self.survival is not None:
            self.survival.renew(turn)
        self.steps.taken = -1
        self.slices.fetch(self.block)
        self.restored()

    def hand_over(self) -> None:
        """See DensePlacement."""
        self.slices.give(self.block)

    def load(self, item: Item) -> None:
        """The model already holds it; its gradient is to be summed while it is computed."""
        if self.survival is not None and item.phase.training:
            self._again = not self.survival.begin(item)
            if self._again:
                self.flat.listen(None)
                return
        if item.phase.training and item.grant.samples:
            self._weight = item.weight
            self._begun = False
            self.flat.listen(self._arrived)

    def _arrived(self, parameter: int, gradient: Tensor) -> None:
        """Hand on one parameter's gradient; the first one shows that the forward pass is over."""
        if not self._begun:
            self._begun = True
            if self.flat.buffers:
                low, high = self._spans[-1]
                self.flat.statistics_into(self.gradient[low:high])
                self._scaled(len(self._spans) - 1)
        low, high = self._spans[parameter]
        np.copyto(self.gradient[low:high].reshape(gradient.shape), gradient.numpy())
        self._scaled(parameter)

    def _scaled(self, part: int) -> None:
        low, high = self._spans[part]
        weigh(self.gradient[low:high], self._weight)
        self._filling.filled(part)

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """See DensePlacement."""
        there = self.steps.at(after)
        if not there:
            return None if there is None else NOT_HERE
        return self.block.step, self.block.params, self.block.packed(0, self.flat.size)

    def restored(self) -> None:
        """The block holds other values than it has computed itself: go on with those."""
        self.flat.load(self.block.value.copy())

    def _summed(self) -> bool:
        """Wait for a step's sum. False where another batch of the step is this worker's, or nothing counts any more."""
        try:
            if self.survival is not None and self.survival.more():
                self._filling.begin()
                return False
            self._filling.wait()
        except InterruptedSum:
            return False
        return True

    def checksum(self) -> tuple[str, str]:
        """See DensePlacement."""
        own = digest([self.block.value, *self.block.moments.values()])
        return own, str(self.block.model_sum())

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Push rows and ask for the next batch's while the last buckets are summed; then take the step."""
        grant = item.grant
        if self._again and self.survival is not None:
            self.exchange.push(item, row_gradient, None)
            self.survival.forward()
            return
        if row_gradient is None:
            self.gradient[:] = 0.0
            self._filling.flush()
            self.exchange.take(item)
        else:
            self._filling.flush()
            self.exchange.push(item, row_gradient, None)
        self.exchange.pull_ahead()
        if not self._summed():
            return
        if due(self.norms_every, grant.token):
            square = dense_square([(self.gradient, 1.0)], self.block.params, grant.divisor)
            self.exchange.coordinator.send(Norms(grant.token, square, []))
        if self.survival is not None:
            self.survival.take()
        self.block.apply(self.gradient, grant.divisor, grant.divisor, grant.lr_scale)
        self.steps.taken = grant.token
        if self.block.value is not self.flat.vector:
            self.flat.load(self.block.value)

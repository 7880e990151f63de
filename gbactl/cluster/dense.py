"""Who holds the dense parameters, seen from a worker: the servers, or every worker its own copy.

The compute loop does not know which: it calls `load` before and `finish` after a gradient.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gbactl.cluster.exchange import Exchange, Item
from gbactl.cluster.frames import Frame
from gbactl.collective.base import Buckets, Collective
from gbactl.models.flat import FlatModel
from gbactl.store.checksum import digest
from gbactl.store.dense import DenseBlock, dense_range


class DenseSide(Protocol):
    """Where a worker's dense vector comes from and where its gradient goes."""

    def load(self, item: Item) -> None:
        """Put the dense parameters this batch is to be computed with into the model."""

    def checksum(self) -> tuple[str, str]:
        """(checksum, model sum) of the dense parameters held here; empty where the servers hold them."""

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Hand on the gradient that was just computed; `row_gradient` is None in a batch of no samples."""


class ServedDense:
    """The servers hold it: pulled with the rows, pushed with their gradients."""

    def __init__(self, flat: FlatModel, exchange: Exchange) -> None:
        self.flat, self.exchange = flat, exchange
        shards = len(exchange.servers)
        self.cuts = [dense_range(flat.size, s, shards) for s in range(shards)]
        self.gradient = np.empty(flat.size, np.float32)
        self._held: Frame | None = None

    def size(self, shard: int) -> int:
        """See exchange.DenseParts."""
        low, high = self.cuts[shard]
        return high - low

    def write(self, shard: int, out: Any) -> None:
        """See exchange.DenseParts."""
        if len(self.cuts) == 1:
            self.flat.gradient_into(out)
            return
        low, high = self.cuts[shard]
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

    def checksum(self) -> tuple[str, str]:
        """See DenseSide."""
        return "", ""

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Push rows and dense slices."""
        if row_gradient is None:
            self.exchange.take()
        else:
            self.exchange.push(item, row_gradient, self)


class ReplicatedDense:
    """Every worker holds it: gradients are summed by an all-reduce, every worker applies the same step."""

    def __init__(
        self, flat: FlatModel, exchange: Exchange, collective: Collective, block: DenseBlock, buckets: int
    ) -> None:
        self.flat, self.exchange, self.collective, self.block = flat, exchange, collective, block
        self.gradient = np.zeros(flat.size, np.float32)
        sizes = [p.numel() for p in flat.parameters] + [flat.buffers] * bool(flat.buffers)
        self.buckets = Buckets.of_parameters("dense", sizes, buckets)

    def load(self, item: Item) -> None:
        """The model already holds it."""

    def checksum(self) -> tuple[str, str]:
        """See DenseSide."""
        own = digest([self.block.value, *self.block.moments.values()])
        return own, str(self.block.model_sum())

    def finish(self, item: Item, row_gradient: Any) -> None:
        """All-reduce the dense gradient while rows are pushed and the next batch's rows are asked for."""
        grant = item.grant
        if row_gradient is None:
            self.gradient[:] = 0.0
        else:
            self.flat.gradient_into(self.gradient)
            weight = grant.samples / item.phase.local_batch
            if weight != 1.0:
                self.gradient *= np.float32(weight)
        handles = self.buckets.start(self.collective, self.gradient)
        if row_gradient is None:
            self.exchange.take()
        else:
            self.exchange.push(item, row_gradient, None)
        self.exchange.pull_ahead()
        for handle in handles:
            self.collective.wait(handle)
        self.block.apply(self.gradient, grant.divisor, grant.divisor, grant.lr_scale)
        if self.block.value is not self.flat.vector:
            self.flat.load(self.block.value)

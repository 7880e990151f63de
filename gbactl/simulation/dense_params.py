"""Who holds the dense vector of a virtual cluster: the servers, all workers the same one, or each its own.

Where the servers hold it, a gradient is computed when it is pushed, from what was pulled: until then only the
pulled rows are held, and dense slices that all pulls of a version share. Where the workers hold it, replicas are
equal by definition, so there is one; gradients are added up in batch order as they come, and only what comes out of
order is held.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.kernels.halves import Codec, round_here
from gbactl.simulation.batch import Item
from gbactl.simulation.compute import Compute
from gbactl.simulation.ring import Ring
from gbactl.simulation.worker import VirtualWorker
from gbactl.store.checksum import digest
from gbactl.store.dense import DenseBlock, dense_square
from gbactl.store.schedule import due
from gbactl.wire.messages import Norms, Push

Payloads = list[tuple[int, Any, int, int]]


def _room(item: Item, low: int, high: int, width: int, dense: int) -> tuple[Any, Floats, Floats]:
    """A push's payload uint8[n] with its index written, and float32 views: rows [high - low, width], [dense]."""
    count = high - low
    out = np.empty(4 * (count + count * width + dense), np.uint8)
    out[: 4 * count].view(np.int32)[:] = item.unique.index[low:high]
    values, cut = out.view(np.float32), count * (1 + width)
    return out, values[count:cut].reshape(count, width), values[cut:]


def computed(compute: Compute, item: Item, sizes: list[int]) -> Payloads:
    """Compute an item's gradient: (shard, payload, rows, dense values) of every shard; `sizes` of its dense parts."""
    shares = list(item.unique.shares())
    rooms = [_room(item, low, high, compute.width, sizes[shard]) for shard, low, high in shares]
    if len(rooms) == 1:
        compute.gradient(item, rooms[0][1])
    else:
        sums = compute.gradient(item)
        for (_, low, high), (_, rows, _) in zip(shares, rooms, strict=True):
            rows[:] = sums[low:high]
    return [
        (shard, out, high - low, sizes[shard]) for (shard, low, high), (out, _, _) in zip(shares, rooms, strict=True)
    ]


def push(worker: VirtualWorker, item: Item, payloads: Payloads) -> None:
    """Send every shard its part."""
    grant = item.grant
    for shard, out, rows, dense in payloads:
        told = item.loss, item.seconds, item.slowdown, item.row_versions[shard], item.dense_versions[shard]
        worker.servers[shard].send(Push(grant.phase, grant.batch, rows, dense, *told), out)


class ServedSide:
    """The servers hold it: pulled with the rows, pushed with their gradients."""

    def __init__(self, compute: Compute) -> None:
        self.compute, self.flat = compute, compute.flat
        self.sizes = [high - low for low, high in compute.cuts]
        self._whole = np.empty(self.flat.size if len(compute.held) > 1 else 0, np.float32)

    def begin(self, worker: VirtualWorker, item: Item) -> None:
        """See worker.Side."""

    def finish(self, worker: VirtualWorker, item: Item) -> None:
        """See worker.Side."""
        if item.grant.samples == 0:
            worker.take()
        else:
            self.compute.load(item)
            payloads = computed(self.compute, item, self.sizes)
            self._write(payloads)
            push(worker, item, payloads)
        worker.free()

    def _write(self, payloads: Payloads) -> None:
        """The dense gradient behind each shard's rows."""
        parts = [out.view(np.float32)[len(out) // 4 - dense :] for _, out, _, dense in payloads]
        if len(self.compute.held) == 1:
            self.flat.gradient_into(parts[next(iter(self.compute.held))])
            return
        self.flat.gradient_into(self._whole)
        for part, (low, high) in zip(parts, self.compute.cuts, strict=True):
            part[:] = self._whole[low:high]

    def resume(self, worker: VirtualWorker) -> None:
        """See worker.Side: nobody waits here."""

    def checksum(self) -> tuple[str, str]:
        """See worker.Side."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """See worker.Side: nothing is held here."""
        return 0, -1, np.empty(0, np.float32)

    def leave(self) -> None:
        """See worker.Side."""
        self.compute.come_home()


class OrderedSum:
    """A sum of vectors in the order of their ranks, whenever they come: ((v0 + v1) + v2) + ..."""

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size, np.float32)
        self._next = 0
        self._held: dict[int, Floats] = {}

    def add(self, rank: int, vector: Floats) -> None:
        """Take part, once; the vector is copied if it has to wait for one before it."""
        if rank < self._next or rank in self._held:
            return
        if rank != self._next:
            self._held[rank] = vector.copy()
            return
        self._take(vector)
        while self._next in self._held:
            self._take(self._held.pop(self._next))

    def _take(self, vector: Floats) -> None:
        if self._next == 0:
            np.copyto(self.total, vector)
        else:
            np.add(self.total, vector, out=self.total)
        self._next += 1

    def complete(self, ranks: int) -> bool:
        """Whether so many ranks have taken part."""
        return self._next == ranks

    def take(self) -> Floats:
        """The sum, valid until the next `add`."""
        self._next = 0
        return self.total


class ReplicatedSide:
    """All workers hold it: gradients are summed by an all-reduce, everybody applies the same step.

    Who dies is not waited for: others are dealt its batches, as in worker/sync_recovery.py. `members`: who takes
    part."""

    def __init__(
        self, compute: Compute, block: DenseBlock, ring: Ring, global_batch: int, norms_every: int = 0,
        codec: Codec | None = None,
    ) -> None:  # fmt: skip
        self.compute, self.flat, self.block = compute, compute.flat, block
        self.ring, self.norms_every, self.codec = ring, norms_every, codec
        self._none = [0] * compute.servers
        self._sum, self._global_batch = OrderedSum(self.flat.size), global_batch
        self.members = set(range(len(ring.hosts)))
        self._before = block.value.copy()  # the parameters that the last step was taken from
        self._taken, self._parts, self._stepping = -1, 0, False
        self._again: set[int] = set()
        self._gradient = np.zeros(self.flat.size, np.float32)
        self._payloads: dict[int, Payloads] = {}
        self._there: dict[int, tuple[VirtualWorker, Item]] = {}
        self._checksum: tuple[int, tuple[str, str]] = (-1, ("", ""))

    def begin(self, worker: VirtualWorker, item: Item) -> None:
        """Compute now: the vector is this step's until everybody has finished."""
        grant, phase, gradient = item.grant, item.phase, self._gradient
        width = self._global_batch // phase.local_batch
        first = (grant.token - phase.first_step) * width
        if grant.samples and grant.token <= self._taken:
            self._compute_again(worker, item)
            return
        self._parts = min(width, -(-phase.samples // phase.local_batch) - first)
        if grant.samples == 0:
            return
        self._payloads[worker.index] = computed(self.compute, item, self._none)
        self.flat.gradient_into(gradient)
        weight = grant.samples / phase.local_batch
        if weight != 1.0:
            gradient *= np.float32(weight)
        round_here(self.codec, gradient)
        self._sum.add(grant.batch - first, gradient)

    def _compute_again(self, worker: VirtualWorker, item: Item) -> None:
        """A dead worker's batch of a step that is taken: its rows are missing."""
        now = self.block.value.copy()
        self.flat.load(self._before)
        self._payloads[worker.index] = computed(self.compute, item, self._none)
        self.flat.load(now)
        self._again.add(worker.index)

    def finish(self, worker: VirtualWorker, item: Item) -> None:
        """Push the rows; the last worker to come starts the all-reduce."""
        if item.grant.samples == 0:
            worker.take()
        else:
            push(worker, item, self._payloads.pop(worker.index))
        worker.pull_ahead()
        if worker.index in self._again or worker.has_batch_of(item.grant.token):
            self._again.discard(worker.index)
            worker.free()
            return
        self._there[worker.index] = (worker, item)
        self._look()

    def _look(self) -> None:
        """Begin the all-reduce when everybody who lives is there, and every part."""
        if self._stepping or not self._there or not self.members <= set(self._there):
            return
        if self._sum.complete(self._parts):
            _, item = next(reversed(self._there.values()))
            self._stepping = True
            self.ring.sum(self.flat.size, sorted(self._there), item.seconds, functools.partial(self._step, item))

    def resume(self, worker: VirtualWorker) -> None:
        """See worker.Side: it goes on if it waits for a step of which it has another batch now."""
        _, item = self._there.get(worker.index, (worker, None))
        if item is not None and not self._stepping and worker.has_batch_of(item.grant.token):
            del self._there[worker.index]
            worker.free()

    def left(self, index: int) -> None:
        """A worker is gone."""
        self.members.discard(index)
        self._there.pop(index, None)
        self._look()

    def _step(self, item: Item) -> None:
        grant = item.grant
        self._stepping, self._taken = False, grant.token
        np.copyto(self._before, self.block.value)
        total = self._sum.take()
        round_here(self.codec, total)
        if due(self.norms_every, grant.token):
            square = dense_square([(total, 1.0)], self.block.params, grant.divisor)
            min(self._there.values(), key=lambda pair: pair[0].index)[0].coordinator.send(
                Norms(grant.token, square, [])
            )
        self.block.apply(total, grant.divisor, grant.divisor, grant.lr_scale)
        if self.block.value is not self.flat.vector:
            self.flat.load(self.block.value)
        there, self._there = self._there, {}
        cost, floats = self.ring.cost, self.flat.size
        seconds = cost.ring_work(floats, len(self.ring.hosts)) + cost.replica_step(floats)
        for worker, _ in there.values():
            worker.host.cores.run(seconds, worker.free)

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """See worker.Side."""
        if after and self._taken != after - 1:
            return None if self._taken < after - 1 else (0, -1, np.empty(0, np.float32))
        return self.block.step, self.block.params, self.block.packed(0, self.flat.size)

    def checksum(self) -> tuple[str, str]:
        """See worker.Side; computed once a step for all."""
        if self._checksum[0] != self.block.step:
            own = digest([self.block.value, *self.block.moments.values()])
            self._checksum = (self.block.step, (own, str(self.block.model_sum())))
        return self._checksum[1]

    def leave(self) -> None:
        """See worker.Side."""

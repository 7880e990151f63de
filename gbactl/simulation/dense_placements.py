"""Dense placements in a virtual cluster: on the servers, copied on all workers, or a replica per trainer.

Where the servers hold the dense vector, a gradient is computed when it is pushed, from what was pulled: until then only
the pulled rows are held, and dense slices that all pulls of a version share. Where all workers hold it, their copies
are equal by definition, so the simulation has one. Gradients are added in batch order as they arrive, and only those
out of order are held. A trainer's gradients are computed at a batch's start and applied to its replica at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_block
from gbactl.hashes_and_random_numbers import digest
from gbactl.kernels import codec_of
from gbactl.kernels.base import Floats, aligned_copy
from gbactl.kernels.half_precision import round_here
from gbactl.simulation.gradient_compute import SharedCompute
from gbactl.simulation.network import RingRounds, SimulatedRing
from gbactl.simulation.replica_trainer import VirtualTrainer
from gbactl.simulation.worker import DensePlacement, State, VirtualWorker
from gbactl.store.dense import dense_square
from gbactl.store.optimizer_settings import due
from gbactl.wire.messages import GradientNorms
from gbactl.worker.worker_core import BatchInProgress, ReplicatedSteps, push_views, scale_by_weight

Payloads = list[tuple[int, Any, int, int]]


def _room(item: BatchInProgress, low: int, high: int, width: int, dense: int) -> tuple[Any, Floats]:
    """Allocate a push's payload uint8[n] with row ids, and a view of its row gradients float32[high - low, width]."""
    out = np.empty(4 * ((high - low) * (1 + width) + dense), np.uint8)
    return out, push_views(out, item.unique.index[low:high], width)[0]


def computed(compute: SharedCompute, item: BatchInProgress, dense: Sequence[int] = ()) -> Payloads:
    """Compute a batch's gradient: for each shard (shard, payload, number of rows, number of dense values).

    `dense`: size of each dense slice."""
    sizes = dense or [0] * compute.servers
    shares = list(item.unique.shares())
    rooms = [_room(item, low, high, compute.width, sizes[shard]) for shard, low, high in shares]
    if len(rooms) == 1:
        compute.gradient(item, rooms[0][1])
    else:
        sums = compute.gradient(item)
        for (_, low, high), (_, rows) in zip(shares, rooms, strict=True):
            rows[:] = sums[low:high]
    return [(shard, out, high - low, sizes[shard]) for (shard, low, high), (out, _) in zip(shares, rooms, strict=True)]


def computed_apart(compute: SharedCompute, item: BatchInProgress, gradient: Floats) -> Payloads:
    """Compute a batch's gradient: payloads of the rows alone, and the weighted dense gradient into `gradient`."""
    payloads = computed(compute, item)
    compute.flat.gradient_into(gradient)
    scale_by_weight(gradient, item.weight)
    return payloads


def push(worker: VirtualWorker, item: BatchInProgress, payloads: Payloads) -> None:
    """Send every shard its slice of a batch's gradient."""
    worker.core.pushed(item)
    for shard, out, rows, dense in payloads:
        worker.servers[shard].send(item.push(shard, rows, dense), out)


class ServedDense(DensePlacement):
    """Placement on the servers: dense parameters are pulled, and their gradients pushed, together with the rows."""

    def __init__(self, compute: SharedCompute) -> None:
        super().__init__(compute)
        self.sizes = [high - low for low, high in compute.cuts]
        self._whole = np.empty(self.flat.size if len(compute.held) > 1 else 0, np.float32)

    def finish(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Compute the gradient from the pulled parameters, pull the next batch's, and push the gradient."""
        if item.grant.samples == 0:
            worker.take(item)
        else:
            worker.pull_ahead()
            self.compute.load(item)
            payloads = computed(self.compute, item, self.sizes)
            self._write(payloads)
            push(worker, item, payloads)
        worker.free_thread()

    def _write(self, payloads: Payloads) -> None:
        """Write the dense gradient behind each shard's rows in the payloads."""
        parts = [out.view(np.float32)[len(out) // 4 - dense :] for _, out, _, dense in payloads]
        if len(self.compute.held) == 1:
            self.flat.gradient_into(parts[next(iter(self.compute.held))])
            return
        self.flat.gradient_into(self._whole)
        for part, (low, high) in zip(parts, self.compute.cuts, strict=True):
            part[:] = self._whole[low:high]


class OrderedSum:
    """Sum of vectors in the order of their ranks, whatever the order of arrival: ((v0 + v1) + v2) + ..."""

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size, np.float32)
        self._next = 0
        self._held: dict[int, Floats] = {}

    def add(self, rank: int, vector: Floats) -> None:
        """Add a rank's vector, which is copied if it has to wait for an earlier rank."""
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
        """Whether the vectors of `ranks` ranks were added."""
        return self._next == ranks

    def take(self) -> Floats:
        """Return the sum, which is valid until the next `add`."""
        self._next = 0
        return self.total


class ReplicatedDense(DensePlacement):
    """Replicated placement: gradients are summed by an all-reduce, and all workers apply the same step.

    Failed workers are not waited for: others are dealt their batches, as by SyncRecovery (worker/dense_placement.py).
    `members`: workers that take part."""

    def __init__(self, cfg: RunConfig, compute: SharedCompute, ring: SimulatedRing) -> None:
        super().__init__(compute)
        flat = compute.flat
        self.block = dense_block(cfg, flat.initial() if flat.buffers else flat.vector, flat.dense_spec, resumed=True)
        flat.load(self.block.value.copy())
        self.ring, self.norms_every = ring, cfg.train.norms_every
        self.codec = codec_of(cfg.transport.wire_dtype)
        self._sum, self.steps = OrderedSum(flat.size), ReplicatedSteps(cfg.train.global_batch)
        self.members = set(range(len(ring.hosts)))
        self._previous = self.block.value.copy()  # parameters before the last step
        self._parts, self._stepping = 0, False
        self._outdated = False  # whether the servers have a newer dense state
        self._recomputed: set[int] = set()
        self._gradient = np.zeros(self.flat.size, np.float32)
        self._payloads: dict[int, Payloads] = {}
        self._finished: dict[int, tuple[VirtualWorker, BatchInProgress]] = {}
        self._checksum: tuple[int, tuple[str, str]] = (-1, ("", ""))

    def begin(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Compute a worker's gradient at once: the parameters stay at this step until all workers have finished."""
        position, gradient = self.steps.index_in_sum(item), self._gradient
        if position is None:
            self._recompute(worker, item)
            return
        self._parts = position.parts
        if position.part is None:
            return
        self._payloads[worker.index] = computed_apart(self.compute, item, gradient)
        round_here(self.codec, gradient)
        self._sum.add(position.part, gradient)

    def _recompute(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Compute a failed worker's batch of an already finished step with the parameters before that step."""
        current = self.block.value.copy()
        self.flat.load(self._previous)
        self._payloads[worker.index] = computed(self.compute, item)
        self.flat.load(current)
        self._recomputed.add(worker.index)

    def finish(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Push the row gradients; the last worker to arrive starts the all-reduce."""
        if item.grant.samples == 0:
            worker.take(item)
        else:
            push(worker, item, self._payloads.pop(worker.index))
        worker.pull_ahead()
        if worker.index in self._recomputed or worker.core.has_batch_of(item.grant.token):
            self._recomputed.discard(worker.index)
            worker.free_thread()
            return
        self._finished[worker.index] = (worker, item)
        self._sum_if_complete()

    def _sum_if_complete(self) -> None:
        """Begin the all-reduce if all live workers have finished their batches and all gradients have arrived."""
        if self._stepping or not self._finished or not self.members <= self._finished.keys():
            return
        if self._sum.complete(self._parts):
            _, item = next(reversed(self._finished.values()))
            self._stepping = True
            self.ring.sum(self.flat.size, sorted(self._finished), item.seconds, functools.partial(self._step, item))

    def resume(self, worker: VirtualWorker) -> None:
        """If a worker that awaits the all-reduce was granted another batch of the step, let it compute that first."""
        _, item = self._finished.get(worker.index, (worker, None))
        if item is not None and not self._stepping and worker.core.has_batch_of(item.grant.token):
            del self._finished[worker.index]
            worker.free_thread()

    def remove_worker(self, index: int) -> None:
        """Stop waiting for a failed worker in the all-reduce."""
        self.members.discard(index)
        self._finished.pop(index, None)
        self._sum_if_complete()

    def _step(self, item: BatchInProgress) -> None:
        grant = item.grant
        self._stepping, self.steps.last_step = False, grant.token
        np.copyto(self._previous, self.block.value)
        total = self._sum.take()
        round_here(self.codec, total)
        if due(self.norms_every, grant.token):
            square = dense_square([(total, 1.0)], self.block.params, grant.divisor)
            min(self._finished.values(), key=lambda pair: pair[0].index)[0].coordinator.send(
                GradientNorms(grant.token, square, [])
            )
        self.block.apply(total, grant.divisor, grant.lr_scale)
        if self.block.value is not self.flat.vector:
            self.flat.load(self.block.value)
        finished, self._finished = self._finished, {}
        cost, floats = self.ring.cost, self.flat.size
        seconds = cost.ring_work(floats, len(self.ring.hosts)) + cost.replica_step(floats)
        for worker, _ in finished.values():
            worker.host.cores.run(seconds, worker.free_thread)

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """Pack parameters and optimizer state as of exactly `after` steps (ReplicatedSteps.packed)."""
        return self.steps.packed(self.block, after)

    def checksum(self) -> tuple[str, str]:
        """Compute the checksum and model sum of the parameters, once per step for all workers."""
        if self._checksum[0] != self.block.step:
            own = digest(self.block.arrays.values())
            self._checksum = (self.block.step, (own, str(self.block.model_sum())))
        return self._checksum[1]

    def hand_over(self) -> list[State]:
        """Return every shard's slice of the parameters and optimizer state."""
        return [(self.block.step, self.block.packed(*cut)) for cut in self.compute.held.values()]

    def add_worker(self, index: int, first: bool) -> None:
        """Wait for a worker in the all-reduce from now on."""
        self.members = {index} if first else self.members | {index}
        self._outdated |= first

    def take_over(self, worker: VirtualWorker, states: list[State]) -> None:
        """Load the dense state from the servers, perhaps of an earlier step; all workers share one copy of it."""
        if not self._outdated:
            return
        self._outdated = False
        for (step, values), cut in zip(states, self.compute.held.values(), strict=True):
            self.block.unpack(*cut, values, step)
        self.flat.load(self.block.value.copy())
        self.steps.last_step, self._checksum = -1, (-1, ("", ""))

    def leave(self) -> None:
        """Release nothing: the model still computes directly in the dense vector."""


class TrainerDense(DensePlacement):
    """Placement with a replica per worker: gradients are computed at a batch's start and applied at its end."""

    def __init__(self, cfg: RunConfig, compute: SharedCompute, rounds: RingRounds) -> None:
        super().__init__(compute)
        self._cfg, self._rounds = cfg, rounds
        self._trainers: dict[int, VirtualTrainer] = {}
        self._computed: dict[tuple[int, int], tuple[Payloads, Floats]] = {}

    def trainer(self, worker: VirtualWorker) -> VirtualTrainer:
        """Return a worker's trainer, made at the first call."""
        known = self._trainers.get(worker.index)
        if known is None or known.worker is not worker:  # a successor has a replica of its own
            resumed = self._cfg.home == "replicas" and worker.peer.incarnation == 0
            block = dense_block(self._cfg, aligned_copy(self.flat.initial()), self.flat.dense_spec, resumed)
            self._trainers[worker.index] = VirtualTrainer(worker, block, self.compute.held, self._rounds)
        return self._trainers[worker.index]

    def take_over(self, worker: VirtualWorker, states: list[State]) -> None:
        """Load a worker's replica with the dense state from the servers."""
        self.trainer(worker).take_over(states)

    def remove_worker(self, index: int) -> None:
        """Exclude a failed worker's replica from further means."""
        self._rounds.remove_rank(index)

    def begin(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Compute a gradient with the worker's replica as it is at the batch's start."""
        self.flat.use_shared(self.trainer(worker).replica.value)
        gradient = np.empty(self.flat.size, np.float32)
        self._computed[worker.index, item.grant.batch] = (computed_apart(self.compute, item, gradient), gradient)

    def finish(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Push the row gradients, then apply the dense gradient to the replica as a local step."""
        grant = item.grant
        payloads, gradient = self._computed.pop((worker.index, grant.batch))
        push(worker, item, payloads)
        seconds = worker.shared.cost.replica_step(self.flat.size)
        worker.host.cores.run(seconds, self.trainer(worker).step, gradient, grant.divisor, grant.lr_scale)

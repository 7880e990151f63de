"""Dense placements as a worker sees them: on the servers, or replicated on all workers.

trainer/ has the third: a replica per trainer. The compute loop does not know which one it uses: it calls `load` before
and `finish` after a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from gbactl.collective.base import Collective, OverlappedGradient, Vector, bucket_edges
from gbactl.collective.fault_tolerant import FaultTolerantCollective, InterruptedSum
from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_block
from gbactl.hashes_and_random_numbers import digest
from gbactl.kernels import codec_of
from gbactl.models.flat_parameters import FlatModel
from gbactl.store.dense import Cut, DenseBlock, dense_square, nonempty_slices
from gbactl.store.optimizer_settings import due
from gbactl.wire.frames import Frame
from gbactl.wire.messages import AddReplica, GradientNorms, PutDense
from gbactl.wire.node_measurements import ALL_REDUCE
from gbactl.worker.client import WorkerClient
from gbactl.worker.worker_core import NOT_HERE, BatchInProgress, ReplicatedSteps, scale_by_weight


class Placements:
    """Dense placements that a run uses, by name, and the current one."""

    def __init__(self, placements: Mapping[str, DensePlacement], first: str) -> None:
        self.placements, self.now = placements, placements[first]

    @property
    def trainer(self) -> Any:
        """This worker's replica as a dense placement (see trainer/hogwild_training.py)."""
        return self.placements["replicas"]

    def move(self, home: str, gives: bool, request: int = 0) -> None:
        """Switch to the dense placement `home`, and transfer this worker's part of the dense parameters.

        `request` is the same for all workers. The move may be repeated, then with `gives`, where the worker that was to
        give the parameters failed."""
        if self.now is not self.placements[home]:
            self.now.leave()
            self.placements[home].take_over(request)
        if home == "servers" and gives:
            self.placements["workers"].hand_over()
        self.now = self.placements[home]


class DensePlacement(ABC):
    """Dense placement: how a worker obtains the dense parameters, and how their gradient is applied.

    The defaults are those of a placement whose parameters the servers hold."""

    @abstractmethod
    def load(self, item: BatchInProgress) -> None:
        """Load the dense parameters for a batch into the model."""

    def checksum(self) -> tuple[str, str]:
        """Compute two checksums of this worker's dense parameters; empty if the servers hold them.

        The second one is a sum, to which the servers' sums over embedding rows are added."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """Pack this worker's dense parameters for a checkpoint as of exactly `after` steps (0: the current ones).

        Returns (optimizer steps, P, DenseBlock.packed); None before that step. P is -1 after it, or where nothing is
        held here."""
        return NOT_HERE

    @abstractmethod
    def finish(self, item: BatchInProgress, row_gradient: Any) -> None:
        """Push or sum the computed gradient; `row_gradient` is None for a batch of no samples."""

    def leave(self) -> None:  # noqa: B027
        """Release borrowed memory before the worker switches to another dense placement."""

    def take_over(self, request: int) -> None:  # noqa: B027
        """Fetch dense parameters and optimizer state from the servers at a mode switch, number `request` in the run."""

    def hand_over(self) -> None:  # noqa: B027
        """Send the servers the dense parameters and optimizer state at a mode switch."""


class ServedDense(DensePlacement):
    """Placement on the servers: dense parameters are pulled with the rows, and pushed with their gradients."""

    def __init__(self, flat: FlatModel, slices: ShardSlices) -> None:
        self.flat, self.client, self.cuts = flat, slices.client, slices.cuts
        self.gradient = np.empty(flat.size, np.float32)
        self._held: Frame | None = None

    def size(self, shard: int) -> int:
        low, high = self.cuts[shard]
        return high - low

    def write(self, shard: int, out: Any) -> None:
        low, high = self.cuts[shard]
        if high - low == self.flat.size:
            self.flat.gradient_into(out)
            return
        if shard == 0:
            self.flat.gradient_into(self.gradient)
        out[:] = self.gradient[low:high]

    def load(self, item: BatchInProgress) -> None:
        """Use the received dense vector in place if one server holds it all, else copy the slices that changed."""
        for shard, (rows, frame) in item.answers.items():
            if rows.dense and rows.dense == self.flat.size:
                if self.flat.use(frame.payload[: 4 * rows.dense].view(np.float32)):
                    self._hold(item, frame)
            elif rows.dense:
                self.flat.load_slice(self.cuts[shard][0], frame.payload.view(np.float32)[: rows.dense])

    def _hold(self, item: BatchInProgress, frame: Frame) -> None:
        """Keep the received frame whose memory the model uses, and release the previous batch's frame."""
        item.frame_in_use = frame
        if self._held is not None:
            self._held.release()
        self._held = frame

    def leave(self) -> None:
        self.flat.use_own_memory()
        if self._held is not None:
            self._held.release()
            self._held = None

    def finish(self, item: BatchInProgress, row_gradient: Any) -> None:
        """Pull the next batch's parameters, then push row gradients and dense gradient slices to the servers."""
        if row_gradient is None:
            self.client.take(item)
        else:
            self.client.pull_ahead()
            self.client.push(item, row_gradient, self)


class ReplicatedDense(DensePlacement):
    """Replicated placement: gradients are summed by an all-reduce, and every worker applies the same step.

    The all-reduce of a bucket begins while the backward pass computes the next. `resumed`: with the parameters of the
    checkpoint that the run resumes from, if any."""

    def __init__(
        self, cfg: RunConfig, flat: FlatModel, slices: ShardSlices, collective: Collective, resumed: bool
    ) -> None:
        self.flat, self.slices, self.client, self.collective = flat, slices, slices.client, collective
        self.block = dense_block(cfg, flat.initial() if flat.buffers else flat.vector, flat.dense_spec, resumed)
        self.steps = ReplicatedSteps(cfg.train.global_batch)
        self.recovery: SyncRecovery | None = None
        if cfg.cluster.lost_worker != "end" and isinstance(collective, FaultTolerantCollective):
            self.recovery = SyncRecovery(collective, self.client, flat, self.block.value, self.steps)
        self.norms_every = cfg.train.norms_every
        self.gradient = np.zeros(flat.size, np.float32)
        spans = [*flat.spans, *([(flat.params, flat.size)] if flat.buffers else [])]
        edges = bucket_edges([high - low for low, high in spans], cfg.collective.buckets)
        codec = codec_of(cfg.transport.wire_dtype)
        self._spans, self._filling = spans, OverlappedGradient(collective, "dense", edges, self.gradient, spans, codec)
        self._weight = 1.0
        self._begun = self._again = False
        self.restored()

    def leave(self) -> None:
        self.flat.listen(None)

    def take_over(self, request: int) -> None:
        if self.recovery is not None:
            self.recovery.renew(request)
        self.steps.last_step = -1
        self.slices.fetch(self.block)
        self.restored()

    def hand_over(self) -> None:
        self.slices.give(self.block)

    def load(self, item: BatchInProgress) -> None:
        """Prepare the all-reduce of the gradient during the backward pass; the model already holds the parameters."""
        if self.recovery is not None and item.phase.training:
            self._again = not self.recovery.begin(item)
            if self._again:
                self.flat.listen(None)
                return
        if item.phase.training and item.grant.samples:
            self._weight = item.weight
            self._begun = False
            self.flat.listen(self._arrived)

    def _arrived(self, parameter: int, gradient: Tensor) -> None:
        """Add one parameter's gradient to the all-reduce; at the batch's first call, also the batch-norm statistics."""
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
        scale_by_weight(self.gradient[low:high], self._weight)
        self._filling.filled(part)

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        return self.steps.packed(self.block, after)

    def restored(self) -> None:
        """Load the values of the dense vector into the model, after a checkpoint or transfer has replaced them."""
        self.flat.load(self.block.value.copy())

    def _summed(self) -> bool:
        """Wait for a step's gradient sum; False if another batch of the step must come first, or the run is over."""
        try:
            if self.recovery is not None and self.recovery.another_granted():
                self._filling.begin()
                return False
            with self.client.waits.activity(ALL_REDUCE):
                self._filling.wait()
        except InterruptedSum:
            return False
        return True

    def checksum(self) -> tuple[str, str]:
        return digest(self.block.arrays.values()), str(self.block.model_sum())

    def finish(self, item: BatchInProgress, row_gradient: Any) -> None:
        """Push row gradients, pull the next batch's rows during the all-reduce, then apply the dense gradient."""
        grant = item.grant
        if self._again and self.recovery is not None:
            self.client.push(item, row_gradient, None)
            self.recovery.forward()
            return
        if row_gradient is None:
            self.gradient[:] = 0.0
            self._filling.flush()
            self.client.take(item)
        else:
            self._filling.flush()
            self.client.push(item, row_gradient, None)
        self.client.pull_ahead()
        if not self._summed():
            return
        if due(self.norms_every, grant.token):
            square = dense_square([(self.gradient, 1.0)], self.block.params, grant.divisor)
            self.client.coordinator.send(GradientNorms(grant.token, square, []))
        if self.recovery is not None:
            self.recovery.take()
        self.block.apply(self.gradient, grant.divisor, grant.lr_scale)
        self.steps.last_step = grant.token
        if self.block.value is not self.flat.vector:
            self.flat.load(self.block.value)


class SyncRecovery:
    """Recovery of one worker in mode `sync` after another worker has failed.

    `value`: its dense parameters float32[n], updated in place."""

    def __init__(
        self,
        collective: FaultTolerantCollective,
        client: WorkerClient,
        flat: FlatModel,
        value: Vector,
        steps: ReplicatedSteps,
    ) -> None:
        self.collective, self.client, self.flat, self.value = collective, client, flat, value
        self.steps = steps
        self._before = value.copy()  # parameters before the last step
        self._now = value.copy()
        self._first: int | None = None  # first step of this generation
        self._token = -1  # current step
        collective.wanted = self._wanted
        client.on_next_batch = self._more_comes

    def begin(self, item: BatchInProgress) -> bool:
        """Tell the collective which summand of its step's gradient sum a batch is.

        Returns False where the dense step is applied already, and only the batch's row gradients are missing."""
        token, place = item.grant.token, self.steps.index_in_sum(item)
        if place is None:
            np.copyto(self._now, self.value)
            self.flat.load(self._before)
            return False
        self._first = token if self._first is None else self._first
        self._token = token
        self.collective.assign_summand(token - self._first + 1, place.part, place.parts, token + 1)
        return True

    def forward(self) -> None:
        """Reload the current parameters after a batch of an earlier step was computed with older ones."""
        self.flat.load(self._now)

    def another_granted(self) -> bool:
        """Whether another batch of the current step was granted to this worker."""
        return self.client.core.has_batch_of(self._token)

    def _more_comes(self, step: int) -> None:
        if step <= self._token:
            self.collective.interrupt()

    def _wanted(self) -> bool:
        return self.client.is_over() or self.another_granted()

    def take(self) -> None:
        """Copy the parameters before the current step is applied, so that a batch of the step can be recomputed."""
        np.copyto(self._before, self.value)

    def renew(self, generation: int) -> None:
        """Start a new generation of the collective, once all workers have equal parameters."""
        self._first = None
        self.collective.renew(generation)


class ShardSlices:
    """Dense slices of all servers, to read or write the whole vector. `cuts`: [low, high) of each shard."""

    def __init__(self, client: WorkerClient, cuts: list[Cut]) -> None:
        self.client, self.cuts, self.held = client, cuts, nonempty_slices(cuts)

    def fetch(self, block: DenseBlock, still: AbstractContextManager[Any] | None = None) -> None:
        """Fetch all servers' slices into the whole vector `block`; `still`: context in which no thread uses the vector.

        Raises the error that ended the run."""
        found = self.client.get_dense(self.held)
        with still or nullcontext():
            for shard, (step, values) in found.items():
                block.unpack(*self.held[shard], values, step)

    def give(self, block: DenseBlock, how: Callable[[int], PutDense | AddReplica] = PutDense) -> None:
        """Send the servers the slices of the whole vector `block`, and wait until all have them."""
        parts = {shard: block.packed(*cut) for shard, cut in self.held.items()}
        self.client.put_dense(how(block.step), parts)

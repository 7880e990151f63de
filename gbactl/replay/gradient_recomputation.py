"""Gradient computation of a worker, for replay: from pulled rows and dense slices to gradient slices.

The workers' all-reduce adds the gradients in batch order, so a sum here has the same bits. Memory of the replica:
a dense vector with its moments, and one more vector for each gradient of a step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gbactl.config import RunConfig
from gbactl.config.shard_layout import optimizer, shard_spec
from gbactl.data.dataset import Dataset
from gbactl.kernels import codec_of
from gbactl.kernels.base import Floats, Ints
from gbactl.kernels.half_precision import round_here, rounded
from gbactl.policies import Step
from gbactl.simulation.gradient_compute import SharedCompute, set_answer
from gbactl.store.dense import DenseBlock
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import MappedBatchSource
from gbactl.worker.worker_core import BatchInProgress


class GradientRecomputer:
    """Computation of the same gradients as the run's workers computed."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.cfg, self.dataset, self.model = cfg, dataset, SharedCompute.of(cfg, dataset.schema)
        self.flat, self.width, self.held = self.model.flat, self.model.width, self.model.held
        self.source = MappedBatchSource(dataset, self.model.kernels, cfg.cluster.servers, cfg.seed, cfg.train.shuffle)
        self.codec = codec_of(cfg.transport.wire_dtype)

    def shards(self) -> list[Shard]:
        """Make the shards of all servers in their state before the first step."""
        initial, made = self.flat.initial(), []
        for shard, (low, high) in enumerate(self.model.cuts):
            spec = shard_spec(self.cfg, self.dataset.schema.rows, shard)
            made.append(Shard(replace(spec, dense=self.flat.dense_spec, dense_init=initial[low:high].copy())))
        return made

    def begin(self, phase: BeginPhase) -> None:
        """Begin a training phase: its data and shuffling."""
        self.phase = phase
        self.source.begin(phase)

    def prepare(self, batch: int) -> BatchInProgress:
        """Prepare a batch's data and distinct rows, with no values pulled yet."""
        size, phase = self.phase.local_batch, self.phase
        start = batch * size
        samples = min(size, phase.samples - start)
        grant = Granted(phase.number, batch, 0, start, samples, 0, 0.0, 0.0)
        item = BatchInProgress(grant, phase, *self.source.prepare(grant))
        for shard in range(self.model.servers):
            set_answer(item, shard)
        return item

    def arrived(self, values: Floats) -> Floats:
        """Round pulled values as the wire between server and worker does."""
        return rounded(self.codec, values)

    def compute(self, item: BatchInProgress) -> list[GradientSlice]:
        """Compute a batch's gradient slices, one per shard, each with its own memory."""
        self.model.load(item)
        sums, dense = self.arrived(self.model.gradient(item)), np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(dense)
        if self.phase.served_dense:
            dense = self.arrived(dense)
        index = item.unique.index
        return [
            GradientSlice(
                index[low:high], sums[low:high], dense[slice(*self.held[shard])] if shard in self.held else None
            )
            for shard, low, high in item.unique.shares()
        ]


def index_of(item: BatchInProgress, shard: int) -> Ints:
    """Return a shard's part of a batch's distinct rows, as local row numbers int32[n]."""
    return next(item.unique.index[low:high] for s, low, high in item.unique.shares() if s == shard)


class ReplayedReplica:
    """Dense parameters in phases where every worker holds a copy: one copy, stepped like the workers' copies.

    `home`: current holder of the dense parameters.
    """

    def __init__(self, gradients: GradientRecomputer, shards: list[Shard]) -> None:
        cfg, flat = gradients.cfg, gradients.flat
        spec = optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay)
        self.block = DenseBlock(flat.initial(), flat.dense_spec, spec)
        self.shards, self.cuts, self.home = shards, gradients.held, cfg.home
        self.codec = gradients.codec
        self._gradients: dict[int, Floats] = {}

    def move(self, home: str) -> None:
        """Move the dense parameters to the placement `home`, as a mode switch does."""
        if home == self.home:
            return
        self.home = home
        for shard, cut in self.cuts.items():
            slice_ = self.shards[shard].dense_block()
            if home == "servers":
                slice_.unpack(*cut, self.block.packed(*cut), self.block.step)
            else:
                self.block.unpack(*cut, slice_.packed(*cut), slice_.step)

    def take(self, batch: int, parts: list[GradientSlice]) -> None:
        """Keep the dense part of a batch's gradient until its step, and remove it from the shards' slices."""
        self._gradients[batch] = np.concatenate([part.dense for part in parts if part.dense is not None])
        for part in parts:
            part.dense = None

    def step(self, step: Step, lr_scale: float, ranks: int) -> None:
        """Sum a step's gradients as the all-reduce of `ranks` workers does, and apply the sum."""
        total: Floats | None = None
        for member in sorted(step.members, key=lambda member: member.batch):
            gradient = self._gradients.pop(member.batch)
            if member.weight != 1.0:
                gradient *= np.float32(member.weight)
            round_here(self.codec, gradient)
            total = gradient if total is None else np.add(total, gradient, out=total)
        assert total is not None
        if len(step.members) < ranks:
            total += np.float32(0.0)  # workers without a gradient add 0.0: -0.0 becomes 0.0
        round_here(self.codec, total)
        self.block.apply(total, step.divisor, step.divisor, lr_scale)

    def model_sum(self, dense_alone: bool) -> int | None:
        """Compute the shard-independent checksum of the model; None where tables are too large."""
        served = self.home == "servers"
        if dense_alone:
            shards: list[int | None] = [shard.dense_block().model_sum() if served else 0 for shard in self.shards]
        else:
            shards = [shard.model_sum(served) for shard in self.shards]
        known = [total for total in shards if total is not None]
        return sum(known) + (0 if served else self.block.model_sum()) if len(known) == len(shards) else None

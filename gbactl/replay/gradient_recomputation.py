"""Gradient computation of a worker for replay: pulled rows and dense slices in, gradient slices out; dense replica.

The workers' all-reduce adds the gradients in batch order, so a sum here has the same bits. Memory of the replica:
a dense vector with its moments, and one more vector for each gradient of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gbactl.config import RunConfig
from gbactl.config.shards import dense_cuts, optimizer, shard_spec
from gbactl.data.dataset import Batch, Dataset
from gbactl.kernels import codec_of, load
from gbactl.kernels.base import DistinctRows, Floats, Ints
from gbactl.kernels.half_precision import round_here, rounded
from gbactl.models import build, row_width
from gbactl.models.gradient_computer import GradientComputer
from gbactl.policies import Step
from gbactl.store.dense import DenseBlock, held
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import MappedBatchSource, dropout_key


@dataclass(slots=True)
class PulledBatch:
    """Batch with the values pulled for it so far: each shard's rows and dense slice."""

    number: int
    batch: Batch
    unique: DistinctRows
    rows: list[Floats | None]
    dense: list[Floats | None]

    def index(self, shard: int) -> Ints:
        """Local rows int32[n] of a shard among the batch's distinct rows."""
        return next(self.unique.index[low:high] for s, low, high in self.unique.shares() if s == shard)


class GradientRecomputer:
    """Computer of the same gradients that the run's workers computed."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        self.cfg, self.dataset, self.kernels = cfg, dataset, load()
        self.servers, self.width = cfg.cluster.servers, row_width(cfg.model)
        self.source = MappedBatchSource(dataset, self.kernels, self.servers, cfg.seed, cfg.train.shuffle)
        model = build(cfg.model, dataset.schema.numeric, dataset.schema.fields, cfg.seed)
        self.computer = GradientComputer(model, precision=cfg.precision)
        self.flat = self.computer.flat
        self.codec = codec_of(cfg.transport.wire_dtype)
        self.cuts = dense_cuts(cfg, self.flat.size)
        self.held = held(self.cuts)

    def shards(self) -> list[Shard]:
        """Make the servers' shards in their state before the first step."""
        initial, made = self.flat.initial(), []
        for shard, (low, high) in enumerate(self.cuts):
            spec = shard_spec(self.cfg, self.dataset, shard)
            made.append(Shard(replace(spec, dense=self.flat.dense_spec, dense_init=initial[low:high].copy())))
        return made

    def begin(self, phase: BeginPhase) -> None:
        """Start a training phase."""
        self.phase = phase
        self.source.begin(phase)

    def prepare(self, batch: int) -> PulledBatch:
        """Prepare the data of a batch, with no values pulled yet."""
        size, phase = self.phase.local_batch, self.phase
        start = batch * size
        samples = min(size, phase.samples - start)
        grant = Granted(phase.number, batch, 0, start, samples, 0, 0.0, 0.0)
        data, unique = self.source.prepare(grant)
        return PulledBatch(batch, data, unique, [None] * self.servers, [None] * self.servers)

    def arrived(self, values: Floats) -> Floats:
        """Round values as the wire between worker and server does."""
        return rounded(self.codec, values)

    def compute(self, pulled: PulledBatch) -> list[GradientSlice]:
        """Compute a batch's gradient slices, one per shard, each with its own memory."""
        sums, dense = self._compute(pulled)
        sums = self.arrived(sums)
        if self.phase.served_dense:
            dense = self.arrived(dense)
        index = pulled.unique.index
        return [
            GradientSlice(
                index[low:high], sums[low:high], dense[slice(*self.held[shard])] if shard in self.held else None
            )
            for shard, low, high in pulled.unique.shares()
        ]

    def _compute(self, pulled: PulledBatch) -> tuple[Any, Any]:
        batch, phase = pulled.batch, self.phase
        for (low, _), values in zip(self.cuts, pulled.dense, strict=True):
            assert values is not None
            self.flat.load_slice(low, values)
        rows = [values for values in pulled.rows if values is not None]
        emb = np.empty((batch.ids.size, self.width), np.float32)
        self.kernels.gather(rows[0] if len(rows) == 1 else np.concatenate(rows), pulled.unique.inverse, emb)
        key = dropout_key(self.cfg.seed, phase, pulled.number)
        shaped = emb.reshape(*batch.ids.shape, self.width)
        _, gradient = self.computer.gradient(batch.numeric, batch.labels, shaped, key)
        sums = np.empty((len(pulled.unique.index), self.width), np.float32)
        self.kernels.segment_sum(gradient, pulled.unique.inverse, sums)
        dense = np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(dense)
        return sums, dense


class ReplayedReplica:
    """Dense parameters in phases where every worker holds them: one copy, stepped like the workers' copies.

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
        """Move the dense parameters to `home`, as a switch does."""
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
        """Keep a gradient's dense values until its step, and remove them from the shards' slices."""
        self._gradients[batch] = np.concatenate([part.dense for part in parts if part.dense is not None])
        for part in parts:
            part.dense = None

    def step(self, step: Step, lr_scale: float, ranks: int) -> None:
        """Sum a step's gradients as `ranks` workers do, some of which may have none, and apply the sum."""
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
        """Shard-independent checksum of the model; None where tables are too large for it."""
        served = self.home == "servers"
        if dense_alone:
            shards: list[int | None] = [shard.dense_block().model_sum() if served else 0 for shard in self.shards]
        else:
            shards = [shard.model_sum(served) for shard in self.shards]
        known = [total for total in shards if total is not None]
        return sum(known) + (0 if served else self.block.model_sum()) if len(known) == len(shards) else None

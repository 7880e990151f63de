"""The dense parameters in phases where every worker holds them: one copy, stepped as the workers step theirs.

Their all-reduce adds the gradients up in batch order, so the sum here has the same bits. Memory: a dense vector
with its moments, and one more for each gradient of a step.
"""

from __future__ import annotations

import numpy as np

from gbactl.config.shards import optimizer
from gbactl.kernels.base import Floats
from gbactl.kernels.halves import round_here
from gbactl.policies import Step
from gbactl.replay.gradients import Gradients
from gbactl.store.dense import DenseBlock
from gbactl.store.gradient_slice import Part
from gbactl.store.shard import Shard


class Replica:
    """Of a run with these shards; `home` says who holds the dense parameters now."""

    def __init__(self, gradients: Gradients, shards: list[Shard]) -> None:
        cfg, flat = gradients.cfg, gradients.flat
        spec = optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay)
        self.block = DenseBlock(flat.initial(), flat.dense_spec, spec)
        self.shards, self.cuts, self.home = shards, gradients.held, cfg.home
        self.codec = gradients.codec
        self._gradients: dict[int, Floats] = {}

    def move(self, home: str) -> None:
        """The dense parameters are at `home` from now on, as a switch moves them."""
        if home == self.home:
            return
        self.home = home
        for shard, cut in self.cuts.items():
            slice_ = self.shards[shard].dense_block()
            if home == "servers":
                slice_.unpack(*cut, self.block.packed(*cut), self.block.step)
            else:
                self.block.unpack(*cut, slice_.packed(*cut), slice_.step)

    def take(self, batch: int, parts: list[Part]) -> None:
        """Keep the dense part of a gradient until its step; the shards get the rows alone."""
        self._gradients[batch] = np.concatenate([part.dense for part in parts if part.dense is not None])
        for part in parts:
            part.dense = None

    def step(self, step: Step, lr_scale: float, ranks: int) -> None:
        """Sum a step's gradients as `ranks` workers do, some of which may have had none, and apply it."""
        total: Floats | None = None
        for member in sorted(step.members, key=lambda member: member.batch):
            gradient = self._gradients.pop(member.batch)
            if member.weight != 1.0:
                gradient *= np.float32(member.weight)
            round_here(self.codec, gradient)
            total = gradient if total is None else np.add(total, gradient, out=total)
        assert total is not None
        if len(step.members) < ranks:
            total += np.float32(0.0)  # of those that only joined in: -0.0 becomes 0.0
        round_here(self.codec, total)
        self.block.apply(total, step.divisor, step.divisor, lr_scale)

    def model_sum(self, dense_alone: bool) -> int | None:
        """The run's model sum, which no sharding changes; None where tables are too large for it."""
        served = self.home == "servers"
        if dense_alone:
            shards: list[int | None] = [shard.dense_block().model_sum() if served else 0 for shard in self.shards]
        else:
            shards = [shard.model_sum(served) for shard in self.shards]
        known = [total for total in shards if total is not None]
        return sum(known) + (0 if served else self.block.model_sum()) if len(known) == len(shards) else None

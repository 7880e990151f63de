"""Constants of the optimizers of rows and of the dense block, in torch's conventions, and learning-rate schedules.

L2 (`decay * value`) is added to the gradient, eps to the square root. Adam counts steps per row and takes its bias
corrections from a precomputed table (144 KB for beta2 = .999), so that every kernel uses the same numbers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from gbactl.checked_dataclasses import Bounds, Share
from gbactl.kernels.base import Floats, OptimizerRule, aligned_full, float32

MOMENTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "adagrad": ("sum",),
    "rowwise_adagrad": ("sum",),
    "adam": ("first", "second"),
}


@dataclass(frozen=True)
class OptimizerSpec:
    """Optimizer name and constants. `weight_decay` applies to the dense block; rows have a decay of their own."""

    name: str = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0

    @property
    def start(self) -> float:
        """Initial value of every moment of this optimizer."""
        return 0.0 if self.name == "adam" else self.initial_accumulator

    def new_moments(self, shape: tuple[int, ...]) -> dict[str, Floats]:
        """Allocate the moments of values of this shape, by name."""
        return {name: aligned_full(shape, self.start) for name in MOMENTS[self.name]}

    def rule(self) -> OptimizerRule:
        """Convert the constants to the form that the kernels need."""
        if self.name != "adam":
            return OptimizerRule(self.name, eps=float32(self.eps))
        first, second = self.betas
        table = bias_table(first, second)
        rest = float32(1 - first), float32(1 - second)
        return OptimizerRule("adam", float32(first), rest[0], float32(second), rest[1], float32(self.eps), table)

    def for_dense(self) -> OptimizerSpec:
        """Convert to an optimizer for the dense vector, which has no rows: row-wise Adagrad becomes Adagrad."""
        return replace(self, name="adagrad") if self.name == "rowwise_adagrad" else self


def dense_moments(name: str) -> tuple[str, ...]:
    """Return the names of an optimizer's moments of the dense vector."""
    return MOMENTS[OptimizerSpec(name).for_dense().name]


@functools.lru_cache(maxsize=8)
def bias_table(first: float, second: float) -> Floats:
    """Compute the table f32[T, 2] of Adam's bias corrections for steps t: 1/(1-first^t) and 1/sqrt(1-second^t).

    It ends at the t where both are 1 in fp32. Powers are running products, so the bits do not depend on the machine's
    `pow`.
    """
    slowest = max(first, second, 1e-9)
    steps = math.ceil(math.log(2.0**-26) / math.log(slowest)) + 2
    powers = np.multiply.accumulate(np.tile(np.array([first, second]), (steps - 1, 1)), axis=0)
    table = np.ones((steps, 2), np.float32)
    table[1:, 0] = 1 / (1 - powers[:, 0])
    table[1:, 1] = 1 / np.sqrt(1 - powers[:, 1])
    table.flags.writeable = False
    return table


@dataclass
class ScheduleConfig:
    """Configuration of a learning-rate schedule: the rate depends on the number of global batches finished."""

    name: Literal["constant", "linear", "inverse_sqrt", "cosine"] = "constant"
    warmup: Annotated[float, Bounds(at_least=0, at_most=1e15)] = 0.0
    total: Annotated[float, Bounds(at_least=0, at_most=1e15)] = 0.0
    floor: Share = 0.0


def _warm(progress: float, warmup: float) -> float:
    return min(1.0, (progress + 1) / warmup) if warmup > 0 else 1.0


def due(every: int, step: int) -> bool:
    """Whether an action taken every `every` steps is due at `step`; 0 means never."""
    return every > 0 and (step + 1) % every == 0


def factor(schedule: ScheduleConfig, progress: float) -> float:
    """Compute the learning-rate factor after `progress` >= 0 global batches.

    constant: 1. linear: rises over `warmup`, then 1. inverse_sqrt: rises, then sqrt(warmup / p).
    cosine: rises, then half a cosine from 1 to `floor` at `total`, and `floor` after it.
    """
    warm, warmup = _warm(progress, schedule.warmup), schedule.warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "linear":
        return warm
    if schedule.name == "inverse_sqrt":
        start = max(warmup, 1.0)
        return warm * math.sqrt(start / max(progress, start))
    done = min(max((progress - warmup) / (schedule.total - warmup), 0.0), 1.0)
    return warm * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done)))

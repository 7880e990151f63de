"""Optimizers for rows and for the dense block, in torch's conventions, over the row kernels.

L2 (`decay * value`) is added to the gradient, eps to the square root. Adam counts steps per row and takes its bias
corrections from a precomputed table (144 KB for beta2 = .999), so that every kernel uses the same numbers.
A step costs about 5 us of Python.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from gbactl.checked_dataclasses import Bounds, Share
from gbactl.errors import ConfigError
from gbactl.kernels.base import DensePart, Floats, Ints, Kernels, OptimizerRule, aligned_full, aligned_zeros, float32

MOMENTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "adagrad": ("sum",),
    "rowwise_adagrad": ("sum",),
    "adam": ("first", "second"),
}
MOST_BIAS_STEPS = 1 << 22


@dataclass(frozen=True)
class OptimizerSpec:
    """Optimizer name and constants. `weight_decay` applies to the dense block; rows have a decay of their own."""

    name: str = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in MOMENTS:
            raise ConfigError(f"optim.name={self.name} is not known; type one of: {', '.join(MOMENTS)}.")
        if not (math.isfinite(self.lr) and self.lr > 0 and self.eps >= 0 and self.initial_accumulator >= 0):
            raise ConfigError("optim.lr must be positive; optim.eps and optim.initial_accumulator at least 0.")

    @property
    def start(self) -> float:
        """Initial value of every moment of this optimizer."""
        return 0.0 if self.name == "adam" else self.initial_accumulator

    def rule(self) -> OptimizerRule:
        """Convert the constants to the form that the kernels need. Raises ConfigError if a beta is out of range."""
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
    `pow`. Raises ConfigError on betas out of range.
    """
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ConfigError(f"optim.beta1={first} and optim.beta2={second} must be in [0, 1).")
    slowest = max(first, second, 1e-9)
    steps = math.ceil(math.log(2.0**-26) / math.log(slowest)) + 2
    if steps > MOST_BIAS_STEPS:
        raise ConfigError(f"An optim.beta of {slowest} is too close to 1; use at most 0.999995.")
    powers = np.multiply.accumulate(np.tile(np.array([first, second]), (steps - 1, 1)), axis=0)
    table = np.ones((steps, 2), np.float32)
    table[1:, 0] = 1 / (1 - powers[:, 0])
    table[1:, 1] = 1 / np.sqrt(1 - powers[:, 1])
    table.flags.writeable = False
    return table


class RowOptimizer:
    """Optimizer state of an embedding table, which its steps update in place; `every`: all rows step each time."""

    def __init__(self, spec: OptimizerSpec, table: Floats, kernels: Kernels, every: bool = False) -> None:
        self.spec = spec
        shape = table.shape[:1] if spec.name == "rowwise_adagrad" else table.shape
        self.moments = {name: aligned_full(shape, spec.start) for name in MOMENTS[spec.name]}
        self.counts: Any = aligned_zeros(table.shape[:1], np.uint32) if spec.name == "adam" else None
        self._step = kernels.bind_rows(spec.rule(), table, list(self.moments.values()), self.counts, every)

    def reset(self) -> None:
        """Reset the optimizer to its state before the first step; the table's values stay."""
        for moment in self.moments.values():
            moment.fill(self.spec.start)
        if self.counts is not None:
            self.counts.fill(0)

    def apply(
        self, index: Ints, grad: Floats, contributors: Floats | None = None, *,
        weight: float = 1.0, divisor: float = 1.0, lr_scale: float = 1.0, decay: float = 0.0,
    ) -> None:  # fmt: skip
        """Apply a step to the rows `index`, with gradient weight * gradient / divisor + decay * row.

        With `contributors` f32[U] they replace the divisor. Raises ValueError on an index outside the table.
        """
        self._step(index, grad, contributors, weight, divisor, self.spec.lr * lr_scale, decay)


class DenseOptimizer:
    """Optimizer state of a dense vector, which its steps update in place."""

    def __init__(self, spec: OptimizerSpec, value: Floats, kernels: Kernels) -> None:
        self.spec = spec.for_dense()
        self.moments = {name: aligned_full(value.shape, self.spec.start) for name in MOMENTS[self.spec.name]}
        self.step = 0
        self._rule = self.spec.rule()
        self._step = kernels.bind_dense(self._rule, value, list(self.moments.values()))

    def reset(self) -> None:
        """Reset the optimizer to its state before the first step; the vector's values stay."""
        self.step = 0
        for moment in self.moments.values():
            moment.fill(self.spec.start)

    def apply(self, parts: Sequence[DensePart], divisor: float, lr_scale: float = 1.0) -> None:
        """Apply one step with gradient (sum of weight * gradient, in order) / divisor; weights must not be 0."""
        self.step += 1
        step, root, bias = float32(self.spec.lr * lr_scale), 1.0, self._rule.bias
        if bias is not None:
            at = min(self.step, len(bias) - 1)
            step, root = float32(step * bias.item(at, 0)), bias.item(at, 1)
        self._step(parts, divisor, step, root, self.spec.weight_decay)


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
    Raises ConfigError on a cosine that ends before it begins.
    """
    warm, warmup = _warm(progress, schedule.warmup), schedule.warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "linear":
        return warm
    if schedule.name == "inverse_sqrt":
        start = max(warmup, 1.0)
        return warm * math.sqrt(start / max(progress, start))
    if schedule.total <= warmup:
        raise ConfigError("optim.schedule.total must be greater than optim.schedule.warmup for a cosine.")
    done = min(max((progress - warmup) / (schedule.total - warmup), 0.0), 1.0)
    return warm * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done)))

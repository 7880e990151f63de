"""Dense block: one shard's slice of the dense vector (parameters, then batch-norm buffers) with its optimizer.

Every operation is elementwise, so a vector cut anywhere gives the same bits. Servers hold a slice, the
workers of `sync` the whole vector. A step is one pass over value, moments and the gradients (0.3 ms for 0.5 M values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gbactl.hashes_and_random_numbers import MODULUS, row_sum
from gbactl.kernels import load
from gbactl.kernels.base import FLOAT, DensePart, Floats, Kernels, float32, require
from gbactl.store.optimizer_settings import OptimizerSpec


@dataclass(frozen=True)
class DenseSpec:
    """Layout of the dense vector: `params` parameters, then `buffers` batch-norm statistics with `momentum`."""

    params: int
    buffers: int = 0
    momentum: float = 0.1

    @property
    def size(self) -> int:
        """Length of the dense vector: parameters and buffers."""
        return self.params + self.buffers


Cut = tuple[int, int]


def dense_range(size: int, shard: int, holders: int) -> Cut:
    """Compute the range [lo, hi) of a vector of `size` values that shard `shard` holds.

    The first `holders` shards share the vector equally; those after them have an empty slice at its end.
    """
    return size * min(shard, holders) // holders, size * min(shard + 1, holders) // holders


def nonempty_slices(cuts: Sequence[Cut]) -> dict[int, Cut]:
    """Return the slice of the dense vector of each shard whose slice is not empty."""
    return {shard: cut for shard, cut in enumerate(cuts) if cut[0] < cut[1]}


class DenseBlock:
    """Slice of the dense vector from position `lo` on, with its optimizer, which has taken `step` steps.

    `value` f32[n] is held, and updated in place. `moments`: those of the slice's parameters, by name."""

    def __init__(
        self,
        value: Floats,
        spec: DenseSpec,
        optimizer: OptimizerSpec,
        lo: int = 0,
        kernels: Kernels | None = None,
    ) -> None:
        require(value, FLOAT, (-1,), "The dense slice")
        if not 0 <= lo <= lo + len(value) <= spec.size:
            raise ValueError(f"A slice [{lo}, {lo + len(value)}) is outside a vector of {spec.size}.")
        self.value, self.spec, self.lo = value, spec, lo
        self._kernels = kernels or load()
        #: number of parameters in the slice; batch-norm buffers follow them
        self.params = min(max(spec.params - lo, 0), len(value))
        self._running = value[self.params :]
        self._optimizer = optimizer.for_dense()
        self._rule, self.step = self._optimizer.rule(), 0
        self.moments = self._optimizer.new_moments((self.params,))
        self._take = self._kernels.bind_dense(self._rule, value[: self.params], list(self.moments.values()))

    def reset_optimizer(self) -> None:
        """Reset the optimizer to its state before the first step; parameters and running statistics stay."""
        self.step = 0
        for moment in self.moments.values():
            moment.fill(self._optimizer.start)

    def apply(self, total: Floats, divisor: float, lr_scale: float = 1.0) -> None:
        """Apply an optimizer step from a summed gradient, total / divisor, to parameters and buffers."""
        self.apply_parts([(total, 1.0)], divisor, divisor, lr_scale)

    def apply_parts(self, parts: Sequence[DensePart], divisor: float, weight_sum: float, lr_scale: float = 1.0) -> None:
        """Apply one optimizer step from (gradient float32[n], weight > 0) pairs, summed in order in the same pass.

        Raises ValueError, before anything is changed, on a gradient of another shape.
        """
        for gradient, _ in parts:
            require(gradient, FLOAT, self.value.shape, "A dense gradient")
        if not parts or not divisor > 0 or not weight_sum > 0:
            raise ValueError("A dense step needs gradients, a positive divisor and a positive weight sum.")
        cut = self.params
        if cut == len(self.value):
            self._take_step(parts, divisor, lr_scale)
            return
        self._take_step([(g[:cut], w) for g, w in parts], divisor, lr_scale)
        momentum = float(np.float32(self.spec.momentum))
        self._kernels.average(self._running, [(g[cut:], w) for g, w in parts], weight_sum, momentum)

    def _take_step(self, parts: Sequence[DensePart], divisor: float, lr_scale: float) -> None:
        self.step += 1
        step, root, bias = float32(self._optimizer.lr * lr_scale), 1.0, self._rule.bias
        if bias is not None:
            at = min(self.step, len(bias) - 1)
            step, root = float32(step * bias.item(at, 0)), bias.item(at, 1)
        self._take(parts, divisor, step, root, self._optimizer.weight_decay)

    def model_sum(self) -> int:
        """Compute the slice's share of the model's shard-independent checksum, over value and moments.

        Added up over all slices (modulo 2^64) the same however the vector was cut (see `row_sum`).
        """
        return sum(row_sum(array, self.lo, 1, 100 + salt) for salt, array in enumerate(self.arrays.values())) % MODULUS

    @property
    def arrays(self) -> dict[str, Floats]:
        """Arrays of the slice, by their names in `state`: its value and the optimizer's moments."""
        return {"value": self.value, **{f"moment.{name}": moment for name, moment in self.moments.items()}}

    def _ranges(self, low: int, high: int) -> list[Floats]:
        """List views of value and moments at positions [low, high) of the dense vector."""
        return [array[low - self.lo : high - self.lo] for array in self.arrays.values()]

    def packed(self, low: int, high: int) -> Floats:
        """Concatenate value and moments at vector positions [low, high), to send to another holder."""
        return np.concatenate(self._ranges(low, high))

    def unpack(self, low: int, high: int, values: Floats, step: int) -> None:
        """Load value and moments that `packed` returned, as of `step` steps. Raises ValueError on a wrong length."""
        arrays = self._ranges(low, high)
        require(values, FLOAT, (sum(len(array) for array in arrays),), "A packed dense state")
        start = 0
        for array in arrays:
            np.copyto(array, values[start : start + len(array)])
            start += len(array)
        self.step = step

    def state(self) -> dict[str, Any]:
        """Copy the slice's whole state: value, moments, step (int64[1])."""
        copies = {name: array.copy() for name, array in self.arrays.items()}
        return {**copies, "step": np.array([self.step], np.int64)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the output of `state`. Raises ValueError when it belongs to another slice or optimizer."""
        own = self.arrays
        if set(state) != {*own, "step"}:
            raise ValueError(f"Dense state holds {sorted(state)}, expected {sorted([*own, 'step'])}.")
        for name, array in own.items():
            require(state[name], FLOAT, array.shape, f"Dense state {name}")
        for name, array in own.items():
            np.copyto(array, state[name])
        self.step = int(state["step"][0])


def dense_square(parts: Sequence[DensePart], params: int, divisor: float) -> float:
    """Compute the squared L2 norm of (sum of weight x gradient) / divisor over the first `params` values.

    Used by studies of how gradients differ between modes; costs a second pass over the step's gradients.
    """
    total = np.zeros(params, np.float64)
    for gradient, weight in parts:
        total += weight * gradient[:params].astype(np.float64)
    return float(np.dot(total, total)) / divisor**2

"""State of one server's shard: rows, dense slice, their optimizers, staged gradients. No I/O, no clock.

Memory: rows x width x 4 x (1 + moments) bytes, 4 a row for Adam's counts (and 4 for row_l2=all), the dense slice with
its moments, and the staged gradient slices. row_staleness=row takes 4 more for a row without Adam, and 8 for each row
pulled for a batch that is not staged yet. A step from one gradient is one pass without copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gbactl.errors import ConfigError
from gbactl.hashes_and_random_numbers import MODULUS, MOST_BYTES, digest, row_sum
from gbactl.kernels import Kernels, load
from gbactl.kernels.base import FLOAT, INT, Floats, Ints, RowPart, aligned_zeros, require
from gbactl.store.dense import DenseBlock, DenseSpec, dense_range, dense_square
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import PullCounts, RowBlock, row_norms

MOST_ROWS_FOR_ALL = 2_000_000


@dataclass(frozen=True)
class ShardSpec:
    """Contents of shard `shard` of `shards`: its share of a table of `rows` x `width` and of the dense vector.

    `row_weight_decay` alone decays rows; `row_optimizer.weight_decay` is for dense blocks. `dense_init` is
    the shard's slice f32[hi - lo] and is copied. The first `dense_shards` shards (None: all) hold a dense slice.
    """

    shard: int
    shards: int
    rows: int
    width: int
    seed: int = 0
    init_scale: float = 0.01
    row_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    row_l2: Literal["touched", "all"] = "touched"
    row_weight_decay: float = 0.0
    dense: DenseSpec | None = None
    dense_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    dense_init: Floats | None = None
    dense_shards: int | None = None
    sparse_divisor: Literal["global", "contributors"] = "global"
    row_staleness: Literal["token", "row"] = "token"

    @property
    def local_rows(self) -> int:
        """Number of embedding rows of this shard: those with row % shards == shard."""
        return max(0, (self.rows - self.shard + self.shards - 1) // self.shards)

    @property
    def dense_holders(self) -> int:
        """Number of shards that hold a slice of the dense vector."""
        return self.shards if self.dense_shards is None else self.dense_shards

    def check(self) -> None:
        """Raise ConfigError if every step would update all rows, and they are more than MOST_ROWS_FOR_ALL."""
        if self.row_l2 == "all" and self.local_rows > MOST_ROWS_FOR_ALL:
            raise ConfigError(
                f"optim.row_l2=all updates every row in every step, and a server would hold {self.local_rows:,} rows; "
                f"type optim.row_l2=touched, or so many cluster.servers that each holds {MOST_ROWS_FOR_ALL:,} at most."
            )


class Shard:
    """One server's parameters, staged gradient slices and version. Not thread-safe: a single thread owns it."""

    def __init__(self, spec: ShardSpec, kernels: Kernels | None = None) -> None:
        spec.check()
        self.spec, self.kernels = spec, kernels or load()
        self.version = 0
        self.rows = RowBlock(
            aligned_zeros((spec.local_rows, spec.width)), spec.row_optimizer, self.kernels,
            decay=spec.row_weight_decay, every=spec.row_l2 == "all", touches=spec.row_staleness == "row",
        )  # fmt: skip
        self.rows.initialise(spec.seed, spec.shard, spec.shards, spec.init_scale)
        size = 0 if spec.dense is None else spec.dense.size
        self.dense_range = dense_range(size, spec.shard, spec.dense_holders)
        self.dense = self._make_dense()
        self._notes = PullCounts(self.rows.touch_counts) if spec.row_staleness == "row" else None
        self._staged: dict[int, GradientSlice] = {}
        self._applied: set[int] = set()
        self.watcher: Callable[[list[RowPart]], None] | None = None  # called with row gradients before rows change

    def _make_dense(self) -> DenseBlock | None:
        spec, (lo, hi) = self.spec, self.dense_range
        if spec.dense is None:
            return None
        value = aligned_zeros((hi - lo,))
        if spec.dense_init is not None:
            require(spec.dense_init, FLOAT, (hi - lo,), "dense_init")
            np.copyto(value, spec.dense_init)
        return DenseBlock(value, spec.dense, spec.dense_optimizer, lo, self.kernels)

    @property
    def table(self) -> Floats:
        """Embedding rows f32[local rows, width]; local row i is global row shard + i * shards."""
        return self.rows.table

    def pull_rows(self, index: Ints, out: Floats) -> None:
        """Copy rows `index` int32[n] into `out`. Raises ValueError on an index outside the table."""
        self.kernels.gather(self.rows.table, index, out)

    def note_pull(self, batch: int, index: Ints) -> None:
        """Record which rows are pulled for a batch, to compute their staleness when its gradient is applied.

        Does nothing unless row_staleness=row, nor for a negative batch (an evaluation's). Raises ValueError on an index
        outside.
        """
        if self._notes is not None and batch >= 0 and batch not in self._applied and batch not in self._staged:
            self._notes.record_pull(batch, index)

    def pull_dense(self, out: Floats) -> None:
        """Copy the dense slice into `out`. Raises ValueError if the shard has none, or `out` another shape."""
        require(out, FLOAT, self.dense_block().value.shape, "The output")
        np.copyto(out, self.dense_block().value)

    def dense_block(self) -> DenseBlock:
        """Return the dense slice with its optimizer. Raises ValueError if the shard has none."""
        if self.dense is None:
            raise ValueError("This shard holds no dense parameters.")
        return self.dense

    def stage(self, batch: int, part: GradientSlice) -> bool:
        """Keep a gradient slice until a step applies it; if the batch already has one, release it, return False.

        The index, which a worker could still write, is copied; the gradients are held. Raises ValueError on a
        bad index or layout; nothing is changed then and the caller still owns the slice.
        """
        if batch in self._applied or batch in self._staged:
            part.close()
            return False
        require(part.grad, FLOAT, (len(part.index), self.spec.width), "A row gradient")
        if part.dense is not None:
            require(part.dense, FLOAT, self.dense_block().value.shape, "A dense gradient")
        index = part.index.copy()
        self.kernels.check_index(index, self.spec.local_rows)
        part.index = index
        if self._notes is not None:
            self._notes.attach(batch, part)
        self._staged[batch] = part
        return True

    def drop(self, batch: int) -> bool:
        """Forget a batch's pull record and staged slice, which may be staged again later; False if none was staged."""
        if self._notes is not None:
            self._notes.forget(batch)
        part = self._staged.pop(batch, None)
        if part is not None:
            part.close()
        return part is not None

    @property
    def staged(self) -> tuple[int, ...]:
        """Batches whose slices are staged and not yet applied, in order of arrival."""
        return tuple(self._staged)

    def staged_slice(self, batch: int) -> GradientSlice:
        """Return the staged slice of a batch. Raises KeyError if none is staged."""
        return self._staged[batch]

    @property
    def reports(self) -> list[Any]:
        """Reports of the slices that are staged and not yet applied, in order of arrival."""
        return [part.report for part in self._staged.values() if part.report is not None]

    def apply(self, order: StepOrder) -> tuple[int, ...]:
        """Apply the step `order`, free its gradient slices, and return the batches applied.

        Members of weight 0 touch nothing; if all weights are 0, only the version advances. With the order's
        `row_weights` each row has its own weight, and a row of weight 0 is left out of its gradient. Raises ValueError,
        before anything is changed, on a step out of order, a member that is not staged, or a weight or divisor out of
        range.
        """
        parts = self._members(order)
        self._step(*self._row_parts(parts, order), [(part, weight) for part, weight in parts if weight > 0], order)
        self.version += 1
        batches = tuple(batch for batch, _ in order.members)
        self._applied.update(batches)
        for batch in batches:
            self._staged.pop(batch).close()
        return batches

    def _members(self, order: StepOrder) -> list[tuple[GradientSlice, float]]:
        if order.step != self.version:
            raise ValueError(f"Step {order.step} was ordered at version {self.version}.")
        staged, found = self._staged, dict(order.members)  # batch -> weight
        missing = [batch for batch in found if batch not in staged]
        if missing or len(found) != len(order.members):
            batches = [batch for batch, _ in order.members]
            raise ValueError(f"Step {order.step} names batches {batches}; not staged: {missing}.")
        if not all(0 <= weight < math.inf for weight in found.values()):
            raise ValueError(f"Step {order.step} has a weight that is negative or not finite.")
        if order.row_weights:
            self._check_row_weights(order)
        if order.shares and not (len(order.shares) == len(found) and all(0 < n < math.inf for n in order.shares)):
            raise ValueError(f"Step {order.step} has a share that is missing, not positive or not finite.")
        live = any(found.values())
        if live and not (0 < order.divisor < math.inf and 0 < order.weight_sum < math.inf):
            raise ValueError(f"Step {order.step} has a divisor or weight sum that is not positive.")
        return [(staged[batch], weight) for batch, weight in order.members]

    def _check_row_weights(self, order: StepOrder) -> None:
        if self._notes is None:
            raise ValueError(f"Step {order.step} has row weights, which need mode.row_staleness=row.")
        if len(order.row_weights) != len(order.members):
            counts = f"row weights of {len(order.row_weights)} gradients, but {len(order.members)} gradients"
            raise ValueError(f"Step {order.step} has {counts}.")
        if not all(weights and all(0 <= w < math.inf for w in weights) for weights in order.row_weights):
            raise ValueError(f"Step {order.step} has a row weight that is missing, negative or not finite.")

    def _row_parts(
        self, parts: list[tuple[GradientSlice, float]], order: StepOrder
    ) -> tuple[list[RowPart], list[float]]:
        """List each slice's rows of weight > 0, with the slice's share of the divisor of its rows (see `_share`).

        A slice is empty where only dense gradients count. The second list is empty where all rows have the same
        divisor.
        """
        if not 0 < order.divisor < math.inf:
            return [], []
        kept = [(rows, n) for n, (part, weight) in enumerate(parts) for rows in self._weighed(part, weight, n, order)]
        if not kept and any(weight > 0 for _, weight in parts):
            kept = [((np.empty(0, INT), np.empty((0, self.spec.width), FLOAT), 1.0), 0)]
        apart = self._by_contributors or (order.accepted and order.row_weights)
        return [rows for rows, _ in kept], [self._share(rows[2], n, order) for rows, n in kept] if apart else []

    def _weighed(self, part: GradientSlice, weight: float, member: int, order: StepOrder) -> list[RowPart]:
        if self._notes is not None and order.row_weights:
            return self._notes.group_by_weight(part, order.row_weights[member])
        return [(part.index, part.grad, weight)] if weight > 0 and not part.lost else []

    @property
    def _by_contributors(self) -> bool:
        return self.spec.sparse_divisor == "contributors"

    def _divisor(self, order: StepOrder) -> float:
        """Compute the part of the gradient's divisor that is common to all rows (see `_share` for the other part)."""
        return 0.0 if self._by_contributors else order.divisor

    def _share(self, weight: float, member: int, order: StepOrder) -> float:
        """Compute how much one batch's slice adds to the divisor by which the gradients of its rows are divided.

        With `contributors` only the slices that carry a row count: by their weights if the order divides by weights,
        else by their samples. Otherwise the order's divisor already counts every member by its dense weight, and the
        row's own weight replaces it.
        """
        if not self._by_contributors:
            return weight - order.members[member][1]
        return weight if order.accepted else order.shares[member] if order.shares else 1.0

    def _step(
        self, rows: list[RowPart], shares: list[float], live: list[tuple[GradientSlice, float]], order: StepOrder
    ) -> None:
        dense = [(part.dense, weight) for part, weight in live if part.dense is not None]
        present = [weight for part, weight in live if not part.lost]
        if dense and len(dense) != len(present):
            raise ValueError(f"Step {order.step}: some gradients have a dense part and some have none.")
        if rows:
            if self.watcher is not None:
                self.watcher(rows)
            self.rows.apply(rows, self._divisor(order), order.lr_scale, shares)
        if dense:  # running statistics are a mean over the slices that arrived
            weight_sum = order.weight_sum if len(present) == len(live) else sum(present)
            self.dense_block().apply_parts(dense, order.divisor, weight_sum, order.lr_scale)

    def touched_rows(self, order: StepOrder) -> Ints:
        """Find the distinct local rows that a step will touch, int32[n] ascending; call before `apply`."""
        parts = [index for index, _, _ in self._row_parts(self._members(order), order)[0]]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, INT)

    def gradient_norms(self, order: StepOrder) -> tuple[float, list[float]]:
        """Compute a step's gradient norms: (squared L2 norm on the dense slice, norms of some rows' gradients).

        Call before `apply`.
        """
        parts = self._members(order)
        dense = [(part.dense, weight) for part, weight in parts if weight > 0 and part.dense is not None]
        params = 0 if self.dense is None else self.dense.params
        square = dense_square(dense, params, order.divisor) if dense else 0.0
        rows, shares = self._row_parts(parts, order)
        return square, row_norms(rows, self._divisor(order), self.kernels, shares)

    def step_digest(self, touched: Ints) -> str:
        """Compute the BLAKE2b digest of the rows `touched` and the dense slice, each with its optimizer's state."""
        return digest([*(array[touched] for array in self.rows.arrays.values()), *self._dense_arrays])

    def begin_phase(self) -> None:
        """Forget which batches were applied and pulled, as the next phase numbers its batches from 0 again."""
        self._applied.clear()
        if self._notes is not None:
            self._notes.forget()

    def take_over(self, version: int, lost: Sequence[int]) -> None:
        """Take the place of a failed shard after `version` steps; stage empty slices for the batches `lost`."""
        self.version = version
        for batch in lost:
            self.stage(batch, GradientSlice.empty(self.spec.width))

    def restart(self) -> None:
        """Reinitialise parameters, optimizer and version in the same memory, and drop all staged slices."""
        for batch in self.staged:
            self.drop(batch)
        self.begin_phase()
        self.reset_optimizer()
        self.rows.initialise(self.spec.seed, self.spec.shard, self.spec.shards, self.spec.init_scale)
        if self.dense is not None:
            self.dense.value[:] = 0.0 if self.spec.dense_init is None else self.spec.dense_init
        self.version = 0

    def reset_optimizer(self) -> None:
        """Reset the optimizer state of rows and dense slice; parameters and version stay."""
        self.rows.reset_optimizer()
        if self.dense is not None:
            self.dense.reset_optimizer()

    def dense_state(self) -> dict[str, Any]:
        """Copy the dense slice, its moments and step. Raises ValueError if the shard has none."""
        return self.dense_block().state()

    def checksum(self) -> str:
        """Compute the BLAKE2b digest of all rows and the dense slice, each with its optimizer's state (1 GB/s)."""
        return digest([*self.rows.arrays.values(), *self._dense_arrays])

    @property
    def _dense_arrays(self) -> list[Floats]:
        return [] if self.dense is None else [*self.dense.arrays.values()]

    def model_sum(self, with_dense: bool = True) -> int | None:
        """Compute the shard's summand of the model's checksum, whose total modulo 2^64 is the same for any sharding.

        None above 512 MiB.
        """
        arrays = self.rows.arrays.values()
        if sum(array.nbytes for array in arrays) > MOST_BYTES:
            return None
        total = sum(row_sum(array, self.spec.shard, self.spec.shards, salt) for salt, array in enumerate(arrays))
        return (total + (self.dense.model_sum() if with_dense and self.dense is not None else 0)) % MODULUS

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held by kind: rows, moments, dense slice, staged slices."""
        held = [part.nbytes for part in self._staged.values()] + ([] if self._notes is None else [self._notes.nbytes])
        value, *moments = [array.nbytes for array in self._dense_arrays] or [0]
        return {**self.rows.nbytes, "dense": value, "dense_moments": sum(moments), "staged": sum(held)}

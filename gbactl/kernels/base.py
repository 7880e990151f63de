"""What a set of row kernels offers, and the small types they share.

Two implementations, `native` (compiled) and `twin` (torch), give the same bits for every function
here. Arrays are C-contiguous and aligned; an array of another type or layout raises ValueError, and so
does an index outside its table, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gbactl.kernels.halves import Codec

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
RowPart = tuple[Ints, Floats, float]
DensePart = tuple[Floats, float]

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)
LONG = np.dtype(np.int64)
COUNT = np.dtype(np.uint32)


class Unique(NamedTuple):
    """Distinct rows of a batch: `index` int32[U] (local rows, grouped by shard, first-seen order within
    one), `counts` int64[shards], `inverse` int32[n] (position in `index` of every id)."""

    index: Ints  # type: ignore[assignment]
    counts: Longs
    inverse: Ints

    def shares(self) -> Iterator[tuple[int, int, int]]:
        """(shard, low, high): where each shard's part of `index` lies."""
        low = 0
        for shard, count in enumerate(self.counts.tolist()):
            yield shard, low, low + count
            low += count


class Aggregate(NamedTuple):
    """Weighted sums per distinct row: `index` int32[U] in first-seen order, `total` f32[U, W],
    `contributors` f32[U] (the sum of the shares of the parts with weight > 0 that carry the row)."""

    index: Ints  # type: ignore[assignment]
    total: Floats
    contributors: Floats


class Rule(NamedTuple):
    """An optimizer rule: its name and every constant, already rounded to fp32.

    `bias` f32[T, 2] holds 1/(1-beta1^t) and 1/sqrt(1-beta2^t); from T - 1 on both are 1.
    """

    name: str
    beta1: float = 0.0
    rest1: float = 0.0
    beta2: float = 0.0
    rest2: float = 0.0
    eps: float = 0.0
    bias: Floats | None = None


class Workspace:
    """Output buffers of `aggregate`, kept between calls: fresh pages cost more than the sums."""

    def __init__(self) -> None:
        self.index: Ints = np.empty(0, INT)
        self.total: Floats = np.empty(0, FLOAT)
        self.contributors: Floats = np.empty(0, FLOAT)

    def reserve(self, rows: int, width: int) -> None:
        """Make room for `rows` distinct rows of `width` values."""
        if len(self.index) < rows:
            self.index, self.contributors = np.empty(rows, INT), np.empty(rows, FLOAT)
        if len(self.total) < rows * width:
            self.total = np.empty(rows * width, FLOAT)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.index.nbytes + self.total.nbytes + self.contributors.nbytes


class RowStep(Protocol):
    """One optimizer step of a bound table."""

    def listed(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """Rows `index` (distinct) step with weight * grad / divisor + decay * row; the divisor of row i
        is contributors[i] where that is given."""

    def every(
        self, slot: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """All rows step; row r has the gradient row grad[slot[r]], or zero where slot[r] is -1."""


class DenseStep(Protocol):
    """One optimizer step of a bound dense slice."""

    def __call__(
        self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float
    ) -> None:
        """Step with (sum of weight * grad over parts, in order) / divisor + decay * value. `step` is the
        learning rate (times the first bias correction for adam), `root` the second correction."""


class Kernels(Protocol):
    """Row kernels. Safe to call from several threads on different arrays."""

    name: str

    def dedupe(self, ids: Ints, offsets: Longs, shards: int) -> Unique:
        """Distinct fused rows of ids int32[B, F]: row offsets[f] + id lives on shard row % shards at local
        index row // shards. Raises ValueError on a negative id or a row beyond int32."""

    def gather(self, table: Floats, index: Ints, out: Floats) -> None:
        """out[i] = table[index[i]]. Raises ValueError on an index outside; nothing is written past `out`."""

    def segment_sum(self, grad: Floats, inverse: Ints, out: Floats) -> None:
        """out f32[U, W] = sums of the grad rows by `inverse`, added in row order."""

    def aggregate(
        self, parts: Sequence[RowPart], workspace: Workspace | None = None, shares: Sequence[float] = ()
    ) -> Aggregate:
        """Sum of weight * grad over parts in list order; parts of weight 0 are skipped. `shares`: what each part
        adds to `contributors` (none: 1). The result lies in the workspace, if one is given, until its next use."""

    def check_index(self, index: Ints, rows: int) -> None:
        """Raises ValueError unless every entry is in [0, rows) and occurs once."""

    def init_rows(self, table: Floats, seed: int, first: int, stride: int, scale: float) -> None:
        """Fill table[i] for global row first + i * stride: uniform in [-scale, scale), a hash of (seed, row,
        column), so the same however rows are sharded."""

    def average(
        self, running: Floats, parts: Sequence[DensePart], weight_sum: float, momentum: float
    ) -> None:
        """running += momentum * (sum of weight * part / weight_sum - running)."""

    def codec(self, name: str) -> Codec:
        """Values in two bytes each: fp16 or bf16 (see halves.py)."""

    def bind_rows(self, rule: Rule, table: Floats, moments: Sequence[Floats], counts: Any) -> RowStep:
        """Prepare steps of table f32[R, W]; the arrays are held, and updated in place."""

    def bind_dense(self, rule: Rule, value: Floats, moments: Sequence[Floats]) -> DenseStep:
        """Prepare steps of value f32[n]; the arrays are held, and updated in place."""


def require(array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> None:
    """Cheap layout check; -1 in `shape` stands for any length. Raises ValueError."""
    got = array.shape
    if array.dtype != dtype or not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"{what} must be an aligned, contiguous {dtype} array, not {array.dtype}.")
    if got != shape and (
        len(got) != len(shape) or any(w not in (-1, g) for g, w in zip(got, shape, strict=True))
    ):
        raise ValueError(f"{what} has shape {got}, expected {shape} (-1: any).")


def live_shares(parts: Sequence[RowPart], shares: Sequence[float]) -> list[float]:
    """The shares of the parts of weight > 0. Raises ValueError unless every part has one."""
    if len(shares) != len(parts):
        raise ValueError(f"{len(parts)} parts have {len(shares)} shares.")
    return [share for part, share in zip(parts, shares, strict=True) if part[2] != 0]


def float32(value: float) -> float:
    """Round once to fp32, so that both kernels see the same constant."""
    return float(np.float32(value))

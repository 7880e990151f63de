"""Interface of a set of row kernels, the small types that kernels share, and memory aligned to cache lines.

Two implementations, `native` (compiled) and `twin` (torch), give the same bits for every function
here. Arrays are C-contiguous and aligned. An array of another type or layout, or an index outside its table, raises
ValueError before anything is written.

Reading an aligned embedding row of 64 bytes costs one cache miss, not two. Large arrays ask for huge pages: rows far
apart then cost a cache miss and no page-table walk, which makes a pull about 1.5 times as fast. Their pages are
populated at allocation, so that no step waits for the system to find and clear 2 MB when a row is the first of its
page.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gbactl.kernels.half_precision import Codec

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
RowPart = tuple[Ints, Floats, float]
DensePart = tuple[Floats, float]

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)
LONG = np.dtype(np.int64)
COUNT = np.dtype(np.uint32)
PLAIN = 0x0101  # NumPy's flags C_CONTIGUOUS and ALIGNED


class DistinctRows(NamedTuple):
    """Distinct embedding rows of a batch, grouped by shard.

    `index` int32[U]: local rows, in first-seen order within a shard. `counts` int64[shards]. `inverse` int32[n]:
    position in `index` of every id.
    """

    index: Ints  # type: ignore[assignment]
    counts: Longs
    inverse: Ints

    def shares(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over (shard, low, high), where index[low:high] are the shard's rows."""
        low = 0
        for shard, count in enumerate(self.counts.tolist()):
            yield shard, low, low + count
            low += count


class RowSums(NamedTuple):
    """Weighted gradient sums, one per distinct row.

    `index` int32[U] in first-seen order, `total` f32[U, W], `contributors` f32[U]: the sum of the shares of the slices
    with weight > 0 that carry the row.
    """

    index: Ints  # type: ignore[assignment]
    total: Floats
    contributors: Floats


class OptimizerRule(NamedTuple):
    """Optimizer name and constants in the form the kernels need, rounded to float32.

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
    """Output buffers of `aggregate`, reused between calls because fresh pages cost more than the sums."""

    def __init__(self) -> None:
        self.index: Ints = np.empty(0, INT)
        self.total: Floats = np.empty(0, FLOAT)
        self.contributors: Floats = np.empty(0, FLOAT)

    def reserve(self, rows: int, width: int) -> None:
        """Reserve room for `rows` distinct rows of `width` values."""
        if len(self.index) < rows:
            self.index, self.contributors = np.empty(rows, INT), np.empty(rows, FLOAT)
        if len(self.total) < rows * width:
            self.total = np.empty(rows * width, FLOAT)

    @property
    def nbytes(self) -> int:
        """Size of the buffers in bytes."""
        return self.index.nbytes + self.total.nbytes + self.contributors.nbytes


class RowStep(Protocol):
    """Optimizer step on the embedding table to which `Kernels.bind_rows` has bound it."""

    def __call__(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """Apply an optimizer step to the rows `index`, with gradient weight * grad / divisor + decay * row.

        With `contributors`, the divisor of row index[i] is contributors[i]. Where every row steps each time, all other
        rows have the gradient decay * row.
        """


class DenseStep(Protocol):
    """Optimizer step on the dense slice to which `Kernels.bind_dense` has bound it."""

    def __call__(self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float) -> None:
        """Apply a step to the dense slice, with gradient (ordered sum of weight * grad) / divisor + decay * value.

        `step` is the learning rate (times the first bias correction for adam), `root` the second correction.
        """


class Kernels(Protocol):
    """Interface of the row kernels. Safe to call from several threads on different arrays."""

    name: str

    def dedupe(self, ids: Ints, offsets: Longs, shards: int) -> DistinctRows:
        """Find the distinct rows of a batch's ids, int32[samples, fields], grouped by shard.

        Row offsets[f] + id lives on shard row % shards at local index row // shards. Raises ValueError on a negative id
        or a row beyond int32.
        """

    def gather(self, table: Floats, index: Ints, out: Floats) -> None:
        """Copy rows: out[i] = table[index[i]]. Raises ValueError on an index outside the table."""

    def segment_sum(self, grad: Floats, inverse: Ints, out: Floats) -> None:
        """Sum gradient rows by distinct row: grad[i] is added to out[inverse[i]], in order of i."""

    def aggregate(
        self, parts: Sequence[RowPart], workspace: Workspace | None = None, shares: Sequence[float] = ()
    ) -> RowSums:
        """Sum weight * gradient per row over gradient slices, in list order; slices of weight 0 are skipped.

        `shares`: what each part adds to `contributors` (none: 1). The result lies in the workspace, if one is given,
        until the workspace is used again.
        """

    def check_index(self, index: Ints, rows: int) -> None:
        """Raise ValueError unless every entry of `index` is in [0, rows) and occurs once."""

    def init_rows(self, table: Floats, seed: int, first: int, stride: int, scale: float) -> None:
        """Fill table[i] with the initial values of global row first + i * stride.

        Values are uniform in [-scale, scale), a hash of (seed, row, column), so they do not depend on the sharding.
        """

    def average(self, running: Floats, parts: Sequence[DensePart], weight_sum: float, momentum: float) -> None:
        """Update running statistics: running += momentum * (sum of weight * part / weight_sum - running)."""

    def codec(self, name: str) -> Codec:
        """Return the codec of the two-byte float type `name`: fp16 or bf16 (see half_precision.py)."""

    def bind_rows(
        self, rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any, every: bool = False
    ) -> RowStep:
        """Prepare optimizer steps on a table f32[rows, width]; the arrays are held, and updated in place.

        `every`: all rows step each time, at a cost of 4 bytes a row.
        """

    def bind_dense(self, rule: OptimizerRule, value: Floats, moments: Sequence[Floats]) -> DenseStep:
        """Prepare optimizer steps on a dense slice `value` f32[n]; the arrays are held, and updated in place."""


_START = ctypes.c_char * 0


def address(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array; `array.ctypes.data`, for a read-only one, takes four times as long."""
    try:
        return ctypes.addressof(_START.from_buffer(array))  # type: ignore[arg-type]
    except TypeError:
        return array.ctypes.data


def require(array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> None:
    """Check an array's type, layout and shape, where -1 stands for any length. Raises ValueError."""
    got = array.shape
    if array.dtype != dtype or array.flags.num & PLAIN != PLAIN:
        raise ValueError(f"{what} must be an aligned, contiguous {dtype} array, not {array.dtype}.")
    if got != shape and (len(got) != len(shape) or [w for g, w in zip(got, shape, strict=True) if w != g and w != -1]):
        raise ValueError(f"{what} has shape {got}, expected {shape} (-1: any).")


def live_parts(parts: Sequence[RowPart], shares: Sequence[float]) -> tuple[list[RowPart], list[float]]:
    """Check all gradient slices, and return those of weight > 0 with their shares. Raises ValueError."""
    if not parts:
        raise ValueError("Nothing to aggregate.")
    for index, grad, _ in parts:
        require(index, INT, (-1,), "An index")
        require(grad, FLOAT, (len(index), parts[0][1].shape[1]), "A gradient")
    if shares and len(shares) != len(parts):
        raise ValueError(f"{len(parts)} parts have {len(shares)} shares.")
    counted = [share for part, share in zip(parts, shares, strict=False) if part[2] != 0]
    return [part for part in parts if part[2] != 0], counted


def require_table(rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any) -> None:
    """Check the arrays of a table before an optimizer is bound to it. Raises ValueError."""
    require(table, FLOAT, (-1, -1), "A table")
    shape = table.shape[:1] if rule.name == "rowwise_adagrad" else table.shape
    for moment in moments:
        require(moment, FLOAT, shape, "A moment")
    if counts is not None:
        require(counts, COUNT, table.shape[:1], "Step counts")


def float32(value: float) -> float:
    """Round a number once to fp32, so that compiled kernels and torch kernels use the same constant."""
    return float(np.float32(value))


CACHE_LINE = 64
HUGE_PAGE = 1 << 21
LARGE_ARRAY = 2 * HUGE_PAGE
POPULATE_WRITE = 23  # Linux 5.14; Python's mmap has no name for it


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Allocate a zero array of `shape`, aligned to 64 bytes, or to 2 MB if it is large."""
    kind = np.dtype(dtype)
    return _aligned(math.prod(shape) * kind.itemsize, np.zeros).view(kind).reshape(shape)


def _aligned(size: int, make: Callable[[int, type[np.uint8]], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Allocate `size` aligned bytes with `make`, or, if they are many, zeros on huge pages."""
    raw, step = (_huge(size), HUGE_PAGE) if size >= LARGE_ARRAY else (make(size + CACHE_LINE, np.uint8), CACHE_LINE)
    skip = -address(raw) % step
    return raw[skip : skip + size]


def _huge(size: int) -> NDArray[np.uint8]:
    """Allocate at least `size` zero bytes with room for alignment, prefaulted and on huge pages where possible."""
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (getattr(mmap, "MADV_HUGEPAGE", 0), POPULATE_WRITE if sys.platform == "linux" else 0):
        with contextlib.suppress(AttributeError, OSError):  # switched off, kernel too old, or too few huge pages
            memory.madvise(advice)
    return np.frombuffer(memory, np.uint8)


def aligned_full(shape: tuple[int, ...], value: float) -> NDArray[np.float32]:
    """Allocate an aligned float32 array filled with `value`; for 0, the allocated zeros are not written again."""
    made = aligned_zeros(shape)
    if value:
        made.fill(value)
    return made


def aligned_copy(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy values into an aligned array that a model can compute with in place."""
    made: NDArray[np.float32] = _aligned(values.nbytes, np.empty).view(FLOAT).reshape(values.shape)
    np.copyto(made, values)
    return made

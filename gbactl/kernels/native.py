"""The compiled kernels behind ctypes: about 5 us of Python a call; the interpreter lock is released.

Layouts are checked here, indexes in C. Scratch memory is per thread and lives in the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int64
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.kernels.base import (
    FLOAT,
    INT,
    LONG,
    Aggregate,
    DensePart,
    Floats,
    Ints,
    Longs,
    RowPart,
    Rule,
    Unique,
    Workspace,
    live_shares,
    require,
)
from gbactl.kernels.library import checked, dense_arguments, open_library, pointers
from gbactl.kernels.native_halves import NativeCodec
from gbactl.kernels.native_steps import NativeDenseStep, NativeRowStep


class NativeKernels:
    """The compiled library."""

    name = "native"

    def __init__(self, path: Path) -> None:
        self._library = open_library(path)

    def dedupe(self, ids: Ints, offsets: Longs, shards: int) -> Unique:
        """See `Kernels.dedupe`."""
        require(ids, INT, (-1, len(offsets)), "ids")
        require(offsets, LONG, (-1,), "offsets")
        if shards < 1:
            raise ValueError("shards must be at least 1.")
        index, inverse = np.empty(ids.size, INT), np.empty(ids.size, INT)
        counts = np.empty(shards, LONG)
        used = checked(
            self._library.gb_dedupe(
                ids.ctypes.data, ids.shape[0], ids.shape[1], offsets.ctypes.data, shards,
                index.ctypes.data, counts.ctypes.data, inverse.ctypes.data,
            )
        )  # fmt: skip
        return Unique(index[:used], counts, inverse)

    def gather(self, table: Floats, index: Ints, out: Floats) -> None:
        """See `Kernels.gather`."""
        rows, width = table.shape
        n = len(index)
        require(table, FLOAT, (rows, width), "A table")
        require(index, INT, (n,), "An index")
        require(out, FLOAT, (n, width), "The output")
        gather = self._library.gb_gather
        checked(gather(table.ctypes.data, rows, width, index.ctypes.data, n, out.ctypes.data))

    def segment_sum(self, grad: Floats, inverse: Ints, out: Floats) -> None:
        """See `Kernels.segment_sum`."""
        n, width = grad.shape
        require(grad, FLOAT, (n, width), "A gradient")
        require(inverse, INT, (n,), "inverse")
        require(out, FLOAT, (-1, width), "The output")
        add = self._library.gb_segment_sum
        checked(add(grad.ctypes.data, inverse.ctypes.data, n, width, out.ctypes.data, len(out)))

    def aggregate(
        self, parts: Sequence[RowPart], workspace: Workspace | None = None, shares: Sequence[float] = ()
    ) -> Aggregate:
        """See `Kernels.aggregate`."""
        if not parts:
            raise ValueError("Nothing to aggregate.")
        width = parts[0][1].shape[1]
        for index, grad, _ in parts:
            require(index, INT, (-1,), "An index")
            require(grad, FLOAT, (len(index), width), "A gradient")
        live = [part for part in parts if part[2] != 0]
        k = len(live)
        counted = (c_float * k)(*live_shares(parts, shares)) if shares else None
        sizes = (c_int64 * k)(*[len(index) for index, _, _ in live])
        weights = (c_float * k)(*[weight for _, _, weight in live])
        out = workspace or Workspace()
        out.reserve(sum(sizes), width)
        used = checked(
            self._library.gb_aggregate(
                k, pointers([part[0] for part in live]), pointers([part[1] for part in live]),
                sizes, weights, counted, width,
                out.index.ctypes.data, out.total.ctypes.data, out.contributors.ctypes.data,
            )
        )  # fmt: skip
        total = out.total[: used * width].reshape(used, width)
        return Aggregate(out.index[:used], total, out.contributors[:used])

    def check_index(self, index: Ints, rows: int) -> None:
        """See `Kernels.check_index`."""
        require(index, INT, (-1,), "An index")
        checked(self._library.gb_check_unique(index.ctypes.data, len(index), rows))

    def init_rows(self, table: Floats, seed: int, first: int, stride: int, scale: float) -> None:
        """See `Kernels.init_rows`."""
        require(table, FLOAT, (-1, -1), "A table")
        seed &= (1 << 64) - 1
        self._library.gb_init_rows(table.ctypes.data, *table.shape, seed, first, stride, scale)

    def average(
        self, running: Floats, parts: Sequence[DensePart], weight_sum: float, momentum: float
    ) -> None:
        """See `Kernels.average`."""
        require(running, FLOAT, (-1,), "Running statistics")
        n = len(running)
        self._library.gb_average(running.ctypes.data, n, *dense_arguments(parts, n), weight_sum, momentum)

    def codec(self, name: str) -> NativeCodec:
        """See `Kernels.codec`."""
        return NativeCodec(self._library, name)

    def bind_rows(self, rule: Rule, table: Floats, moments: Sequence[Floats], counts: Any) -> NativeRowStep:
        """See `Kernels.bind_rows`."""
        return NativeRowStep(self._library, rule, table, moments, counts)

    def bind_dense(self, rule: Rule, value: Floats, moments: Sequence[Floats]) -> NativeDenseStep:
        """See `Kernels.bind_dense`."""
        return NativeDenseStep(self._library, rule, value, moments)

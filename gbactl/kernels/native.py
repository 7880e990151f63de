"""Row kernels compiled from kernels.cpp, called through ctypes without holding the interpreter lock.

Layouts are checked here, indexes in C. Scratch memory is per thread and lives in the library. Optimizer steps are bound
once to a table or a dense slice and its state: addresses are taken at binding, and a step costs about 4 us of Python.
Denormal numbers count as 0 on every node; every thread that computes must set that for itself (`flush`). Denormals are
slow (a table of idle Adam moments decays into them), and bits are equal on all nodes only if all flush them. The
setting belongs to the thread; it costs a microsecond.

The conversions of half_precision.py take .2 ms for a dense vector of 500,000 values.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.cpu import CoreAssignment, CoreSlots, UnsharedCore
from gbactl.errors import MissingDependencyError
from gbactl.kernels.base import (
    FLOAT,
    INT,
    LONG,
    DensePart,
    DistinctRows,
    Floats,
    Ints,
    Longs,
    OptimizerRule,
    RowPart,
    RowSums,
    Workspace,
    address,
    live_parts,
    require,
    require_table,
)
from gbactl.kernels.build import find_library
from gbactl.kernels.half_precision import CODECS, Codec, Halves

ABI = 5
RULES = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 2, "adam": 3}
ERRORS = {-1: "an index lies outside the table", -2: "an index occurs twice"}
SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gb_abi": (c_int64, ()),
    "gb_gather": (c_int64, (c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p)),
    "gb_check_range": (c_int64, (c_void_p, c_int64, c_int64)),
    "gb_check_unique": (c_int64, (c_void_p, c_int64, c_int64)),
    "gb_dedupe": (c_int64, (c_void_p, c_int64, c_int64, c_void_p, c_int64, *(c_void_p,) * 3)),
    "gb_segment_sum": (c_int64, (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64)),
    "gb_aggregate": (c_int64, (c_int64, *(c_void_p,) * 5, c_int64, *(c_void_p,) * 3)),
    "gb_step_rows": (None, (c_void_p, c_void_p, c_int64, *(c_void_p,) * 4, *(c_float,) * 4)),
    "gb_step_dense": (None, (c_void_p, c_int64, c_void_p, c_void_p, *(c_float,) * 4)),
    "gb_average": (None, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_float, c_float)),
    "gb_init_rows": (None, (c_void_p, c_int64, c_int64, c_uint64, c_int64, c_int64, c_float)),
    "gb_narrow": (None, (c_int64, c_void_p, c_void_p, c_int64)),
    "gb_widen": (None, (c_int64, c_void_p, c_void_p, c_int64)),
    "gb_round": (None, (c_int64, c_void_p, c_int64)),
    "gb_flush_denormals": (None, (c_int64,)),
    "gb_turn_take": (c_int64, (c_void_p, c_int64)),
    "gb_turn_end": (None, (c_void_p, c_int64)),
}


class KernelState(ctypes.Structure):
    """Table or dense slice with its optimizer state, laid out like `State` in kernels.cpp."""

    _fields_ = (
        ("value", c_void_p), ("first", c_void_p), ("second", c_void_p), ("counts", c_void_p),
        ("bias", c_void_p), ("bias_steps", c_int64), ("rows", c_int64), ("width", c_int64),
        ("rule", c_int32), ("beta1", c_float), ("rest1", c_float),
        ("beta2", c_float), ("rest2", c_float), ("eps", c_float),
    )  # fmt: skip


def open_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise MissingDependencyError(f"{path.name} cannot be used ({error}); reinstall gbactl.") from None
    if library.gb_abi() != ABI:
        raise MissingDependencyError(f"{path.name} is of another version; reinstall gbactl.")
    return library


def checked(code: int) -> int:
    if code < 0:
        if code == -3:
            raise MemoryError("no memory for the kernels' scratch tables")
        raise ValueError(f"Refused: {ERRORS[code]}.")
    return code


def pointers(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (c_void_p * len(arrays))(*[address(array) for array in arrays])


def dense_arguments(parts: Sequence[DensePart], size: int) -> tuple[int, Any, Any]:
    if not parts:
        raise ValueError("A dense step needs at least one gradient.")
    for grad, _ in parts:
        require(grad, FLOAT, (size,), "A dense gradient")
    weights = (c_float * len(parts))(*[weight for _, weight in parts])
    return len(parts), pointers([grad for grad, _ in parts]), weights


def make_state(rule: OptimizerRule, value: Floats, moments: Sequence[Floats], counts: Any, width: int) -> KernelState:
    first, second = ([address(moment) for moment in moments] + [None, None])[:2]
    steps = 0 if rule.bias is None else len(rule.bias)
    return KernelState(
        address(value), first, second, None if counts is None else address(counts),
        None if rule.bias is None else address(rule.bias), steps, len(value), width,
        RULES[rule.name], rule.beta1, rule.rest1, rule.beta2, rule.rest2, rule.eps,
    )  # fmt: skip


def flushes() -> bool:
    """Whether the calling thread treats denormal numbers as 0."""
    return bool(np.multiply(np.float32(2e-38), np.float32(0.25)) == 0)


def flush(on: bool = True) -> None:
    """Make the calling thread treat denormal numbers as 0 (`on`), or stop doing so."""
    path = find_library()
    if path is not None:
        open_library(path).gb_flush_denormals(int(on))
        return
    import torch

    torch.set_flush_denormal(on)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Context in which denormal numbers are 0; restores the thread's earlier setting afterwards."""
    before = flushes()
    flush(True)
    try:
        yield
    finally:
        flush(before)


KINDS = {"fp16": 0, "bf16": 1}
HALF = np.dtype(np.uint16)


class NativeKernels:
    """Row kernels of the compiled library."""

    name = "native"

    def __init__(self, path: Path) -> None:
        self._library = open_library(path)

    def dedupe(self, ids: Ints, offsets: Longs, shards: int) -> DistinctRows:
        require(ids, INT, (-1, len(offsets)), "ids")
        require(offsets, LONG, (-1,), "offsets")
        if shards < 1:
            raise ValueError("shards must be at least 1.")
        index, inverse = np.empty(ids.size, INT), np.empty(ids.size, INT)
        counts = np.empty(shards, LONG)
        used = checked(
            self._library.gb_dedupe(
                address(ids), ids.shape[0], ids.shape[1], address(offsets), shards,
                address(index), address(counts), address(inverse),
            )
        )  # fmt: skip
        return DistinctRows(index[:used], counts, inverse)

    def gather(self, table: Floats, index: Ints, out: Floats) -> None:
        rows, width = table.shape
        n = len(index)
        require(table, FLOAT, (rows, width), "A table")
        require(index, INT, (n,), "An index")
        require(out, FLOAT, (n, width), "The output")
        gather = self._library.gb_gather
        checked(gather(address(table), rows, width, address(index), n, address(out)))

    def segment_sum(self, grad: Floats, inverse: Ints, out: Floats) -> None:
        n, width = grad.shape
        require(grad, FLOAT, (n, width), "A gradient")
        require(inverse, INT, (n,), "inverse")
        require(out, FLOAT, (-1, width), "The output")
        add = self._library.gb_segment_sum
        checked(add(address(grad), address(inverse), n, width, address(out), len(out)))

    def aggregate(
        self, parts: Sequence[RowPart], workspace: Workspace | None = None, shares: Sequence[float] = ()
    ) -> RowSums:
        live, counts = live_parts(parts, shares)
        width, k = parts[0][1].shape[1], len(live)
        counted = (c_float * k)(*counts) if shares else None
        sizes = (c_int64 * k)(*[len(index) for index, _, _ in live])
        weights = (c_float * k)(*[weight for _, _, weight in live])
        out = workspace or Workspace()
        out.reserve(sum(sizes), width)
        used = checked(
            self._library.gb_aggregate(
                k, pointers([part[0] for part in live]), pointers([part[1] for part in live]),
                sizes, weights, counted, width,
                address(out.index), address(out.total), address(out.contributors),
            )
        )  # fmt: skip
        total = out.total[: used * width].reshape(used, width)
        return RowSums(out.index[:used], total, out.contributors[:used])

    def check_index(self, index: Ints, rows: int) -> None:
        require(index, INT, (-1,), "An index")
        checked(self._library.gb_check_unique(address(index), len(index), rows))

    def init_rows(self, table: Floats, seed: int, first: int, stride: int, scale: float) -> None:
        require(table, FLOAT, (-1, -1), "A table")
        seed &= (1 << 64) - 1
        self._library.gb_init_rows(address(table), *table.shape, seed, first, stride, scale)

    def average(self, running: Floats, parts: Sequence[DensePart], weight_sum: float, momentum: float) -> None:
        require(running, FLOAT, (-1,), "Running statistics")
        n = len(running)
        self._library.gb_average(address(running), n, *dense_arguments(parts, n), weight_sum, momentum)

    def codec(self, name: str) -> NativeCodec:
        return NativeCodec(self._library, name)

    def bind_rows(
        self, rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any, every: bool = False
    ) -> NativeRowStep:
        return NativeRowStep(self._library, rule, table, moments, counts, every)

    def bind_dense(self, rule: OptimizerRule, value: Floats, moments: Sequence[Floats]) -> NativeDenseStep:
        return NativeDenseStep(self._library, rule, value, moments)


class NativeRowStep:
    """Compiled optimizer step on one table."""

    def __init__(
        self, library: ctypes.CDLL, rule: OptimizerRule, table: Floats, moments: Sequence[Floats], counts: Any,
        every: bool,
    ) -> None:  # fmt: skip
        require_table(rule, table, moments, counts)
        self._rows, self._width = table.shape
        self._held = (rule, table, tuple(moments), counts)
        self._state = make_state(rule, table, moments, counts, self._width)
        self._address = addressof(self._state)
        self._zeros = np.zeros(self._width, FLOAT)
        self._slot = np.full(self._rows, -1, INT) if every else None
        self._step, self._check = library.gb_step_rows, library.gb_check_range

    def __call__(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        n, slot = len(index), self._slot
        require(index, INT, (n,), "An index")
        require(grad, FLOAT, (n, self._width), "A gradient")
        at, per_row = address(index), None
        if contributors is not None:
            require(contributors, FLOAT, (n,), "Contributors")
            per_row = address(contributors)
        checked(self._check(at, n, self._rows))
        if slot is None:
            self._step(self._address, at, n, address(grad), per_row, None, None, weight, divisor, lr, decay)
            return
        slot[index] = np.arange(n, dtype=INT)
        self._step(
            self._address, None, 0, address(grad), per_row, address(slot), address(self._zeros),
            weight, divisor, lr, decay,
        )  # fmt: skip
        slot[index] = -1


class NativeDenseStep:
    """Compiled optimizer step on one dense slice."""

    def __init__(self, library: ctypes.CDLL, rule: OptimizerRule, value: Floats, moments: Sequence[Floats]):
        for array in (value, *moments):
            require(array, FLOAT, value.shape[:1], "A dense slice")
        self._held = (rule, value, tuple(moments))
        self._state = make_state(rule, value, moments, None, 1)
        self._address, self._size = addressof(self._state), len(value)
        self._step = library.gb_step_dense

    def __call__(self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float) -> None:
        self._step(self._address, *dense_arguments(parts, self._size), divisor, step, root, decay)


def _plain(array: NDArray[Any], dtype: np.dtype[Any], size: int) -> bool:
    flags = array.flags
    return array.dtype == dtype and array.shape == (size,) and flags.c_contiguous and flags.aligned


class NativeCodec(Codec):
    """Compiled conversion to and from a two-byte float; NumPy for arrays that are not contiguous and aligned."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._library, self._kind, self._otherwise = library, KINDS[name], CODECS[name]

    def narrow(self, values: Floats, out: Halves) -> None:
        if _plain(values, FLOAT, out.size) and _plain(out, HALF, out.size):
            self._library.gb_narrow(self._kind, address(values), address(out), out.size)
        else:
            self._otherwise.narrow(values, out)

    def widen(self, halves: Halves, out: Floats) -> None:
        if _plain(halves, HALF, out.size) and _plain(out, FLOAT, out.size):
            self._library.gb_widen(self._kind, address(halves), address(out), out.size)
        else:
            self._otherwise.widen(halves, out)

    def round(self, values: Floats) -> None:
        if _plain(values, FLOAT, values.size):
            self._library.gb_round(self._kind, address(values), values.size)
        else:
            self._otherwise.round(values)


def core_slots(place: CoreAssignment | None) -> CoreSlots | UnsharedCore:
    """Return the CoreSlots of a core assignment; UnsharedCore without one, or without the compiled library."""
    path = find_library()
    return UnsharedCore() if place is None or path is None else CoreSlots(place, open_library(path))

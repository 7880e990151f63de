"""ctypes binding of the compiled library: signatures, the state structure, error codes, denormal flushing.

Denormal numbers count as 0 on every node; every thread that computes must set that for itself. Denormals are slow (a
table of idle Adam moments decays into them), and bits are equal on all nodes only if all flush them. The setting
belongs to the thread; it costs a microsecond.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.errors import MissingDependencyError
from gbactl.kernels.base import FLOAT, DensePart, Floats, OptimizerRule, require
from gbactl.kernels.build import find_library

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
    """Table or dense slice with its optimizer state; mirrors `KernelState` in kernels.cpp."""

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
    return (c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])


def dense_arguments(parts: Sequence[DensePart], size: int) -> tuple[int, Any, Any]:
    if not parts:
        raise ValueError("A dense step needs at least one gradient.")
    for grad, _ in parts:
        require(grad, FLOAT, (size,), "A dense gradient")
    weights = (c_float * len(parts))(*[weight for _, weight in parts])
    return len(parts), pointers([grad for grad, _ in parts]), weights


def make_state(rule: OptimizerRule, value: Floats, moments: Sequence[Floats], counts: Any, width: int) -> KernelState:
    address = [moment.ctypes.data for moment in moments] + [None, None]
    steps = 0 if rule.bias is None else len(rule.bias)
    return KernelState(
        value.ctypes.data, address[0], address[1], None if counts is None else counts.ctypes.data,
        None if rule.bias is None else rule.bias.ctypes.data, steps, len(value), width,
        RULES[rule.name], rule.beta1, rule.rest1, rule.beta2, rule.rest2, rule.eps,
    )  # fmt: skip


def flushes() -> bool:
    """Whether the calling thread treats denormal numbers as 0."""
    return bool(np.multiply(np.float32(2e-38), np.float32(0.25)) == 0)


def flush(on: bool = True) -> None:
    """Make the calling thread treat denormal numbers as 0, or stop doing so."""
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

"""Optimizer steps of the compiled kernels, bound once to a table or a dense slice and its state.

Addresses are taken when bound; a step costs about 4 us of Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gbactl.kernels.base import COUNT, FLOAT, INT, DensePart, Floats, Ints, Rule, require
from gbactl.kernels.library import ERRORS, checked, dense_arguments, make_state


class NativeRowStep:
    """Steps of one bound table."""

    def __init__(
        self, library: ctypes.CDLL, rule: Rule, table: Floats, moments: Sequence[Floats], counts: Any
    ):
        self._rows, self._width = table.shape
        require(table, FLOAT, (-1, -1), "A table")
        shape = (self._rows,) if rule.name == "rowwise_adagrad" else table.shape
        for moment in moments:
            require(moment, FLOAT, shape, "A moment")
        if counts is not None:
            require(counts, COUNT, (self._rows,), "Step counts")
        self._held = (rule, table, tuple(moments), counts)
        self._state = make_state(rule, table, moments, counts, self._width)
        self._address = ctypes.addressof(self._state)
        self._zeros = np.zeros(self._width, FLOAT)
        self._step, self._check = library.gb_step_rows, library.gb_check_range

    def listed(
        self, index: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """See `RowStep.listed`."""
        n = len(index)
        require(index, INT, (n,), "An index")
        require(grad, FLOAT, (n, self._width), "A gradient")
        at, per_row = index.ctypes.data, None
        if contributors is not None:
            require(contributors, FLOAT, (n,), "Contributors")
            per_row = contributors.ctypes.data
        checked(self._check(at, n, self._rows))
        self._step(self._address, at, n, grad.ctypes.data, per_row, None, None, weight, divisor, lr, decay)

    def every(
        self, slot: Ints, grad: Floats, contributors: Floats | None,
        weight: float, divisor: float, lr: float, decay: float,
    ) -> None:  # fmt: skip
        """See `RowStep.every`."""
        require(slot, INT, (self._rows,), "A slot map")
        require(grad, FLOAT, (-1, self._width), "A gradient")
        if self._rows and int(slot.max()) >= len(grad):
            raise ValueError(f"Refused: {ERRORS[-1]}.")
        per_row = None
        if contributors is not None:
            require(contributors, FLOAT, (len(grad),), "Contributors")
            per_row = contributors.ctypes.data
        self._step(
            self._address, None, 0, grad.ctypes.data, per_row, slot.ctypes.data, self._zeros.ctypes.data,
            weight, divisor, lr, decay,
        )  # fmt: skip


class NativeDenseStep:
    """Steps of one bound dense slice."""

    def __init__(self, library: ctypes.CDLL, rule: Rule, value: Floats, moments: Sequence[Floats]):
        for array in (value, *moments):
            require(array, FLOAT, value.shape[:1], "A dense slice")
        self._held = (rule, value, tuple(moments))
        self._state = make_state(rule, value, moments, None, 1)
        self._address, self._size = ctypes.addressof(self._state), len(value)
        self._step = library.gb_step_dense

    def __call__(
        self, parts: Sequence[DensePart], divisor: float, step: float, root: float, decay: float
    ) -> None:
        self._step(self._address, *dense_arguments(parts, self._size), divisor, step, root, decay)

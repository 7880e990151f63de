"""Cases of a test that only `make test-slow` runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case among the values of pytest.mark.parametrize."""
    return pytest.param(*values, marks=pytest.mark.slow)


def crossed(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of the axes' values as cases: every value is in one that is not slow, the others are slow.

    A value that is a tuple is several arguments."""
    quick = {tuple(n % len(axis) for axis in axes) for n in range(max(map(len, axes)))}
    return [
        pytest.param(*_flat(axis[n] for n, axis in zip(at, axes, strict=True)), marks=() if at in quick else MARK)
        for at in itertools.product(*(range(len(axis)) for axis in axes))
    ]


MARK = pytest.mark.slow


def _flat(values: Any) -> list[Any]:
    return [each for value in values for each in (value if isinstance(value, tuple) else (value,))]

"""Replicas that a checkpoint puts together."""

from __future__ import annotations

import numpy as np
import pytest

from gbactl.checkpoint.publishing import VALUE, ReplicaMean, fits
from gbactl.errors import WireError


def packed(value: float) -> np.ndarray:
    """Two parameters, a buffer, and sgd, which keeps nothing."""
    return np.full(3, value, np.float32)


def test_the_mean_of_those_who_told_and_the_most_steps() -> None:
    gathering = ReplicaMean([0, 1, 2, 3], False)
    gathering.add(0, 4, 2, packed(1.0))
    gathering.add(1, 9, 2, packed(3.0))
    gathering.add(2, 0, -1, packed(50.0))
    gathering.forget(3)
    gathering.add(7, 99, 2, packed(50.0))
    found = gathering.tensors("sgd")
    assert not gathering.due and found is not None
    assert found[VALUE].tolist() == [2.0, 2.0, 2.0] and found["dense.step"].tolist() == [9]


def test_one_that_is_not_as_long_as_the_others() -> None:
    gathering = ReplicaMean([0, 1], False)
    gathering.add(0, 4, 2, packed(1.0))
    with pytest.raises(WireError, match="W1 sent a replica of 2 values, others sent 3"):
        gathering.add(1, 4, 2, packed(1.0)[:2])


@pytest.mark.parametrize(
    ("params", "floats", "optimizer", "right"),
    [(2, 2, "sgd", True), (2, 1, "sgd", False), (2, 6, "adam", True), (2, 5, "adam", False), (0, 0, "adam", True)],
)
def test_how_many_values_there_must_be(params: int, floats: int, optimizer: str, right: bool) -> None:
    assert fits(params, floats, optimizer) == right

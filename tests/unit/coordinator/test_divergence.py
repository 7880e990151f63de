"""A loss that ends the run: which one does, in every mode, and what is said."""

from __future__ import annotations

import math

import pytest

from gbactl.coordinator.statistics import LossLimit


@pytest.mark.parametrize(
    ("losses", "passed"),
    [
        ([0.7, 0.6, 700.0], False),
        ([0.7, 0.6, 701.0], True),
        ([1e-4, 690.0], False),  # a tiny first loss sets no limit below 1,000 times ln 2
        ([1e-4, 694.0], True),
        ([5.0, 4999.0], False),
        ([5.0, 5001.0], True),
        ([1e6], False),  # nothing to compare it with
        ([math.nan], True),
        ([0.7, math.inf], True),
        ([0.7, -math.inf], True),
    ],
)
def test_no_number_or_a_thousand_times_the_first(losses: list[float], passed: bool) -> None:
    limit = LossLimit()
    assert not any(limit.passed(loss) for loss in losses[:-1])
    assert limit.passed(losses[-1]) == passed


def test_the_sentence() -> None:
    limit = LossLimit()
    limit.passed(0.7)
    told = limit.sentence(2, 17, math.nan, 1e6)
    assert told == (
        "The model diverged: the loss of W2 at step 17 is nan, 1,000 times the first one is 700, at a learning rate of "
        "1e+06; type a smaller optim.lr, or train.on_divergence=continue to train on."
    )

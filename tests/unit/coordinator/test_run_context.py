"""Evaluation on fixed batches, every prediction once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.coordinator.run_context import Evaluation
from gbactl.errors import DivergedError, WireError
from gbactl.quality_metrics import evaluate
from gbactl.wire.messages import Predictions


def put(evaluation: Evaluation, batch: int, values: np.ndarray, samples: int | None = None) -> None:
    count = len(values) if samples is None else samples
    message = Predictions(1, 0, batch, count)
    evaluation.store(message, values.astype(np.float32).view(np.uint8))


@given(st.integers(1, 100), st.integers(1, 30), st.randoms(use_true_random=False))
def test_predictions_do_not_depend_on_who_computes_them_or_when(samples: int, batch: int, order: object) -> None:
    evaluation = Evaluation(samples, batch)
    handed = []
    while (got := evaluation.next_batch(0)) is not None:
        handed.append(got)
    assert evaluation.next_batch(0) is None
    order.shuffle(handed)  # type: ignore[attr-defined]
    truth = np.arange(samples, dtype=np.float32) / samples
    for number, start, count in handed:
        put(evaluation, number, truth[start : start + count])
    assert evaluation.missing == 0
    assert np.array_equal(evaluation.predictions, truth)


def test_the_metrics_are_those_of_all_predictions() -> None:
    labels = np.array([0, 1, 1, 0, 1], np.uint8)
    values = np.array([0.1, 0.8, 0.7, 0.6, 0.65], np.float32)
    evaluation = Evaluation(5, 2)
    for batch in range(3):
        put(evaluation, batch, values[2 * batch : 2 * batch + 2])
    assert evaluation.metrics(labels) == evaluate(labels, values)
    assert evaluation.metrics(labels)["auc"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("batch", "count", "samples"),
    [
        (0, 3, None),
        (0, 5, None),
        (2, 4, None),
        (2, 2, 4),
        (3, 0, None),
        (-1, 4, None),
        (0, 0, None),
        (1 << 40, 4, None),
    ],
)
def test_predictions_that_do_not_fit(batch: int, count: int, samples: int | None) -> None:
    evaluation = Evaluation(10, 4)
    with pytest.raises(WireError):
        put(evaluation, batch, np.zeros(count), samples)
    assert evaluation.missing == 10
    assert np.isnan(evaluation.predictions).all()


def test_predictions_that_come_twice_count_once() -> None:
    evaluation = Evaluation(10, 5)
    put(evaluation, 0, np.full(5, 0.25))
    with pytest.raises(WireError, match="twice"):
        put(evaluation, 0, np.full(5, 0.5))
    assert evaluation.missing == 5
    assert (evaluation.predictions[:5] == 0.25).all()


def test_predictions_that_are_no_numbers_are_told_as_divergence() -> None:
    evaluation = Evaluation(2, 2)
    put(evaluation, 0, np.array([0.5, np.nan]))
    with pytest.raises(DivergedError, match=r"diverged.*type a smaller optim\.lr"):
        evaluation.metrics(np.array([0, 1], np.uint8))


def test_what_a_dead_worker_had_is_evaluated_by_another() -> None:
    evaluation = Evaluation(10, 4)
    assert [evaluation.next_batch(worker) for worker in (0, 1, 1)] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    put(evaluation, 1, np.zeros(4, np.float32))
    evaluation.requeue(1)
    assert evaluation.next_batch(0) == (2, 8, 2) and evaluation.next_batch(0) is None
    evaluation.requeue(1)
    assert evaluation.next_batch(0) is None

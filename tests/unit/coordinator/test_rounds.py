"""Rounds of a run: what it trains on and is judged by; evaluation on fixed batches, every prediction once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import TrainConfig
from gbactl.coordinator.rounds import EarlyStopping, Evaluation, Round, rounds
from gbactl.errors import ConfigError, DivergedError, WireError
from gbactl.metrics import evaluate
from gbactl.wire.messages import Predictions


@dataclass
class Data:
    kind: str
    splits: tuple[object, ...]


def days(count: int) -> Data:
    return Data("days", tuple(range(count)))


def test_each_day_is_judged_by_the_next() -> None:
    assert rounds(days(3), TrainConfig()) == [
        Round(0, 0, "day 0", (1,), 1),
        Round(1, 0, "day 1", (2,), 2),
    ]


def test_fewer_days_than_there_are() -> None:
    assert [part.split for part in rounds(days(5), TrainConfig(days=2))] == [0, 1]


def test_epochs_are_judged_by_the_validation_set_and_reported_on_the_test_set() -> None:
    data = Data("splits", ("train", "validation", "test"))
    assert rounds(data, TrainConfig(epochs=2)) == [
        Round(0, 0, "epoch 0", (1, 2), 1),
        Round(0, 1, "epoch 1", (1, 2), 1),
    ]


@pytest.mark.parametrize(
    ("data", "train", "message"),
    [
        (days(1), TrainConfig(), r"type data\.days=2"),
        (days(3), TrainConfig(epochs=2), r"type train\.epochs=1"),
        (days(3), TrainConfig(days=3), r"train\.days=3 is not possible with 3 days; type 1 to 2"),
        (days(3), TrainConfig(days=0), "type 1 to 2"),
    ],
)
def test_what_cannot_be_says_what_to_type(data: Data, train: TrainConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rounds(data, train)


def stops_after(patience: int, scores: list[float]) -> tuple[int | None, int]:
    """(round at which it stops, the best round)."""
    stopping = EarlyStopping(patience)
    for number, score in enumerate(scores):
        if stopping.update(score):
            return number, stopping.best_round
    return None, stopping.best_round


def test_early_stopping() -> None:
    assert stops_after(0, [0.9, 0.1, 0.1, 0.1]) == (None, 0)
    assert stops_after(1, [0.5, 0.6, 0.6]) == (2, 1)
    assert stops_after(2, [0.5, 0.6, 0.55, 0.7, 0.6, 0.6]) == (5, 3)
    assert stops_after(2, [0.5, 0.6, 0.7]) == (None, 2)


def test_a_score_that_is_not_a_number_is_never_the_best() -> None:
    assert stops_after(2, [float("nan"), 0.6, float("nan"), float("nan")]) == (3, 1)


def put(evaluation: Evaluation, batch: int, values: np.ndarray, samples: int | None = None) -> None:
    count = len(values) if samples is None else samples
    message = Predictions(1, 0, batch, batch * evaluation.batch, count)
    evaluation.put(message, values.astype(np.float32).view(np.uint8))


@given(st.integers(1, 100), st.integers(1, 30), st.randoms(use_true_random=False))
def test_predictions_do_not_depend_on_who_computes_them_or_when(samples: int, batch: int, order: object) -> None:
    evaluation = Evaluation(samples, batch, 0)
    handed = []
    while (got := evaluation.take(0)) is not None:
        handed.append(got)
    assert evaluation.take(0) is None
    order.shuffle(handed)  # type: ignore[attr-defined]
    truth = np.arange(samples, dtype=np.float32) / samples
    for number, start, count in handed:
        put(evaluation, number, truth[start : start + count])
    assert evaluation.missing == 0
    assert np.array_equal(evaluation.predictions, truth)


def test_the_metrics_are_those_of_all_predictions() -> None:
    labels = np.array([0, 1, 1, 0, 1], np.uint8)
    values = np.array([0.1, 0.8, 0.7, 0.6, 0.65], np.float32)
    evaluation = Evaluation(5, 2, 0)
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
    evaluation = Evaluation(10, 4, 0)
    with pytest.raises(WireError):
        put(evaluation, batch, np.zeros(count), samples)
    assert evaluation.missing == 10
    assert np.isnan(evaluation.predictions).all()


def test_predictions_that_come_twice_count_once() -> None:
    evaluation = Evaluation(10, 5, 0)
    put(evaluation, 0, np.full(5, 0.25))
    with pytest.raises(WireError, match="twice"):
        put(evaluation, 0, np.full(5, 0.5))
    assert evaluation.missing == 5
    assert (evaluation.predictions[:5] == 0.25).all()


def test_predictions_that_are_no_numbers_are_told_as_divergence() -> None:
    evaluation = Evaluation(2, 2, 0)
    put(evaluation, 0, np.array([0.5, np.nan]))
    with pytest.raises(DivergedError, match=r"diverged.*type a smaller optim\.lr"):
        evaluation.metrics(np.array([0, 1], np.uint8))


def test_what_a_dead_worker_had_is_evaluated_by_another() -> None:
    evaluation = Evaluation(10, 4, 0)
    assert [evaluation.take(worker) for worker in (0, 1, 1)] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    put(evaluation, 1, np.zeros(4, np.float32))
    evaluation.left(1)
    assert evaluation.take(0) == (2, 8, 2) and evaluation.take(0) is None
    evaluation.left(1)
    assert evaluation.take(0) is None

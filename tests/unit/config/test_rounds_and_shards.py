"""Rounds of a job: what it trains on and is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gbactl.config import TrainConfig
from gbactl.config.rounds_and_shards import Round, rounds
from gbactl.errors import ConfigError


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

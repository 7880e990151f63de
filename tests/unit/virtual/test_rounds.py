"""Rounds of replicas on a virtual clock: who takes part in a sum when somebody dies, or takes a dead one's place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.virtual.events import Events
from gbactl.virtual.rounds import Rounds


class Cost:
    """A second a rank."""

    def all_reduce(self, nbytes: int, workers: int, hosts: int, compute: float, agreed: int) -> float:
        return float(workers)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def rounds(events: Events) -> Rounds:
    return Rounds(events, Cost(), 3, 1)  # type: ignore[arg-type]


def meet(rounds: Rounds, events: Events, told: list[tuple[int, float, float]], *ranks: int) -> None:
    """Ranks come to a round, each with its own number and one more."""
    for rank in ranks:
        vector = np.array([rank + 1.0], np.float32)

        def done(rank: int = rank, vector: Any = vector) -> None:
            told.append((rank, float(vector[0]), events.now))

        rounds.meet(rank, vector, done)


def run(events: Events) -> None:
    while len(events):
        events.step()


def test_one_that_dies_before_a_round_is_missing_in_it(rounds: Rounds, events: Events) -> None:
    told: list[tuple[int, float, float]] = []
    meet(rounds, events, told, 0, 2)
    run(events)
    assert told == []
    rounds.left(1)
    run(events)
    assert told == [(0, 4.0, 2.0), (2, 4.0, 2.0)]
    meet(rounds, events, told, 2, 0)
    run(events)
    assert told[2:] == [(0, 4.0, 4.0), (2, 4.0, 4.0)]
    assert rounds.traffic.counters() == {"sent dense": 2 * 2 * (2 - 1) * 4}, "two rings of two, of one value"


@pytest.mark.parametrize("complete", [False, True])
def test_one_that_had_come_counts_once_more(rounds: Rounds, events: Events, complete: bool) -> None:
    """Whether the round was under way when it died, or others had still to come."""
    told: list[tuple[int, float, float]] = []
    meet(rounds, events, told, *((0, 1, 2) if complete else (1,)))
    rounds.left(1)
    meet(rounds, events, told, *(() if complete else (0, 2)))
    run(events)
    assert {total for _, total, _ in told} == {6.0} and len(told) == 3
    meet(rounds, events, told, 0, 2)
    run(events)
    assert [total for _, total, _ in told[3:]] == [4.0, 4.0]


def test_another_one_in_its_place_is_waited_for(rounds: Rounds, events: Events) -> None:
    told: list[tuple[int, float, float]] = []
    rounds.left(1)
    rounds.joined(1)
    meet(rounds, events, told, 0, 2)
    run(events)
    assert told == []
    meet(rounds, events, told, 1)
    run(events)
    assert [total for _, total, _ in told] == [6.0] * 3

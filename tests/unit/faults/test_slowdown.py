"""A worker's wait, on a clock that a test turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.faults.slowdown import MOST_LATE, Delay
from tests.support.fault_plans import plan

FOUR = {"kind": "constant", "factor": 4, "workers": [1]}


@dataclass
class Batch:
    """What the worker hands over."""

    seconds: float
    slowdown: float = 1.0


class World:
    """A clock; whoever sleeps is woken `late` seconds after the time."""

    def __init__(self, *plans: dict[str, Any], worker: int = 1) -> None:
        self.now, self.slept, self.late = 100.0, 0, 0.0
        self.delay = Delay(plan(*plans), worker, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds + self.late

    def batch(self, seconds: float, usual: float = 0.0) -> Batch:
        """A batch is computed and stretched."""
        self.now += seconds
        made = Batch(seconds)
        self.delay.stretch(made, usual)
        return made


def test_a_batch_takes_the_factor_times_as_long() -> None:
    world = World(FOUR)
    batch = world.batch(0.5)
    assert (batch.seconds, batch.slowdown, world.now) == (pytest.approx(2.0), 4.0, pytest.approx(102.0))


def test_the_factor_is_over_what_the_batch_takes_others() -> None:
    world = World(FOUR)
    assert world.batch(0.55, usual=0.5).seconds == pytest.approx(2.0)
    assert world.batch(2.5, usual=0.5).seconds == 2.5  # slower than asked for by itself
    assert World({"kind": "window", "factor": 3, "from": 9, "until": 10}).batch(0.5, usual=2.0).seconds == 0.5


def test_nobody_else_waits_or_is_touched() -> None:
    world = World(FOUR, worker=0)
    batch = world.batch(0.5)
    assert (batch, world.slept, world.now) == (Batch(0.5), 0, 100.5)


def test_turns_and_seconds_are_counted_from_the_workers_first_batch() -> None:
    periodic = World({"kind": "periodic", "factor": 2, "period_batches": 2})
    assert [periodic.batch(1.0).slowdown for _ in range(4)] == [2.0, 1.0, 2.0, 1.0]
    window = World({"kind": "window", "factor": 3, "from": 1, "until": 2.5})
    assert [window.batch(1.0).slowdown for _ in range(3)] == [1.0, 3.0, 1.0]  # begun at 0, 1 and 4


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 0.02)), min_size=1, max_size=50))
def test_being_woken_late_does_not_add_up(batches: list[tuple[float, float]]) -> None:
    """A wait of at least 30 ms makes up for 20 ms of lateness before it: only the last stays."""
    world, asked, passed = World(FOUR), 0.0, 0.0
    for seconds, world.late in batches:
        batch = world.batch(seconds)
        asked, passed = asked + 4.0 * seconds, passed + batch.seconds
    assert asked - 1e-6 <= passed <= asked + 0.02 + 1e-6


def test_a_long_standstill_is_not_made_up_for() -> None:
    world = World(FOUR)
    world.late = 60.0
    world.batch(1.0)
    world.late = 0.0
    assert world.batch(1.0).seconds == pytest.approx(4.0 - MOST_LATE)
    assert world.batch(1.0).seconds == pytest.approx(4.0)


def test_sleep_that_ends_early_is_taken_up_again() -> None:
    world = World(FOUR)
    whole = world.sleep

    def half(seconds: float) -> None:
        whole(seconds / 2 if world.slept < 3 else seconds)

    world.delay.sleep = half
    assert world.batch(0.2).seconds == pytest.approx(0.8)
    assert world.slept == 4

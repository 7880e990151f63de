"""A worker's wait and a server's, on a clock that a test turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.faults.observed_effects import ObservedBatches, fault_metrics
from gbactl.faults.slowdown_waits import MOST_LATE, ServerSlowdown, WorkerSlowdown, server_slowdowns
from tests.support.fault_plans import plan

FOUR = {"kind": "constant", "factor": 4, "workers": [1]}
THREE = {"kind": "constant", "factor": 3, "servers": [0]}


@dataclass
class Batch:
    """What becomes of a batch."""

    seconds: float
    slowdown: float = 1.0


class World:
    """A clock; whoever sleeps is woken `late` seconds after the time."""

    def __init__(self, *plans: dict[str, Any], worker: int = 1) -> None:
        self.now, self.slept, self.late = 100.0, 0, 0.0
        self.delay = WorkerSlowdown(plan(*plans), worker, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds + self.late

    def batch(self, seconds: float, usual: float = 0.0) -> Batch:
        """A batch is computed and stretched."""
        self.now += seconds
        return Batch(*self.delay.slow_down(seconds, usual))


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


class ServerWorld:
    """A clock; messages take time, and sleeping ends `late`."""

    def __init__(self, server: int = 0) -> None:
        self.now, self.late, self.answers = 50.0, 0.0, list[float]()
        self.slowdown = ServerSlowdown(plan(THREE, servers=2), server, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late

    def message(self, seconds: float, kind: int = 7) -> float:
        """Seconds until the answer to a message that takes so long by itself."""
        begin = self.now

        def work(took: float) -> None:
            self.now += took

        self.slowdown.handle(kind, work, seconds)
        return self.now - begin


def test_a_plan_for_servers_leaves_the_workers_alone() -> None:
    made = plan(THREE, servers=2)
    assert made.slowed == frozenset() and made.slowed_servers == {0}
    assert (
        made.factor(0, 0, 0.0) == 1.0
        and made.acting_faults("S0", 0, 0.0) == [(0, 3.0)]
        and not made.acting_faults("S1", 0, 0.0)
    )
    assert made.to_list() == [{"kind": "constant", "factor": 3, "servers": [0]}]
    both = plan({**THREE, "workers": [1]}, servers=2)
    assert (both.slowed, both.slowed_servers) == ({1}, {0})


def test_workers_and_servers_draw_apart() -> None:
    random = {"kind": "random", "distribution": "exponential", "mean": 2}
    made = plan({**random, "workers": "all", "servers": "all"}, servers=4)
    factors = [
        factor for each in "WS" for index in range(4) for _, factor in made.acting_faults(f"{each}{index}", 0, 0.0)
    ]
    assert len(set(factors)) == 8


def test_an_answer_takes_the_factor_times_as_long_once_the_usual_time_is_known() -> None:
    world = ServerWorld()
    assert world.message(0.1) == pytest.approx(0.1)  # nobody knows yet: what is owed comes with the next
    assert world.message(0.1) == pytest.approx(0.5)
    assert [world.message(0.1) for _ in range(3)] == pytest.approx([0.3] * 3)
    assert ServerWorld(server=1).message(0.1) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.001, 0.1), st.integers(0, 2), st.floats(0.0, 0.001)), min_size=2, max_size=60))
def test_over_many_messages_the_factor_is_met(messages: list[tuple[float, int, float]]) -> None:
    """But for what the last ones still owe or have too much: a few of the longest."""
    world = ServerWorld()
    for seconds, kind, world.late in messages:
        world.message(seconds, kind)
    asked = 3.0 * sum(seconds for seconds, _, _ in messages)
    assert world.now - 50.0 == pytest.approx(asked, abs=0.5)
    assert world.slowdown.planned == pytest.approx(asked) and world.slowdown.actual == pytest.approx(world.now - 50.0)


def test_injected_beside_observed() -> None:
    made = plan(THREE, servers=2)
    counters = {
        "S0": {"served": 100, "busy_us": 1000, "asked_us": 3000, "spent_us": 3300},
        "S1": {"served": 50, "busy_us": 500, "asked_us": 500, "spent_us": 500},
        "W0": {"refused": 0},
    }
    found = server_slowdowns(made, counters)
    assert found == {"S0": {"injected": 3.0, "observed": pytest.approx(3.3), "error": pytest.approx(0.1)}}
    assert server_slowdowns(made, {"S0": counters["S0"]})["S0"]["observed"] is None  # nobody to compare with
    result = {"faults": ObservedBatches(made).summary(counters)}
    assert fault_metrics(result) == {"fault_injected/S0": 3.0, "fault_observed/S0": pytest.approx(3.3)}
    assert server_slowdowns(plan(), counters) == {} and ServerSlowdown.of(plan(), 0) is None

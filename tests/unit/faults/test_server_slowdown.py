"""A server's waits, on a clock that a test turns; and what is made of what servers counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.faults.observed import Observed, fault_metrics
from gbactl.faults.server_slowdown import Slowness, summary
from tests.support.fault_plans import plan

THREE = {"kind": "constant", "factor": 3, "servers": [0]}


class World:
    """A clock; messages take time, and sleeping ends `late`."""

    def __init__(self, server: int = 0) -> None:
        self.now, self.late, self.answers = 50.0, 0.0, list[float]()
        self.slowness = Slowness(plan(THREE, servers=2), server, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late

    def message(self, seconds: float, kind: int = 7) -> float:
        """Seconds until the answer to a message that takes so long by itself."""
        begin = self.now

        def work(took: float) -> None:
            self.now += took

        self.slowness.handle(kind, work, seconds)
        return self.now - begin


def test_a_plan_for_servers_leaves_the_workers_alone() -> None:
    made = plan(THREE, servers=2)
    assert made.slowed == frozenset() and made.slowed_servers == {0}
    assert made.factor(0, 0, 0.0) == 1.0 and made.factor_of("S0", 0, 0.0) == 3.0 and made.factor_of("S1", 0, 0.0) == 1.0
    assert made.told() == [{"kind": "constant", "factor": 3, "servers": [0]}]
    both = plan({**THREE, "workers": [1]}, servers=2)
    assert (both.slowed, both.slowed_servers) == ({1}, {0})


def test_workers_and_servers_draw_apart() -> None:
    random = {"kind": "random", "distribution": "exponential", "mean": 2}
    made = plan({**random, "workers": "all", "servers": "all"}, servers=4)
    assert len({made.factor_of(f"{letter}{index}", 0, 0.0) for letter in "WS" for index in range(4)}) == 8


def test_an_answer_takes_the_factor_times_as_long_once_the_usual_time_is_known() -> None:
    world = World()
    assert world.message(0.1) == pytest.approx(0.1)  # nobody knows yet: what is owed comes with the next
    assert world.message(0.1) == pytest.approx(0.5)
    assert [world.message(0.1) for _ in range(3)] == pytest.approx([0.3] * 3)
    assert World(server=1).message(0.1) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.001, 0.1), st.integers(0, 2), st.floats(0.0, 0.001)), min_size=2, max_size=60))
def test_over_many_messages_the_factor_is_met(messages: list[tuple[float, int, float]]) -> None:
    """But for what the last ones still owe or have too much: a few of the longest."""
    world = World()
    for seconds, kind, world.late in messages:
        world.message(seconds, kind)
    asked = 3.0 * sum(seconds for seconds, _, _ in messages)
    assert world.now - 50.0 == pytest.approx(asked, abs=0.5)
    assert world.slowness.asked == pytest.approx(asked) and world.slowness.spent == pytest.approx(world.now - 50.0)


def test_injected_beside_observed() -> None:
    made = plan(THREE, servers=2)
    counters = {
        "S0": {"served": 100, "busy_us": 1000, "asked_us": 3000, "spent_us": 3300},
        "S1": {"served": 50, "busy_us": 500, "asked_us": 500, "spent_us": 500},
        "W0": {"refused": 0},
    }
    found = summary(made, counters)
    assert found == {"S0": {"injected": 3.0, "observed": pytest.approx(3.3), "error": pytest.approx(0.1)}}
    assert summary(made, {"S0": counters["S0"]})["S0"]["observed"] is None  # nobody to compare with
    result = {"faults": Observed(made).summary(counters)}
    assert fault_metrics(result) == {"fault_injected/S0": 3.0, "fault_observed/S0": pytest.approx(3.3)}
    assert summary(plan(), counters) == {} and Slowness.of(plan(), 0) is None

"""Injected beside observed, from batches made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.faults.observed import CALM_BATCHES, WARM_UP, ObservedBatches, fault_metrics
from gbactl.faults.slowdown import WorkerSlowdown
from tests.support.fault_plans import plan

FOUR = {"kind": "constant", "factor": 4, "workers": [1]}


def fed(observed: ObservedBatches, seconds: dict[int, float], batches: int = 30, samples: int = 100) -> ObservedBatches:
    """`seconds`: of a worker's batch before the plan stretches it."""
    for worker, took in seconds.items():
        for turn in range(batches):
            factor = observed.plan.factor(worker, turn, 0.0)
            observed.add(worker, took * factor, factor, samples)
    return observed


def worker(observed: ObservedBatches, name: str = "W1") -> dict[str, Any]:
    found: dict[str, Any] = observed.summary()["workers"][name]
    return found


def test_a_worker_four_times_slower_than_the_median() -> None:
    made = fed(ObservedBatches(plan(FOUR)), {0: 1.0, 1: 1.0, 2: 1.1, 3: 0.5})
    assert worker(made) == {"injected": pytest.approx(4.0), "observed": pytest.approx(4.0), "error": pytest.approx(0.0)}
    assert list(made.summary()["workers"]) == ["W1"]
    assert made.summary()["plans"] == [{"kind": "constant", "factor": 4, "workers": [1]}]


def test_what_is_observed_does_not_believe_the_plan() -> None:
    """A worker that says it was slowed by 4 and took as long as the others was not."""
    made = ObservedBatches(plan(FOUR))
    for index in range(4):
        for _ in range(30):
            made.add(index, 1.0, 4.0 if index == 1 else 1.0, 100)
    assert worker(made)["observed"] == pytest.approx(1.0)
    assert worker(made)["error"] == pytest.approx(-0.75)


def test_neighbours_on_the_same_core_are_what_a_worker_is_compared_with() -> None:
    made = fed(ObservedBatches(plan(FOUR), cores=[0, 1, 0, 1]), {0: 1.0, 1: 2.0, 2: 1.0, 3: 2.0})
    assert worker(made)["observed"] == pytest.approx(4.0)
    apart = fed(ObservedBatches(plan(FOUR), cores=[0, 1, 2, 3]), {0: 1.0, 1: 2.0, 2: 1.0, 3: 2.0})
    assert worker(apart)["observed"] == pytest.approx(8.0)


def test_what_is_usual_comes_from_those_without_a_fault() -> None:
    made = fed(ObservedBatches(plan(FOUR), cores=[0, 1, 0, 1]), {0: 1.0, 1: 9.0, 2: 1.0, 3: 2.0})
    assert made.usual(1) == pytest.approx(0.02)  # of its neighbour, per sample
    assert made.usual(0) == made.usual(3) == 0.0  # nobody slows these
    assert ObservedBatches(plan(FOUR)).usual(1) == 0.0  # nothing seen yet
    everybody = fed(ObservedBatches(plan({"kind": "constant", "factor": 1.2, "workers": [0, 1]})), {0: 1.0, 1: 1.0})
    assert everybody.usual(0) == 0.0


@pytest.mark.parametrize("drift", [0.5, 1.3, 3.0])
def test_a_machine_that_gets_slower_or_faster_slows_what_is_slowed_as_much(drift: float) -> None:
    """Each of the slow worker's batches takes four times of what is usual just then, and comes as rarely."""
    made = ObservedBatches(plan(FOUR), cores=[0, 1, 0, 1])
    for turn in range(200):
        took = 1.0 + (drift - 1.0) * turn / 200
        for _ in range(4):
            made.add(3, took, 1.0, 100)
        made.add(1, 4.0 * (100 * made.usual(1) or took), 4.0, 100)
    assert worker(made)["observed"] == pytest.approx(4.0, rel=0.02)


def test_first_batches_are_not_looked_at() -> None:
    made = ObservedBatches(plan(FOUR))
    for index in range(2):
        for _ in range(WARM_UP):
            made.add(index, 50.0, 1.0, 100)
    fed(made, {0: 1.0, 1: 1.0})
    assert worker(made)["observed"] == pytest.approx(4.0)


def test_short_batches_are_not_looked_at() -> None:
    made = fed(ObservedBatches(plan(FOUR)), {0: 1.0, 1: 1.0})
    made.add(1, 50.0, 4.0, 1)
    assert worker(made)["observed"] == pytest.approx(4.0)


def test_where_all_are_slowed_at_times_their_calm_batches_are_the_measure() -> None:
    made = ObservedBatches(plan({"kind": "periodic", "factor": 5, "period_batches": 2}))
    fed(made, {0: 1.0, 1: 1.0}, batches=101 + WARM_UP)
    assert worker(made)["injected"] == pytest.approx(3.0, rel=0.02)
    assert worker(made)["observed"] == pytest.approx(worker(made)["injected"])


def test_where_all_are_always_slowed_nothing_is_observed() -> None:
    made = fed(ObservedBatches(plan({"kind": "constant", "factor": 4})), {0: 1.0, 1: 1.0})
    assert worker(made) == {"injected": pytest.approx(4.0), "observed": None, "error": None}


def test_a_hogs_factor_is_observed_alone() -> None:
    made = fed(ObservedBatches(plan({"kind": "hog", "workers": [1]}), hogged=[1, 3]), {0: 1.0, 1: 2.0, 2: 1.0, 3: 2.5})
    assert worker(made) == {"injected": None, "observed": pytest.approx(2.0), "error": None}
    assert worker(made, "W3")["observed"] == pytest.approx(2.5)
    assert worker(fed(ObservedBatches(plan(FOUR), hogged=range(4)), {0: 1.0, 1: 1.0}))["observed"] is None


def test_a_worker_that_did_too_little_is_unknown() -> None:
    made = fed(ObservedBatches(plan(FOUR)), {0: 1.0, 1: 1.0}, batches=WARM_UP)
    assert worker(made) == {"injected": None, "observed": None, "error": None}
    few = fed(ObservedBatches(plan(FOUR)), {0: 1.0, 1: 1.0}, batches=WARM_UP + CALM_BATCHES - 1)
    assert worker(few) == {"injected": pytest.approx(4.0), "observed": None, "error": None}


@example([*[(1, 0.0, 1.0, 0)] * 3, (1, 5e-324, 2.0, 1)])  # half of it is 0
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10), st.floats(1, 10), st.integers(0, 9)), max_size=80))
def test_whatever_is_said_makes_a_summary(said: list[tuple[int, float, float, int]]) -> None:
    made = ObservedBatches(plan(FOUR, {"kind": "hog", "workers": [0]}), hogged=[0], cores=[0, 1, 0, 1])
    for each in said:
        made.add(*each)
    assert set(made.summary()["workers"]) == {"W0", "W1"}


def test_of_a_run() -> None:
    assert ObservedBatches.of(from_dict({}).fault_plan(), pinned=True) is None
    cfg = from_dict({"faults": {"plans": [FOUR]}, "cluster": {"name": "virtual"}})
    made = ObservedBatches.of(cfg.fault_plan(), cfg.pinned)
    assert made is not None and made.faulty == {1} and not made.cores


def test_what_a_real_delay_does_is_what_is_observed() -> None:
    """Delay and Observed together, on a clock without noise."""
    made, now = ObservedBatches(plan({"kind": "random", "distribution": "lognormal", "mean": 2, "workers": [1]})), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    class Batch:
        seconds, slowdown = 0.02, 1.0

    for index in range(4):
        delay = WorkerSlowdown(made.plan, index, lambda: now[0], sleep)
        for _ in range(300):
            batch = Batch()
            delay.stretch(batch)
            made.add(index, batch.seconds, batch.slowdown, 512)
    assert worker(made)["error"] == pytest.approx(0.0, abs=1e-6)
    assert worker(made)["injected"] == pytest.approx(2.0, rel=0.15)


def test_metrics_leave_out_what_is_unknown() -> None:
    workers = {"W1": {"injected": 4.0, "observed": 4.1}, "W0": {"injected": None, "observed": 2.0}}
    found = fault_metrics({"faults": {"workers": workers}})
    assert found == {"fault_injected/W1": 4.0, "fault_observed/W1": 4.1, "fault_observed/W0": 2.0}
    assert fault_metrics({}) == {}

"""Observed effects of faults: injected beside measured slow-downs, and which plan acted when, on which process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.faults.observed_effects import (
    CALM_BATCHES,
    WARM_UP,
    ObservedBatches,
    fault_lines,
    fault_metrics,
    with_injected,
)
from gbactl.faults.slowdown_waits import FaultRecord, ServerSlowdown, WorkerSlowdown
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
    assert made.unslowed_seconds(1) == pytest.approx(0.02)  # of its neighbour, per sample
    assert made.unslowed_seconds(0) == made.unslowed_seconds(3) == 0.0  # nobody slows these
    assert ObservedBatches(plan(FOUR)).unslowed_seconds(1) == 0.0  # nothing seen yet
    everybody = fed(ObservedBatches(plan({"kind": "constant", "factor": 1.2, "workers": [0, 1]})), {0: 1.0, 1: 1.0})
    assert everybody.unslowed_seconds(0) == 0.0


@pytest.mark.parametrize("drift", [0.5, 1.3, 3.0])
def test_a_machine_that_gets_slower_or_faster_slows_what_is_slowed_as_much(drift: float) -> None:
    """Each of the slow worker's batches takes four times of what is usual just then, and comes as rarely."""
    made = ObservedBatches(plan(FOUR), cores=[0, 1, 0, 1])
    for turn in range(200):
        took = 1.0 + (drift - 1.0) * turn / 200
        for _ in range(4):
            made.add(3, took, 1.0, 100)
        made.add(1, 4.0 * (100 * made.unslowed_seconds(1) or took), 4.0, 100)
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

    for index in range(4):
        delay = WorkerSlowdown(made.plan, index, lambda: now[0], sleep)
        for _ in range(300):
            made.add(index, *delay.slow_down(0.02), 512)
    assert worker(made)["error"] == pytest.approx(0.0, abs=1e-6)
    assert worker(made)["injected"] == pytest.approx(2.0, rel=0.15)


def test_metrics_leave_out_what_is_unknown() -> None:
    workers = {"W1": {"injected": 4.0, "observed": 4.1}, "W0": {"injected": None, "observed": 2.0}}
    found = fault_metrics({"faults": {"workers": workers}})
    assert found == {"fault_injected/W1": 4.0, "fault_observed/W1": 4.1, "fault_observed/W0": 2.0}
    assert fault_metrics({}) == {}


EARLY = {"kind": "window", "factor": 4, "from": 0.1, "until": 0.4, "workers": [1]}
LATE = {"kind": "window", "factor": 4, "from": 120, "until": 300, "workers": [1]}


def trained(*plans: dict[str, Any], workers: int = 4, seconds: float = 1.0, delay: float = 0.0) -> ObservedBatches:
    """Everybody's batches of 10 ms, told `delay` seconds late but for the first one."""
    now = [0.0]
    made = ObservedBatches(plan(*plans, workers=workers), clock=lambda: now[0])
    for worker in range(workers):
        begin, turn = 0.0, 0
        while begin < seconds:
            factor = made.plan.factor(worker, turn, begin)
            now[0] = begin + 0.01 * factor + (delay if turn else 0.0)
            made.add(worker, 0.01 * factor, factor, 100)
            begin, turn = begin + 0.01 * factor, turn + 1
    return made


def result(made: ObservedBatches, *injected: dict[str, Any], **more: Any) -> dict[str, Any]:
    summary = made.summary(more.pop("counters", None), more.pop("resumed_at", 0.0))
    return {"faults": with_injected(summary, injected), **more}


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_window_that_came_and_one_that_did_not(delay: float) -> None:
    found = result(trained(LATE, EARLY, delay=delay))
    assert found["faults"]["never"] == [0]
    (acted,) = found["faults"]["acted"]
    assert (acted["plan"], acted["process"], acted["factor"]) == (1, "W1", 4)
    assert acted["from_s"] == pytest.approx(0.1 + delay, abs=0.011)
    assert acted["until_s"] == pytest.approx(0.42 + delay, abs=0.021)
    assert fault_lines(found)[0].startswith("W1 4x slower 0.1-0.")
    assert fault_lines(found)[1:] == ["never acted: faults.plans[0] (window from 120 s)"]


def test_a_plan_for_many_is_one_line() -> None:
    everybody = {"kind": "random", "distribution": "exponential", "mean": 2}
    (line,) = fault_lines(result(trained(everybody, workers=6)))
    assert line.startswith("W0, W1, W2, W3, and 2 more up to ") and "x slower 0.0-1." in line


def test_kills_and_hangs_are_what_was_done() -> None:
    kill, hang = {"kind": "kill", "mtbf": 0.1, "workers": "all"}, {"kind": "hang", "step": 9, "servers": [0]}
    made = trained(kill, hang, hang)
    hit = [{"plan": 0, "process": f"W{n % 4}", "at": 0.1 * n, "seconds": None, "done": n != 3} for n in range(8)]
    hung = {"plan": 1, "process": "S0", "at": 0.5, "seconds": 2.0, "done": True}
    found = fault_lines(result(made, *hit, hung))
    assert found[:2] == ["W0 killed at 0.0000 s", "W1 killed at 0.1 s"]
    assert found[5:] == ["and 3 more (result.json)", "never acted: faults.plans[2] (hang at step 9)"]
    assert fault_lines(result(trained(hang), {**hung, "plan": 0})) == ["S0 stopped at 0.5 s for 2 s"]
    assert fault_lines(result(trained(hang), {**hung, "plan": 0, "seconds": None})) == ["S0 stopped at 0.5 s for good"]


def test_storms_of_messages_and_what_they_hit() -> None:
    made = trained({"kind": "messages", "drop": 0.1, "workers": [0, 2]})
    assert fault_lines(result(made)) == ["never acted: faults.plans[0] (messages)"]
    for when in (0.2, 0.7):
        made.clock = lambda when=when: when  # type: ignore[misc]
        made.note_message_faults([0])
    assert fault_lines(result(made)) == ["messages of W0, W2 0.2-0.7 s: none was hit"]
    hit = result(made, messages={"dropped": 1200, "retried": 3})
    assert fault_lines(hit) == ["messages of W0, W2 0.2-0.7 s: 1,200 dropped, 3 retried"]


def test_hogs_are_busy_in_their_window() -> None:
    hog = {"kind": "hog", "workers": [1], "from": 0.5}
    assert fault_lines(result(trained(hog))) == ["a hog beside W1 0.5-1.0 s"]
    assert fault_lines(result(trained({**hog, "until": 0.7}), resumed_at=0.25)) == ["a hog beside W1 0.8-0.9 s"]
    assert fault_lines(result(trained({**hog, "from": 7.0}))) == ["never acted: faults.plans[0] (hog from 7 s)"]


def test_servers_count_what_slows_them() -> None:
    now = [0.0]
    plans = [{**EARLY, "workers": None, "servers": [1]}, {**LATE, "workers": None, "servers": [1]}]
    slow = ServerSlowdown.of(plan(*plans), 1, clock=lambda: now[0])
    assert slow is not None
    for tick in range(10):
        now[0] = tick / 10
        slow.factor(now[0])
    found = result(trained(*plans), counters={"S1": slow.counters, "W0": {}})
    assert fault_lines(found) == ["S1 4x slower 0.1-0.3 s", "never acted: faults.plans[1] (window from 120 s)"]
    resumed = result(trained(*plans), counters={"S1": slow.counters}, resumed_at=60.0)
    assert fault_lines(resumed)[0] == "S1 4x slower 60.1-60.3 s"


def test_another_one_goes_on_with_what_was_noted() -> None:
    first, second = FaultRecord(), FaultRecord()
    first.add(0, "W1", 1.0, 2.0, 3.0)
    second.restore(first.to_list())
    second.add(0, "W1", 5.0, 6.0, 2.0)
    assert second.to_list() == [{"plan": 0, "process": "W1", "from_s": 1.0, "until_s": 6.0, "factor": 3.0}]


def test_a_run_without_faults_says_nothing() -> None:
    assert fault_lines({}) == fault_lines({"faults": {"plans": []}}) == []

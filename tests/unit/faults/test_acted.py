"""What of a plan acted, when and on whom, and what never did."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.faults.acted import FaultRecord, lines, with_injected
from gbactl.faults.observed import ObservedBatches
from gbactl.faults.slowdown import ServerSlowdown
from tests.support.fault_plans import plan

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
    return {"faults": with_injected(made.summary(more.pop("counters", None)), injected), **more}


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_window_that_came_and_one_that_did_not(delay: float) -> None:
    found = result(trained(LATE, EARLY, delay=delay))
    assert found["faults"]["never"] == [0]
    (acted,) = found["faults"]["acted"]
    assert (acted["plan"], acted["process"], acted["factor"]) == (1, "W1", 4)
    assert acted["from_s"] == pytest.approx(0.1 + delay, abs=0.011)
    assert acted["until_s"] == pytest.approx(0.42 + delay, abs=0.021)
    assert lines(found)[0].startswith("W1 4x slower 0.1-0.")
    assert lines(found)[1:] == ["never acted: faults.plans[0] (window from 120 s)"]


def test_a_plan_for_many_is_one_line() -> None:
    everybody = {"kind": "random", "distribution": "exponential", "mean": 2}
    (line,) = lines(result(trained(everybody, workers=6)))
    assert line.startswith("W0, W1, W2, W3, and 2 more up to ") and "x slower 0.0-1." in line


def test_kills_and_hangs_are_what_was_done() -> None:
    kill, hang = {"kind": "kill", "mtbf": 0.1, "workers": "all"}, {"kind": "hang", "step": 9, "servers": [0]}
    made = trained(kill, hang, hang)
    hit = [{"plan": 0, "process": f"W{n % 4}", "at": 0.1 * n, "seconds": None, "done": n != 3} for n in range(8)]
    hung = {"plan": 1, "process": "S0", "at": 0.5, "seconds": 2.0, "done": True}
    found = lines(result(made, *hit, hung))
    assert found[:2] == ["W0 killed at 0.0000 s", "W1 killed at 0.1 s"]
    assert found[5:] == ["and 3 more (result.json)", "never acted: faults.plans[2] (hang at step 9)"]
    assert lines(result(trained(hang), {**hung, "plan": 0})) == ["S0 stopped at 0.5 s for 2 s"]
    assert lines(result(trained(hang), {**hung, "plan": 0, "seconds": None})) == ["S0 stopped at 0.5 s for good"]


def test_storms_of_messages_and_what_they_hit() -> None:
    made = trained({"kind": "messages", "drop": 0.1, "workers": [0, 2]})
    assert lines(result(made)) == ["never acted: faults.plans[0] (messages)"]
    for when in (0.2, 0.7):
        made.clock = lambda when=when: when  # type: ignore[misc]
        made.stormed([0])
    assert lines(result(made)) == ["messages of W0, W2 0.2-0.7 s: none was hit"]
    hit = result(made, messages={"dropped": 1200, "retried": 3})
    assert lines(hit) == ["messages of W0, W2 0.2-0.7 s: 1,200 dropped, 3 retried"]


def test_hogs_are_busy_in_their_window() -> None:
    hog = {"kind": "hog", "workers": [1], "from": 0.5}
    assert lines(result(trained(hog))) == ["a hog beside W1 0.5-1.0 s"]
    assert lines(result(trained({**hog, "from": 7.0}))) == ["never acted: faults.plans[0] (hog from 7 s)"]


def test_servers_count_what_slows_them() -> None:
    now = [0.0]
    plans = [{**EARLY, "workers": None, "servers": [1]}, {**LATE, "workers": None, "servers": [1]}]
    slow = ServerSlowdown.of(plan(*plans), 1, clock=lambda: now[0])
    assert slow is not None
    for tick in range(10):
        now[0] = tick / 10
        slow.factor(now[0])
    found = result(trained(*plans), counters={"S1": slow.counters, "W0": {}})
    assert lines(found) == ["S1 4x slower 0.1-0.3 s", "never acted: faults.plans[1] (window from 120 s)"]


def test_another_one_goes_on_with_what_was_noted() -> None:
    first, second = FaultRecord(), FaultRecord()
    first.note(0, "W1", 1.0, 2.0, 3.0)
    second.restore(first.told())
    second.note(0, "W1", 5.0, 6.0, 2.0)
    assert second.told() == [{"plan": 0, "process": "W1", "from_s": 1.0, "until_s": 6.0, "factor": 3.0}]


def test_a_run_without_faults_says_nothing() -> None:
    assert lines({}) == lines({"faults": {"plans": []}}) == []

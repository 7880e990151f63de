"""Times of nodes: a worker's waits, for a batch until it is granted, then for its rows; each thread its own."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from gbactl.wire.node_measurements import (
    BUSY,
    KERNELS,
    PUSH,
    ROWS,
    TRACE_DIR,
    NodeTimes,
    ServerTimes,
    Trace,
    clock_zero,
    merge_traces,
    trace_part,
)


@pytest.mark.parametrize(("granted", "expected"), [(0.0, (0.0, 4.0)), (7.0, (2.0, 2.0)), (99.0, (4.0, 0.0))])
def test_a_wait_is_for_the_batch_and_then_for_rows(granted: float, expected: tuple[float, float]) -> None:
    waits = NodeTimes(clock=lambda: 9.0)
    waits.next_batch(5.0, granted)
    assert waits.take()[: ROWS + 1] == list(expected)


def test_waits_are_taken_once_and_by_thread() -> None:
    waits = NodeTimes()
    with waits.activity(PUSH):
        time.sleep(0.001)
    seen: list[list[float]] = []
    thread = threading.Thread(target=lambda: seen.append(waits.take()))
    thread.start()
    thread.join()
    assert seen == [[0.0] * 5]
    assert waits.take()[PUSH] > 0 and waits.take() == [0.0] * 5


def test_a_server_is_idle_or_busy_in_training_only() -> None:
    now = [0.0]
    times = ServerTimes(lambda: now[0])

    def handle(seconds: float, kernels: float) -> None:
        with times.activity(BUSY), times.activity(KERNELS):
            now[0] += kernels
        times.activity(BUSY).add(0.0, seconds - kernels)
        now[0] += seconds - kernels

    handle(3.0, 1.0)
    now[0] += 4.0
    assert times.total(training=True) == {"idle": 4.0, "kernels": 1.0, "messages": 2.0}
    handle(5.0, 5.0)
    assert times.total(training=False) == {"idle": 4.0, "kernels": 1.0, "messages": 2.0}


def test_traces_of_processes_become_one_until_their_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Trace.of_process(tmp_path, "W0") is None
    (tmp_path / TRACE_DIR).mkdir()
    trace, now = Trace.of_process(tmp_path, "W0"), iter([2.0, 2.5, 3.0, 4.0, 5.0])
    assert trace is not None
    monkeypatch.setattr(NodeTimes, "trace", trace)
    times = NodeTimes(clock=lambda: next(now))
    with times.activity(PUSH):
        trace.step(1000)
    times.next_batch(2.5, 2.75)
    trace.step(1201)
    with times.activity(PUSH):
        pass
    trace.write()
    events = json.loads(merge_traces(tmp_path).read_text())["traceEvents"]
    found = [(each["name"], each["ts"], each["dur"]) for each in events if each["ph"] == "X"]
    rounded = 0.002  # less than adjacent, so that rounding to nanoseconds never makes them overlap
    assert found == [(name, at, length - rounded) for name, at, length in (
        ("push", 2e6, 5e5), ("batch", 2.5e6, 2.5e5), ("rows", 2.75e6, 2.5e5),
    )]  # fmt: skip
    assert [each["name"] for each in events if each["ph"] == "i"] == ["step 1000"]
    assert events[0]["args"] == {"name": "W0"} and {each["pid"] for each in events} == {1}
    assert not (tmp_path / TRACE_DIR).exists()


def test_times_of_another_machine_are_of_this_one_s_clock_and_keep_their_order(tmp_path: Path) -> None:
    """Its two processes have not read the same zero, and have threads of the same number; a third part is not whole."""
    (tmp_path / TRACE_DIR).mkdir()
    day, slices = 86_400.0, [{"ph": "X", "name": "push", "ts": 86_400e6, "dur": 1.0, "tid": 9}]
    for name, read_late in (("S0", 0.0), ("W0", 5e-5)):
        part = json.dumps({"zero": clock_zero() - day - read_late, "events": slices})
        trace_part(tmp_path, name).write_text(part)
    trace_part(tmp_path, "W1").write_text(part[:-3])
    events = json.loads(merge_traces(tmp_path).read_text())["traceEvents"]
    assert {each["args"]["name"]: each["pid"] for each in events if each["ph"] == "M"} == {"S0": 1, "W0": 2}
    server, worker = (each for each in events if each["ph"] == "X")
    assert (server["pid"], worker["pid"]) == (1, 2)
    assert server["ts"] == worker["ts"] == pytest.approx(0.0, abs=1e3)

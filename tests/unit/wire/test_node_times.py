"""Times of nodes: a worker's waits, for a batch until it is granted, then for its rows; each thread its own."""

from __future__ import annotations

import threading
import time

import pytest

from gbactl.wire.node_times import BATCH, BUSY, KERNELS, PUSH, ROWS, NodeTimes, ServerTimes


@pytest.mark.parametrize(("granted", "expected"), [(0.0, (0.0, 4.0)), (7.0, (2.0, 2.0)), (99.0, (4.0, 0.0))])
def test_a_wait_is_for_the_batch_and_then_for_rows(granted: float, expected: tuple[float, float]) -> None:
    waits = NodeTimes(clock=lambda: 9.0)
    waits.next_batch(5.0, granted)
    assert (waits.seconds[BATCH], waits.seconds[ROWS]) == expected


def test_waits_are_taken_once_and_by_thread() -> None:
    waits = NodeTimes()
    with waits.of(PUSH):
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
        with times.of(BUSY), times.of(KERNELS):
            now[0] += kernels
        times.seconds[BUSY] += seconds - kernels
        now[0] += seconds - kernels

    handle(3.0, 1.0)
    now[0] += 4.0
    assert times.total(training=True) == {"idle": 4.0, "kernels": 1.0, "messages": 2.0}
    handle(5.0, 5.0)
    assert times.total(training=False) == {"idle": 4.0, "kernels": 1.0, "messages": 2.0}

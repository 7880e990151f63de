"""Waits of a worker's compute threads: for a batch until it is granted, then for its rows; each thread its own."""

from __future__ import annotations

import threading
import time

import pytest

from gbactl.worker import wait_times
from gbactl.worker.wait_times import BATCH, PUSH, ROWS, WaitTimes


@pytest.mark.parametrize(("granted", "expected"), [(0.0, (0.0, 4.0)), (7.0, (2.0, 2.0)), (99.0, (4.0, 0.0))])
def test_a_wait_is_for_the_batch_and_then_for_rows(
    granted: float, expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_times.time, "perf_counter", lambda: 9.0)
    waits = WaitTimes()
    waits.next_batch(5.0, granted)
    assert (waits.seconds[BATCH], waits.seconds[ROWS]) == expected


def test_waits_are_taken_once_and_by_thread() -> None:
    waits = WaitTimes()
    with waits.of(PUSH):
        time.sleep(0.001)
    seen: list[list[float]] = []
    thread = threading.Thread(target=lambda: seen.append(waits.take()))
    thread.start()
    thread.join()
    assert seen == [[0.0] * 5]
    assert waits.take()[PUSH] > 0 and waits.take() == [0.0] * 5

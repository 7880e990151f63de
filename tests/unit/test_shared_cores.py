"""Turns on a core: one at a time, first come first served, and never a reason to hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gbactl import cpu
from gbactl.cpu import CoreAssignment, CoreSlots, UnsharedCore, open_turn_counters, sharing
from gbactl.kernels.build import find_library
from gbactl.kernels.native import core_slots
from tests.support.processes import wait_for

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="turns are for Linux")
compiled = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")


@linux
def test_cores_are_shared_only_where_each_gets_as_many_workers() -> None:
    assert sharing(4, [0, 3]) == [0, 3, 0, 3]
    assert sharing(2, [0, 1]) == sharing(3, [0, 1]) == []
    assert sharing(2, [5]) == [5, 5]


def test_without_a_place_a_worker_computes_at_any_time() -> None:
    free = core_slots(None)
    assert isinstance(free, UnsharedCore)
    free.pin_thread()
    with free.time_slot():
        pass


@linux
@compiled
def test_one_at_a_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PATIENCE_MS", 60_000)  # a busy machine must not look like a dead holder
    core = min(os.sched_getaffinity(0))
    order: list[int] = []
    inside = 0

    def work(me: int, turn: CoreSlots) -> None:
        nonlocal inside
        with turn.time_slot():
            inside += 1
            assert inside == 1
            time.sleep(0.0005)
            order.append(me)
            inside -= 1

    with open_turn_counters(1) as board:
        joined = [core_slots(CoreAssignment(board.fileno(), 0, core)) for _ in range(21)]
        threads = [threading.Thread(target=work, args=(i, turn)) for i, turn in enumerate(joined)]
        with joined[-1].time_slot():
            for number, thread in enumerate(threads[:-1], start=2):
                thread.start()
                wait_for(lambda taken=number: os.pread(board.fileno(), 4, 0) == taken.to_bytes(4, sys.byteorder))
        for thread in threads[:-1]:
            thread.join(60)
    assert order == list(range(20))


HOLD = """
import sys, time
from gbactl.cpu import CoreAssignment
from gbactl.kernels.native import core_slots
with core_slots(CoreAssignment(int(sys.argv[1]), 0, 0)).time_slot():
    print(1, flush=True)
    time.sleep(600)
"""


@linux
@compiled
def test_a_dead_holder_is_passed_by_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PATIENCE_MS", 100)
    with open_turn_counters(1) as board:
        command = [sys.executable, "-c", HOLD, str(board.fileno())]
        with subprocess.Popen(command, pass_fds=[board.fileno()], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None and holder.stdout.readline()
            holder.kill()
        mine = core_slots(CoreAssignment(board.fileno(), 0, 0))
        began = time.monotonic()
        with mine.time_slot():
            waited = time.monotonic() - began
        assert waited >= 0.1
        began = time.monotonic()
        for _ in range(50):
            with mine.time_slot():
                pass
        assert time.monotonic() - began < 50 * 0.1


@linux
@compiled
def test_a_late_end_of_a_turn_that_was_passed_by_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PATIENCE_MS", 50)
    with open_turn_counters(1) as board:
        slow, fast = (core_slots(CoreAssignment(board.fileno(), 0, 0)) for _ in range(2))
        with slow.time_slot(), fast.time_slot():
            pass
        order: list[str] = []
        with slow.time_slot():
            thread = threading.Thread(target=lambda: _note(fast, order))
            thread.start()
            time.sleep(0.01)
            order.append("slow")
        thread.join(10)
        assert order == ["slow", "fast"]


def _note(turn: CoreSlots | UnsharedCore, order: list[str]) -> None:
    with turn.time_slot():
        order.append("fast")


def test_the_board_has_no_name(tmp_path: Path) -> None:
    with open_turn_counters(2) as board:
        assert os.fstat(board.fileno()).st_nlink == 0
        assert os.fstat(board.fileno()).st_size == 2 * cpu.LINE

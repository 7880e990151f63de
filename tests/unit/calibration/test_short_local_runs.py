"""Rates and seconds of a core, from what a run tells."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gbactl.calibration.short_local_runs import ProgressLog, cpu_by_role
from gbactl.errors import ClusterError


def note(finished: int, seconds: float, number: int = 0, samples: int | None = None) -> dict[str, Any]:
    told = finished if samples is None else samples
    return {"round_samples": 1000, "round_finished": finished, "round": number, "seconds": seconds, "samples": told}


def test_the_rate_is_the_slope_before_the_end() -> None:
    notes = ProgressLog()
    taken = [notes.add(note(n, 1.0 + n / 50.0)) for n in range(200, 1000, 100)]
    assert all(taken)
    assert not notes.add(note(1000, 99.0)), "the end counts for nothing"
    assert notes.rate == pytest.approx(50.0)


def test_the_first_seconds_of_every_phase_are_left_out() -> None:
    notes = ProgressLog(seconds=1.5)
    for number in range(2):
        taken = [notes.add(note(100 * n, 50.0 * number + n, number)) for n in range(1, 9)]
        assert taken == [False, False, True, True, True, True, True, True]
    assert notes.rate == pytest.approx(100.0)


def test_what_happens_between_phases_is_no_part_of_the_rate() -> None:
    notes = ProgressLog()
    for number in range(3):
        for n in range(0, 1000, 250):
            notes.add(note(n, 100.0 * number + n / 500.0, number, samples=1000 * number + n))
    assert notes.rate == pytest.approx(500.0)


def test_a_run_that_told_too_little_has_no_rate() -> None:
    notes = ProgressLog()
    for n in range(4):
        notes.add(note(n, float(n)))
    with pytest.raises(ClusterError, match="type a larger --seconds"):
        _ = notes.rate


def test_a_role_has_used_what_its_processes_have(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for node, pid in {"W0": os.getpid(), "W1": os.getpid(), "S0": os.getpid(), "C": 0}.items():
        (tmp_path / "logs" / f"{node}.log").write_text(f"12:00:00.000 {node} INFO pid {pid}, threads 1\n")
    (tmp_path / "logs" / "W2.log").write_text("")
    before, until = time.process_time(), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    used = cpu_by_role(tmp_path)
    assert set(used) == {"W", "S"}, "nothing is said of a process that is gone"
    assert used["S"] >= before + 0.05 and used["W"] == pytest.approx(2 * used["S"], abs=0.1)

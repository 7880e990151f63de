"""Two minutes of the soak: trainings in one mode after the other whose processes are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "experiments" / "soak" / "soak.py"


@pytest.mark.slow
@pytest.mark.alone  # every process that starts meanwhile counts as left behind
def test_two_minutes_of_a_soak(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "2", "--seed", "1", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=500, cwd=SOAK.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all well" in done.stdout.splitlines()[-1]
    assert len(done.stdout.splitlines()) > 4

"""`gbactl top` beside a real job: a line a second on a pipe, and keys on a terminal that switch the mode."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gbactl.policies.policy import names
from tests.support.processes import Launcher, seen

SIZES = ("data.rows_per_day=200000", "model.hidden=[256,256]", "cluster.workers=2", "train.max_eval_samples=2000",
         "faults.plans=[{kind: constant, workers: all, factor: 4}]")  # fmt: skip
GBACTL = Path(sys.executable).parent / "gbactl"


@pytest.mark.beside
@pytest.mark.slow
def test_a_job_is_watched_and_switched_by_keys(launcher: Launcher) -> None:
    launched = launcher.start(*SIZES, "mode=async")
    launched.training()
    lines = subprocess.Popen([GBACTL, "top", str(launched.run_dir)], stdout=subprocess.PIPE, text=True)
    ours, theirs = pty.openpty()
    view = subprocess.Popen([GBACTL, "top", str(launched.run_dir)], stdin=theirs, stdout=theirs, stderr=theirs,
                            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"})  # fmt: skip
    os.close(theirs)
    try:
        seen(ours, "q: leave the job alone")
        os.write(ours, b"s")
        seen(ours, "Which mode?")
        os.write(ours, "abcdefghijklmnopqrstuvwxyz"[names().index("gba")].encode())
        seen(ours, "Switch to gba")
        os.write(ours, b"y")
        seen(ours, "async to gba")
        os.write(ours, b"q")
        assert view.wait(30) == 0
        done = launched.finish()
        told, _ = lines.communicate(timeout=60)
    finally:
        for process in (view, lines):
            process.kill()
            process.wait()
        os.close(ours)
    assert done.code == 0, done.err
    assert [phase["mode"] for phase in done.result["phases"]] == ["async", "gba"]
    assert lines.returncode == 0
    assert any(" async day 0 " in each and "samples/s" in each for each in told.splitlines()), told
    assert told.splitlines()[-1] == f"The run has ended; type: gbactl report {launched.run_dir}"

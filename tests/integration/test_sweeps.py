"""Sweeps on Hydra's own launchers: jobs in other processes, whose errors come home."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.processes import SMALL, Launcher

pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the extra gbactl[joblib] is not installed")


def sweep(launcher: Launcher, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Two jobs side by side."""
    own = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "tracking.enabled=false")
    return subprocess.run(
        [sys.executable, "-m", "gbactl", "train", "-m", *SMALL, *own, *overrides],
        cwd=launcher.cwd, env=launcher.environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_jobs_of_a_sweep_run_side_by_side(launcher: Launcher) -> None:
    done = sweep(launcher, "mode=async", "seed=1,2")
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in launcher.cwd.glob("runs/*/result.json")]
    assert sorted(result["seed"] for result in results) == [1, 2]
    assert all(result["status"] == "FINISHED" for result in results)


def test_an_error_of_a_job_is_that_of_the_sweep(launcher: Launcher) -> None:
    done = sweep(launcher, "mode=async", "model.dropout=0.0,2.0")
    assert done.returncode == 2
    assert "gbactl: model.dropout must be in [0, 1)." in done.stderr
    assert "Traceback" not in done.stderr

"""Sweeps on Hydra's own launchers: jobs in other processes, whose errors come home."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys

import psutil
import pytest

from gbactl.tracking.mlflow_store import NOTE, PARENT, connect
from tests.support.processes import SMALL, Launcher
from tests.support.slow import slow

# what is typed for each; submitit has a launcher for this machine alone, with the same pickling as Slurm's
SIDE_BY_SIDE = {
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "submitit": ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=3", "hydra.launcher.cpus_per_task=1"),
}
LAUNCHERS = [slow("joblib"), slow("submitit")]


def sweep(launcher: Launcher, extra: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Two jobs side by side."""
    pytest.importorskip(f"hydra_plugins.hydra_{extra}_launcher", reason=f"the extra gbactl[{extra}] is not installed")
    asked = (*SMALL, *SIDE_BY_SIDE[extra], *overrides)
    return subprocess.run(
        [sys.executable, "-m", "gbactl", "train", "-m", *asked],
        cwd=launcher.cwd, env=launcher.environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.beside
@pytest.mark.parametrize("extra", LAUNCHERS)
def test_jobs_of_a_sweep_run_side_by_side(launcher: Launcher, extra: str) -> None:
    uri = f"sqlite:///{launcher.cwd}/mlflow.db"
    done = sweep(launcher, extra, "mode=async", "seed=1,2", f"tracking.uri={uri}")
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in launcher.cwd.glob("runs/*/result.json")]
    assert sorted(result["seed"] for result in results) == [1, 2]
    assert all(result["status"] == "FINISHED" for result in results)
    client = connect(uri)
    parents = {client.get_run(result["run_id"]).data.tags[PARENT] for result in results}
    [parent] = [client.get_run(run_id) for run_id in parents]
    assert parent.info.status == "FINISHED" and "| async | 2 |" in parent.data.tags[NOTE]


@pytest.mark.beside
def test_a_signal_stops_a_whole_sweep(launcher: Launcher) -> None:
    """Its run is saved, and no other one begins."""
    runs = launcher.cwd / "sweep"
    virtual = ("cluster=virtual", "cluster.workers=2", "data.rows_per_day=100000")
    keys = [key for key in SMALL if key not in ("cluster.threads=1", "cluster.workers=2")]
    launched = launcher.start("seed=1,2", *keys, *virtual, f"run_dir={runs}/${{seed}}", "-m", small=False)
    launched.run_dir = runs / "1"
    launched.training()
    launched.process.send_signal(signal.SIGTERM)
    done = launched.finish(60)
    assert done.code == 143 and "Traceback" not in done.err
    assert done.result["stopped"]["state"] == "saved"
    *_, how, last = done.err.splitlines()
    assert last == f"gbactl: stopped; {done.result['stopped']['told']}."
    assert how.startswith("0 of 2 runs have finished. Go on with: gbactl train ") and how.endswith(" -m")
    assert [path.name for path in runs.iterdir()] == ["1"]


@pytest.mark.beside
@pytest.mark.slow
def test_a_signal_to_a_sweep_side_by_side_ends_its_jobs(launcher: Launcher) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the extra gbactl[joblib] is not installed")
    runs = launcher.cwd / "sweep"
    sizes = ("data.rows_per_day=100000", f"run_dir={runs}/${{seed}}")
    launched = launcher.start("seed=1,2", *SMALL, *SIDE_BY_SIDE["joblib"], *sizes, "-m", small=False)
    launched.run_dir = runs / "1"
    launched.training()
    family = psutil.Process(launched.process.pid).children(recursive=True)
    launched.process.send_signal(signal.SIGTERM)
    done = launched.finish(60)
    assert done.code == 143 and "Traceback" not in done.err
    *_, how, last = done.err.splitlines()
    assert how.startswith("Go on with: gbactl train ") and last == "gbactl: stopped."
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive, [process.cmdline() for process in alive]


@pytest.mark.beside
@pytest.mark.slow
def test_a_sweep_goes_on_where_ctrl_c_stopped_it(launcher: Launcher) -> None:
    keys = [key for key in SMALL if key not in ("cluster.threads=1", "cluster.workers=2")]
    virtual = ("cluster=virtual", "cluster.workers=2", "data.rows_per_day=30000")
    launched = launcher.start("seed=1,2,3", *keys, *virtual, "run_dir=runs/s${seed}", "-m", small=False)
    launched.run_dir = launcher.cwd / "runs/s2"
    launched.training()
    launched.process.send_signal(signal.SIGINT)
    done = launched.finish(60)
    told = re.search(r"1 of 3 runs have finished\. Go on with: gbactl (train .*)", done.err)
    assert done.code == 130 and told, done.err
    assert not (launcher.cwd / "runs/s3").exists()
    first = (launcher.cwd / "runs/s1/result.json").stat().st_mtime_ns
    again = launcher.gbactl(*shlex.split(told[1]))
    assert again.returncode == 0, again.stderr
    found = [json.loads((launcher.cwd / f"runs/s{seed}/result.json").read_text()) for seed in (1, 2, 3)]
    assert [each["status"] for each in found] == ["FINISHED"] * 3 and [each["seed"] for each in found] == [1, 2, 3]
    assert (launcher.cwd / "runs/s1/result.json").stat().st_mtime_ns == first, "it is not trained twice"


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("extra", LAUNCHERS)
def test_an_error_of_a_job_is_that_of_the_sweep(launcher: Launcher, extra: str) -> None:
    done = sweep(launcher, extra, "mode=async", "model.dropout=0.0,2.0", "tracking.enabled=false")
    assert done.returncode == 2
    told = "model.dropout=2.0 is not a number of at least 0 and below 1; type for instance model.dropout=0.0."
    assert f"gbactl: {told}" in done.stderr
    assert "Traceback" not in done.stderr

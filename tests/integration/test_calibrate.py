"""`gbactl calibrate` as a user types it: real runs, a file, and a virtual run with it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import commands
from tests.support.processes import children_of, collective, environment, wait_for
from tests.support.typed import Typist

SMALL = (
    "data.fields=4", "data.numeric=3", "data.max_cardinality=300", "model.dim=4", "model.hidden=[32]",
    "train.global_batch=1024", "cluster.servers=1", f"collective={collective()}",
)  # fmt: skip


def start(folder: Path, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gbactl", *arguments], cwd=folder, env=environment(cache), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for pid in [*children_of(process.pid), process.pid]:
            os.kill(pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


@pytest.mark.slow
def test_a_machine_is_measured_and_its_model_used(tmp_path: Path) -> None:
    [typed] = commands("docs/how-to/size-a-cluster.md", "calibration")
    calibrate = (*shlex.split(typed)[1:], "--seconds", "2", *SMALL, "--json")
    process = start(tmp_path, tmp_path / "cache", *calibrate)
    code, out, err = finish(process, 280)
    if code == 1:  # a busy machine may defeat it, and then it says so
        assert "The fit is too inexact" in err
        pytest.skip("the machine is too busy to be measured")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["file"] == "mine.yaml"
    kinds = {(run["mode"], run["workers"]) for run in told["runs"]}
    assert kinds == {(mode, workers) for mode in ("sync", "async", "gba") for workers in (2, 4)}
    assert all(0.5 <= run["predicted"] / run["measured"] <= 1.5 for run in told["runs"])
    assert "run 6 of 6" in err and "measured" in err and "error" in err
    assert not children_of(process.pid) and not list(tmp_path.glob("runs/*"))
    virtual = ("cluster=virtual", "cost=mine.yaml", "mode=gba", "data.days=2", "data.rows_per_day=8000")
    used = ("train", *SMALL, *virtual, "cluster.workers=8", "tracking.enabled=false", "run_dir=virtual", "--json")
    code, out, err = finish(start(tmp_path, tmp_path / "cache", *used), 120)
    assert code == 0, err
    assert "virtual cluster (mine)" in err and json.loads(out.splitlines()[-1])["clock"] == "virtual"


@pytest.mark.beside
@pytest.mark.slow
def test_ctrl_c_leaves_nothing_running_and_writes_no_file(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "cache", "calibrate", "--seconds", "2", *SMALL)
    wait_for(lambda: process.poll() is not None or children_of(process.pid))
    os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process, 60)
    assert code == 130 and "Traceback" not in err
    assert not children_of(process.pid) and not (tmp_path / "calibrated.yaml").exists()


@pytest.mark.beside
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--workers", "two"), 2, "type --workers 2,4"),
        (("--out", "a.txt"), 2, "type --out a.txt.yaml"),
        (("mode.local_batch=many",), 2, "mode.local_batch='many' is not"),
        (("model=nosuch",), 2, "Could not find 'model/nosuch'"),
    ],
)
def test_mistakes_are_told_at_once(typed: Typist, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = typed("calibrate", *arguments)
    assert (done.code, done.out) == (code, "") and message in done.err and "Traceback" not in done.err

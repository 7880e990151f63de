"""`gbactl advise` as a user types it: simulations in processes, an answer, MLflow runs, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gbactl.tracking.mlflow_store import connect, tracking_uri
from tests.support.commands import run
from tests.support.metric_groups import is_grouped
from tests.support.processes import environment, wait_for
from tests.support.typed import Typist

SMALL = (
    "data.days=4", "data.rows_per_day=2000", "data.fields=4", "data.numeric=3", "data.max_cardinality=300",
    "model.dim=4", "model.hidden=[32]", "train.global_batch=128", "cluster.workers=4", "faults=one_slow",
)  # fmt: skip
FEW = ("--modes", "gba", "--seeds", "2", "--samples", "1200", "--jobs", "2")


def pools(parent: int) -> list[int]:
    """Pids of the processes that a command has for its simulations."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            started = b"spawn_main" in (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if started and int(fields[1]) == parent and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.beside
def test_it_names_a_mode_and_logs_its_simulations(tmp_path: Path, shared_cache: Path) -> None:
    done = run("advise", *SMALL, *FEW, "--format", "json", cwd=tmp_path, environment=environment(shared_cache))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {each["mode"] for each in told["modes"]} == {"sync", "gba"} and told["mode"] in ("sync", "gba")
    assert all(each["seeds"] == [0, 1] and each["eps"] > 0 for each in told["modes"])
    gba = next(each for each in told["modes"] if each["mode"] == "gba")
    assert gba["eps_ratio"] > 1.5, "one of four workers is four times slower"
    assert told["sentence"].startswith(f"{'Stay with' if told['mode'] == 'sync' else 'Run'} {told['mode']} with 4 ")
    assert told["sample"] == {"base": 3968, "trained": 1024, "judged": 1024, "timed": 1920}
    assert "probing" in done.stderr and "2 modes, 3,968 samples of sync, then 1,024 in each mode" in done.stderr
    folder = Path(told["run_dir"])
    assert json.loads((folder / "advice.json").read_text()) == told
    assert sorted(path.name for path in folder.glob("*-s*")) == ["gba-s0", "gba-s1", "sync-s0", "sync-s1"]
    client = connect(tracking_uri(uri=f"sqlite:///{tmp_path / 'mlflow.db'}"))
    [experiment] = [each for each in client.search_experiments() if each.name == "advise"]
    runs = client.search_runs([experiment.experiment_id])
    children = [each for each in runs if each.data.tags.get("mlflow.parentRunId") == told["run_id"]]
    assert len(runs) == 5 and len(children) == 4 and {each.info.status for each in runs} == {"FINISHED"}
    parent = client.get_run(told["run_id"])
    assert parent.data.tags["gbactl.advice"] == told["sentence"] and "advise/eps_ratio gba" in parent.data.metrics
    assert all("auc" in each.data.metrics and "advise/predicted_eps" in each.data.metrics for each in children)
    assert all(is_grouped(name) for each in (parent, *children) for name in each.data.metrics)
    cells = {each.data.tags["gbactl.cell"] for each in children}
    assert len(cells) == 4 and len({cell.partition("-")[2] for cell in cells}) == 1, "one subset, one code version"


@pytest.mark.beside
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, shared_cache: Path) -> None:
    command = [sys.executable, "-m", "gbactl", "advise", *SMALL, "tracking.enabled=false"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(shared_cache), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    started = wait_for(lambda: process.poll() is not None or pools(process.pid))
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    assert "there is no advice yet" in err
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.beside
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--modes", "gbaa"), 2, "--modes gbaa is not known; type some of:"),
        (("resume=runs/a",), 2, "runs/a"),
        (("switch=auto",), 2, "leave resume= and switch= out"),
        (("faults=hog",), 2, "type cluster=local, or faults.plans with another kind"),
        (("cost=nosuch.yaml",), 2, "nosuch.yaml cannot be read"),
        (("--minutes", "0"), 2, "--minutes"),
        (("data.days=2", "data.rows_per_day=1000"), 2, "type a smaller train.global_batch"),
    ],
)
def test_mistakes_are_told_at_once(typed: Typist, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = typed("advise", "tracking.enabled=false", *arguments)
    assert (done.code, done.out) == (code, "") and message in done.err and "Traceback" not in done.err

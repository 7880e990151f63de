"""Killed, interrupted, hung: the run ends soon, says who it was, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.coordinator import event_log
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.run_dir import REACHED, end_orphans
from gbactl.tracking.delivery import FILE_NAME, Backlog
from gbactl.tracking.mlflow_store import connect, experiment_id
from tests.support.processes import (
    FORK_SERVER,
    SMALL,
    Finished,
    Launched,
    Launcher,
    alive,
    children_of,
    collective,
    wait_for,
)
from tests.support.slow import slow

SECONDS = 20.0  # the rule is 10; this machine may be busy with other things
LONG = ("data.rows_per_day=60000", "model.hidden=[512,512,512]", "train.global_batch=64")  # a minute and more


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking store made once: making one takes seconds."""
    from gbactl.tracking.mlflow_store import ensure_store

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    ensure_store(f"sqlite:///{path}")
    return path


def tracked_status(store: Path, run_id: str) -> Any:
    with sqlite3.connect(store) as connection:
        return connection.execute("select status from runs where run_uuid = ?", (run_id,)).fetchone()[0]


def ends_after(launched: Launched, act: Callable[[], None]) -> Finished:
    """Do it; the launcher and all its nodes are gone in time."""
    launched.nodes()
    began = time.monotonic()
    act()
    done = launched.finish(SECONDS)
    assert time.monotonic() - began < SECONDS
    assert launched.left_behind() == []
    assert "Traceback" not in done.err
    return done


@pytest.mark.beside
@pytest.mark.parametrize(
    ("mode", "victim"), [slow("gba", "W1"), slow("gba", "S0"), slow("async", "C"), ("sync", "W1"), slow("sync", "S1")]
)
def test_a_killed_process_ends_the_run_and_is_named(launcher: Launcher, store: Path, mode: str, victim: str) -> None:
    launched = launcher.start(
        *LONG, f"mode={mode}", f"collective={collective()}", "cluster.lost_worker=end",
        "cluster.lost_coordinator=end", f"tracking.uri=sqlite:///{store}", tracking=True,
    )  # fmt: skip
    launched.training()
    pid = launched.node(victim)
    done = ends_after(launched, lambda: os.kill(pid, signal.SIGKILL))
    assert done.code == 1
    assert done.out == ""
    told = [line for line in done.err.splitlines() if line.startswith("gbactl: ")]
    assert told == [f"gbactl: {victim} (pid {pid}) was killed by SIGKILL. Logs: {done.run_dir / 'logs'}"]
    result = done.result
    assert (result["status"], result["mode"]) == ("FAILED", mode)
    assert f"{victim} (pid {pid}) was killed" in result["error"]
    assert tracked_status(store, result["run_id"]) == "FAILED"
    assert any(isinstance(record, event_log.OrderRecord) for record in journal(done.run_dir))


@pytest.mark.beside
@pytest.mark.parametrize(("mode", "workers"), [("sync", 1), slow("gba", 1)])
def test_where_nobody_can_take_over_a_lost_worker_ends_the_run(launcher: Launcher, mode: str, workers: int) -> None:
    options = (f"mode={mode}", f"cluster.workers={workers}", "cluster.lost_worker=continue")
    launched = launcher.start(*LONG, *options, f"collective={collective()}")
    launched.training()
    pid = launched.node("W0")
    done = ends_after(launched, lambda: os.kill(pid, signal.SIGKILL))
    assert done.code == 1 and f"gbactl: W0 (pid {pid}) was killed by SIGKILL" in done.err


def journal(run_dir: Path) -> list[Any]:
    """What was logged stays: every record up to where the writer died."""
    found = []
    try:
        for record in event_log.read(run_dir / "events.log"):
            found.append(record)
    except event_log.EventLogError as error:
        assert "cut off" in str(error)
    return found


@pytest.mark.beside
@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM), slow(signal.SIGHUP)])
def test_an_interrupted_run_is_saved_and_marked_as_killed(launcher: Launcher, store: Path, number: int) -> None:
    launched = launcher.start(*LONG, "mode=gba", f"tracking.uri=sqlite:///{store}", tracking=True)
    launched.training()
    done = ends_after(launched, lambda: launched.process.send_signal(number))
    assert done.code == 128 + number
    stopped, saved = done.result["stopped"], CheckpointFolder(done.run_dir / "checkpoints").newest().last
    assert (stopped["state"], stopped["name"], stopped["step"]) == ("saved", saved.name, saved.step)
    assert stopped["signal"] == signal.Signals(number).name
    assert "stopping: saving where the run stands (up to 30 s; Ctrl-C again ends at once)" in done.err
    assert done.err.splitlines()[-1] == f"gbactl: stopped; {stopped['told']}."
    assert f"step {saved.step} is saved in {done.run_dir}/checkpoints/{saved.name} (" in stopped["told"]
    assert stopped["told"].endswith(f"; go on with 'gbactl train resume={done.run_dir}'")
    assert done.out == ""
    assert done.result["status"] == "KILLED"
    assert tracked_status(store, done.result["run_id"]) == "KILLED"


@pytest.mark.beside
@pytest.mark.parametrize(
    ("again", "seconds", "why"),
    [(True, 30, "a second signal came"), slow(False, 1, "it took longer than cluster.stop_seconds=1")],
)
def test_a_run_that_cannot_be_saved_ends_all_the_same(launcher: Launcher, again: bool, seconds: int, why: str) -> None:
    """A server stands still: at the second signal, or when the time is over."""
    launched = launcher.start(*LONG, "mode=gba", f"cluster.stop_seconds={seconds}", "cluster.hang_seconds=60")
    launched.training()
    os.kill(launched.node("S0"), signal.SIGSTOP)

    def stop() -> None:
        launched.process.send_signal(signal.SIGTERM)
        if again:
            time.sleep(1.0)
            assert launched.process.poll() is None
            launched.process.send_signal(signal.SIGINT)

    done = ends_after(launched, stop)
    assert done.code == 143
    assert done.err.splitlines()[-1] == f"gbactl: stopped; where it stood is not saved ({why})."
    assert done.result["status"] == "KILLED"


@pytest.mark.beside
def test_a_terminal_that_is_closed_stops_and_saves_a_run(launcher: Launcher) -> None:
    """What it would say there is said to nobody."""
    ours, theirs = pty.openpty()

    def at_the_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    run_dir = launcher.cwd / "runs" / "0"
    process = subprocess.Popen(
        [sys.executable, "-m", "gbactl", "train", *SMALL, *LONG, "mode=gba", f"run_dir={run_dir}",
         "tracking.enabled=false"],
        cwd=launcher.cwd, env=launcher.environment, start_new_session=True, preexec_fn=at_the_terminal,
        stdin=theirs, stdout=theirs, stderr=theirs, text=True,
    )  # fmt: skip
    os.close(theirs)
    launched = Launched(process, run_dir)
    launcher.started.append(launched)
    log = run_dir / "events.log"
    wait_for(lambda: os.read(ours, 1024) and log.exists() and log.stat().st_size > 4000)
    launched.nodes()
    os.close(ours)
    assert process.wait(SECONDS) == 129
    assert launched.left_behind() == []
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["stopped"]["state"], result["stopped"]["signal"]) == ("KILLED", "saved", "SIGHUP")


@pytest.mark.beside
def test_when_the_launcher_is_killed_its_nodes_vanish_and_who_looks_ends_its_run(
    launcher: Launcher, store: Path
) -> None:
    launched = launcher.start(*LONG, "mode=gba", f"tracking.uri=sqlite:///{store}", tracking=True)
    launched.training()
    pids = launched.nodes()
    assert len(pids) == 5
    pids += children_of(launched.process.pid, FORK_SERVER)
    assert len(pids) == 6

    def stored() -> list[tuple[str]]:
        with sqlite3.connect(store) as connection:
            query = "select run_uuid from tags where value = ?"
            return connection.execute(query, (str(launched.run_dir),)).fetchall()

    wait_for(stored, SECONDS)  # the store is told in the background, and training may begin before
    launched.process.kill()
    launched.process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in pids), SECONDS)
    assert launched.left_behind() == []
    [(run_id,)] = stored()
    assert tracked_status(store, run_id) == "RUNNING"
    launcher.gbactl("report", "--uri", f"sqlite:///{store}")
    assert tracked_status(store, run_id) == "KILLED"
    result = json.loads((launched.run_dir / "result.json").read_text())
    assert (result["status"], result["run_id"], result["mode"]) == ("KILLED", run_id, "gba")


@pytest.mark.beside
def test_a_run_that_nobody_holds_is_ended_with_what_it_had_reached(store: Path, tmp_path: Path) -> None:
    """Not one that goes on, one of another machine, or one of another program."""
    end_orphans(f"sqlite:///{tmp_path}/nosuch.db")
    uri = f"sqlite:///{store}"
    client = connect(uri)
    experiment = experiment_id(client, "orphans", uri)

    def begin(name: str, run_dir: Path | None) -> str:
        tags = {} if run_dir is None else {"gbactl.run_dir": str(run_dir), "gbactl.mode": "gba"}
        run_id = str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)
        client.log_param(run_id, "seed", 7)
        client.log_metric(run_id, "samples", 1234.0, step=1234)
        client.log_metric(run_id, "loss", 0.25, step=1234)
        if run_dir is not None:
            run_dir.mkdir(exist_ok=True)
        return run_id

    killed, resent, held = (begin(name, tmp_path / name) for name in ("killed", "resent", "held"))
    finished, others, gone = (begin(name, tmp_path / name) for name in ("finished", "others", "gone"))
    foreign = begin("foreign", None)
    (tmp_path / "finished" / "result.json").write_text(json.dumps({"run_id": finished, "status": "FINISHED"}))
    (tmp_path / "others" / "result.json").write_text(json.dumps({"run_id": "that of another", "status": "FINISHED"}))
    (tmp_path / "gone").rmdir()
    backlog = Backlog(tmp_path / "resent")
    run = {"kind": "run", "local_id": "a", "experiment": "orphans", "run_name": "resent", "start_ms": 1, "params": {},
           "tags": {}, "uri": uri}  # fmt: skip
    backlog.append([run, {"kind": "metrics", "rows": [["samples", 2000.0, 5, 2000]]}])
    backlog.opened(resent)
    with run_dirs.lock(tmp_path / "held"):
        end_orphans(uri)
    status = {run_id: client.get_run(run_id).info.status for run_id in (killed, resent, finished, held, others)}
    assert status == {
        killed: "KILLED", resent: "KILLED", finished: "FINISHED", held: "RUNNING", others: "RUNNING",
    }  # fmt: skip
    assert {client.get_run(run_id).info.status for run_id in (gone, foreign)} == {"RUNNING"}
    assert client.get_run(killed).data.tags[REACHED] == "1,234 samples, loss 0.25"
    assert client.get_run(resent).data.tags[REACHED] == "2,000 samples, loss 0.25"
    assert client.get_run(resent).info.end_time == 5 and not (tmp_path / "resent" / FILE_NAME).exists()
    told = json.loads((tmp_path / "killed" / "result.json").read_text())
    assert (told["status"], told["run_id"], told["mode"], told["seed"]) == ("KILLED", killed, "gba", 7)
    assert told["reached"] == {"samples": 1234.0, "loss": 0.25}
    assert json.loads((tmp_path / "finished" / "result.json").read_text())["status"] == "FINISHED"
    end_orphans(uri)
    assert client.get_run(held).info.status == "KILLED"


@pytest.mark.beside
@pytest.mark.parametrize("victim", ["W0", "S1", "C"])
def test_a_process_killed_while_the_run_comes_up(launcher: Launcher, victim: str) -> None:
    launched = launcher.start(*LONG, "mode=gba")
    pid = launched.node(victim)
    done = ends_after(launched, lambda: os.kill(pid, signal.SIGKILL))
    assert done.code == 1
    assert f"gbactl: {victim} (pid {pid}) was killed by SIGKILL." in done.err
    assert done.result["status"] == "FAILED"


@pytest.mark.beside
def test_ctrl_c_before_the_first_step(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=sync", "collective=gloo")
    wait_for(lambda: len(children_of(launched.process.pid)) >= 2)
    done = ends_after(launched, lambda: launched.process.send_signal(signal.SIGINT))
    assert done.code == 130
    assert done.err.splitlines()[-1] == "gbactl: stopped; nothing had been trained yet."
    assert "  starting 2 workers, 2 servers\n" in done.err


@pytest.mark.slow
def test_a_node_that_does_not_come_up_is_named(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", "cluster.start_timeout=5")
    pid = launched.node("S1")
    os.kill(pid, signal.SIGSTOP)
    try:
        done = launched.finish(60)
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGCONT)
    assert done.code == 1
    assert "did not come up within 5 s; look into their logs, or type cluster.start_timeout=10." in done.err
    assert "S1" in done.err.split("did not come up")[0]


@pytest.mark.beside
def test_a_worker_that_fails_tells_its_own_reason(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Trap:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gbactl.models.gradient_computer':\n"
        "            raise RuntimeError('the sky is falling')\n"
        "sys.meta_path.insert(0, Trap())\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), launcher.environment["PYTHONPATH"]])
    done = launcher.start(
        "mode=gba", "cluster.workers=1", "cluster.servers=1", "mode.local_batch=64", PYTHONPATH=path
    ).finish()
    assert done.code == 1
    [sentence] = [line for line in done.err.splitlines() if line.startswith("gbactl: ")]
    assert sentence.startswith("gbactl: W") and "the sky is falling" in sentence

"""Killed, interrupted, hung: the run ends soon, says who it was, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.cluster import eventlog
from tests.support.processes import FORK_SERVER, Finished, Launched, Launcher, alive, children_of, collective, wait_for
from tests.support.slow import slow

SECONDS = 20.0  # the rule is 10; this machine may be busy with other things
LONG = ("data.rows_per_day=60000", "model.hidden=[512,512,512]", "train.global_batch=64")  # a minute and more


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking store made once: making one takes seconds."""
    from gbactl.tracking.store import ensure_store

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
    assert any(isinstance(record, eventlog.OrderRecord) for record in journal(done.run_dir))


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
        for record in eventlog.read(run_dir / "events.log"):
            found.append(record)
    except eventlog.EventLogError as error:
        assert "cut off" in str(error)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_an_interrupted_run_is_marked_as_killed(launcher: Launcher, store: Path, number: int) -> None:
    launched = launcher.start(*LONG, "mode=gba", f"tracking.uri=sqlite:///{store}", tracking=True)
    launched.training()
    done = ends_after(launched, lambda: launched.process.send_signal(number))
    assert done.code == 130
    assert done.err.splitlines()[-1].startswith("gbactl: stopped")
    assert done.out == ""
    assert done.result["status"] == "KILLED"
    assert tracked_status(store, done.result["run_id"]) == "KILLED"


def test_when_the_launcher_is_killed_its_nodes_vanish(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=gba")
    launched.training()
    pids = launched.nodes()
    assert len(pids) == 5
    pids += children_of(launched.process.pid, FORK_SERVER)
    assert len(pids) == 6
    launched.process.kill()
    launched.process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in pids), SECONDS)
    assert launched.left_behind() == []


@pytest.mark.parametrize("victim", ["W0", "S1", "C"])
def test_a_process_killed_while_the_run_comes_up(launcher: Launcher, victim: str) -> None:
    launched = launcher.start(*LONG, "mode=gba")
    pid = launched.node(victim)
    done = ends_after(launched, lambda: os.kill(pid, signal.SIGKILL))
    assert done.code == 1
    assert f"gbactl: {victim} (pid {pid}) was killed by SIGKILL." in done.err
    assert done.result["status"] == "FAILED"


def test_ctrl_c_before_the_first_step(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=sync", "collective=gloo")
    wait_for(lambda: len(children_of(launched.process.pid)) >= 2)
    done = ends_after(launched, lambda: launched.process.send_signal(signal.SIGINT))
    assert done.code == 130
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


def test_a_worker_that_fails_tells_its_own_reason(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Trap:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gbactl.models.compute':\n"
        "            raise RuntimeError('the sky is falling')\n"
        "sys.meta_path.insert(0, Trap())\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), launcher.environment["PYTHONPATH"]])
    done = launcher.start("mode=gba", PYTHONPATH=path).finish()
    assert done.code == 1
    [sentence] = [line for line in done.err.splitlines() if line.startswith("gbactl: ")]
    assert sentence.startswith("gbactl: W") and "the sky is falling" in sentence

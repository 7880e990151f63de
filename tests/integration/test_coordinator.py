"""The coordinator killed with -9 on real processes: another one goes on from its journal; nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.support.processes import Finished, Launched, Launcher, alive, wait_for

SMALL = ("cluster.servers=2", "cluster.workers=4", "mode.local_batch=64", "train.eval_batch=512")


def check(launched: Launched, samples: int, deaths: int = 1) -> Finished:
    """It ended well, counted every sample once, and left nothing."""
    done = launched.finish().accounted(samples)
    mine = [failed for failed in done.result["recovery"] if failed["process"] == "C"]
    assert len(mine) == deaths and all(failed["samples_undone"] == 0 for failed in mine)
    assert all(0.0 <= failed["detected_s"] < 2.0 and failed["detected_s"] < failed["loaded_s"] for failed in mine)
    assert done.err.count("C is gone; another one goes on from its journal.") == deaths
    assert done.err.count("C is back.") == deaths
    assert launched.left_behind() == []
    return done


@pytest.mark.slow
def test_the_plan_kills_it_and_both_lives_replay_as_one(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", *SMALL, "data.rows_per_day=24000", "faults=kill_coordinator")
    done = check(launched, 24_000)
    [failed] = done.result["recovery"]
    assert failed["failure"] == "kill" and failed["loaded_s"] <= failed["useful_s"]
    [injected] = json.loads((done.run_dir / "faults.json").read_text())["injected"]
    assert (injected["process"], injected["done"]) == ("C", True) and not alive(injected["pid"])
    verdict = launcher.replayed(done.run_dir)
    assert verdict["identical"] and verdict["steps"] == done.result["global_step"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [("mode=async",), ("mode=hop_bw", "mode.backup=1")])
def test_it_is_killed_twice_and_a_worker_between(launcher: Launcher, mode: tuple[str, ...]) -> None:
    launched = launcher.start(*mode, *SMALL, "data.rows_per_day=90000", "model.hidden=[128,128]")
    launched.training()
    os.kill(launched.node("C"), signal.SIGKILL)
    back = wait_for(lambda: re.search(r"goes on at step (\d+)", _log(launched, "C-1")))
    assert int(back[1]) > 0
    os.kill(launched.node("W2"), signal.SIGKILL)
    wait_for(lambda: launched.run_dir.joinpath("logs/W2-1.log").exists())
    os.kill(launched.node("C-1"), signal.SIGKILL)
    done = check(launched, 90_000, deaths=2)
    assert {"C", "W2"} == {failed["process"] for failed in done.result["recovery"]}
    assert launcher.replayed(done.run_dir)["identical"]


def _log(launched: Launched, name: str) -> str:
    path = launched.run_dir / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_it_is_killed_while_it_evaluates(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", *SMALL, "data.rows_per_day=6000", "train.eval_batch=4", "model.hidden=[256]")
    journal = launched.run_dir / "coordinator.json"
    wait_for(lambda: journal.exists() and json.loads(journal.read_text())["standstill"]["stage"] == "evaluate")
    os.kill(launched.node("C"), signal.SIGKILL)
    done = check(launched, 6_000)
    assert done.result["auc"] > 0.4
    times, computed = done.result["time"], done.result["per_worker"]
    assert {w: times["processes"][w]["batches"] for w in computed} == {w: computed[w]["batches"] for w in computed}
    assert times["since_second"] == 0.0 <= times["first_second"] < done.result["recovery"][0]["at_s"]


@pytest.mark.slow
def test_one_that_is_stopped_is_killed_and_replaced(launcher: Launcher) -> None:
    """The only one that it could wake up to is another coordinator's run."""
    launched = launcher.start("mode=gba", *SMALL, "data.rows_per_day=40000", "cluster.hang_seconds=1.5")
    launched.training()
    coordinator = launched.node("C")
    os.kill(coordinator, signal.SIGSTOP)
    done = check(launched, 40_000)
    assert done.result["recovery"][0]["failure"] == "hang" and not alive(coordinator)


@pytest.mark.slow
def test_it_is_killed_and_then_the_launcher(launcher: Launcher) -> None:
    """While the nodes wait for somebody to answer."""
    launched = launcher.start("mode=gba", *SMALL, "data.rows_per_day=60000", "model.hidden=[512,512]")
    launched.training()
    coordinator = launched.node("C")
    os.kill(launched.process.pid, signal.SIGSTOP)
    os.kill(coordinator, signal.SIGKILL)
    launched.process.kill()
    launched.process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in launched.pids), 20)
    assert launched.left_behind() == []

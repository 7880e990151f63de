"""Trainers as real processes: they train, they part, one is killed, a running job becomes one of theirs and back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.processes import Finished, Launched, Launcher, collective

LONG = ("data.rows_per_day=60000", "model.hidden=[512,512,512]", "train.global_batch=64")  # half a minute and more
SECONDS = 20.0


def adds_up(done: Finished, samples: int) -> None:
    assert done.code == 0, done.err
    counted = done.result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == samples
    assert done.result["refused_frames"] == 0


@pytest.mark.parametrize(
    "options", [("mode=shadow_ma", "mode.hogwild_threads=2"), ("mode=shadow_easgd",), ("mode=fr_bmuf", "mode.k=3")]
)
def test_trainers_train_and_part(launcher: Launcher, options: tuple[str, ...]) -> None:
    done = launcher.start(*options, "mode.local_batch=64", f"collective={collective()}", "cluster.workers=3").finish()
    adds_up(done, 4000)
    told = done.result["replicas"]
    assert told["trainers"] == 3 and told["exchanges"] > 0
    assert (done.result["collective"] is None) == ("mode=shadow_easgd" in options)


def killed(launched: Launched, victim: str) -> tuple[int, float]:
    launched.training()
    pid = launched.node(victim)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return pid, began


def test_a_killed_trainer_ends_a_run_that_meets_in_rounds(launcher: Launcher) -> None:
    launched = launcher.start(
        *LONG, "mode=shadow_ma", "cluster.workers=3", "mode.local_batch=64", "cluster.lost_worker=continue",
        f"collective={collective()}",
    )  # fmt: skip
    pid, began = killed(launched, "W1")
    done = launched.finish(SECONDS)
    assert time.monotonic() - began < SECONDS and launched.left_behind() == []
    assert done.code == 1 and f"gbactl: W1 (pid {pid}) was killed by SIGKILL." in done.err
    assert "Traceback" not in done.err


def test_with_a_centre_the_others_go_on(launcher: Launcher) -> None:
    launched = launcher.start(
        *LONG, "data.rows_per_day=12000", "mode=shadow_easgd", "cluster.workers=3", "mode.local_batch=64",
        "cluster.lost_worker=continue",
    )  # fmt: skip
    killed(launched, "W1")
    done = launched.finish()
    adds_up(done, 12000)
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W1"]


@pytest.mark.slow
def test_a_running_job_becomes_elastic_and_goes_back(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=gba", "mode.local_batch=64")
    launched.training()
    states = []
    for mode, more in (("shadow_easgd", ("--set", "shadow_interval=0.01")), ("gba", ())):
        asked = subprocess.run(
            [sys.executable, "-m", "gbactl", "switch", "--run", str(launched.run_dir), "--to", mode, "--set",
             "local_batch=64", *more, "--wait"],
            cwd=launcher.cwd, env=launcher.environment, text=True, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        states.append(json.loads(asked.stdout.splitlines()[-1])["state"])
    done = launched.finish()
    adds_up(done, 60000)
    assert states == ["done", "done"]
    assert [phase["mode"] for phase in done.result["phases"]] == ["gba", "shadow_easgd", "gba"]
    assert [("replicas" in phase) for phase in done.result["phases"]] == [False, True, False]

"""Trainers as real processes: they train, they part, one is killed, a running job becomes one of theirs and back."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.support.processes import Finished, Launched, Launcher, collective
from tests.support.slow import slow

LONG = ("data.rows_per_day=60000", "model.hidden=[512,512,512]", "train.global_batch=64")  # half a minute and more
SECONDS = 20.0


def adds_up(done: Finished, samples: int) -> None:
    assert done.accounted(samples).result["refused_frames"] == 0


@pytest.mark.beside
@pytest.mark.parametrize(
    "options",
    [("mode=shadow_ma", "mode.hogwild_threads=2"), slow(("mode=shadow_easgd",)), slow(("mode=fr_bmuf", "mode.k=3"))],
)
def test_trainers_train_and_part(launcher: Launcher, options: tuple[str, ...]) -> None:
    done = launcher.start(*options, "mode.local_batch=64", f"collective={collective()}", "cluster.workers=3").finish()
    adds_up(done, 4000)
    told = done.result["replicas"]
    assert told["trainers"] == 3 and told["exchanges"] > 0
    assert (done.result["collective"] is None) == ("mode=shadow_easgd" in options)
    if done.result["collective"] is not None:
        assert done.result["wire"]["bytes"]["dense"] >= told["bytes_exchanged"]


def hurt(launched: Launched, victim: str, kind: signal.Signals = signal.SIGKILL) -> tuple[int, float]:
    launched.training()
    pid = launched.node(victim)
    began = time.monotonic()
    os.kill(pid, kind)
    return pid, began


@pytest.mark.beside
@pytest.mark.slow
def test_a_killed_trainer_ends_a_run_that_wants_it_so(launcher: Launcher) -> None:
    launched = launcher.start(
        *LONG, "mode=shadow_ma", "cluster.workers=3", "mode.local_batch=64", "cluster.lost_worker=end",
        f"collective={collective()}",
    )  # fmt: skip
    pid, began = hurt(launched, "W1")
    done = launched.finish(SECONDS)
    assert time.monotonic() - began < SECONDS and launched.left_behind() == []
    assert done.code == 1 and f"gbactl: W1 (pid {pid}) was killed by SIGKILL." in done.err
    assert "Traceback" not in done.err


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("options", [("mode=shadow_easgd",), ("mode=shadow_ma",), ("mode=fr_bmuf", "mode.k=3")])
def test_without_a_killed_trainer_the_others_go_on(launcher: Launcher, options: tuple[str, ...]) -> None:
    launched = launcher.start(
        *LONG, "data.rows_per_day=12000", *options, "cluster.workers=3", "mode.local_batch=64",
        "cluster.lost_worker=continue", f"collective={collective()}",
    )  # fmt: skip
    hurt(launched, "W1")
    done = launched.finish()
    adds_up(done, 12000)
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W1"]
    assert done.result["samples"]["trained"] == 12000 and launched.left_behind() == []


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "own"), [("shadow_easgd", "hogwild_threads=2"), ("fr_ma", "k=3")])
def test_a_server_and_the_coordinator_are_killed_and_training_goes_on(launcher: Launcher, mode: str, own: str) -> None:
    plans = "{kind: kill, servers: [0], step: 20}, {kind: kill, coordinator: true, step: 110}"
    launched = launcher.start(
        "data.rows_per_day=12000", f"mode={mode}", f"mode.{own}", "cluster.workers=3", "mode.local_batch=64",
        "checkpoint=cpr", "checkpoint.interval_steps=10", "collective=shm", f"faults.plans=[{plans}]",
    )  # fmt: skip
    done = launched.finish()
    adds_up(done, 12000)
    result = done.result
    assert [(failed["process"], failed["failure"]) for failed in result["recovery"]] == [("S0", "kill"), ("C", "kill")]
    lost = result["recovery"][0]
    assert lost["samples_undone"] > 0 and lost["pls"] == pytest.approx(lost["samples_undone"] / (2 * 12000))
    assert all(0.0 < each["detected_s"] < each["loaded_s"] for each in result["recovery"])
    assert result["samples"]["trained"] == 12000 and result["checkpoint"]["saved"] > 0
    assert result["checksums"]["model"] and launched.left_behind() == []
    assert "C is gone; another one goes on" in done.err and "S0 is back as it was at" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_another_trainer_takes_the_place_of_one_that_died_or_hangs(launcher: Launcher, kind: signal.Signals) -> None:
    launched = launcher.start(
        *LONG, "mode=fr_ma", "mode.k=5", "cluster.workers=3", "mode.local_batch=64", "cluster.hang_seconds=3",
        f"collective={collective()}",
    )  # fmt: skip
    hurt(launched, "W1", kind)
    done = launched.finish()
    adds_up(done, 60000)
    [failed] = done.result["recovery"]
    assert failed["process"] == "W1" and failed["useful_s"] is not None and launched.left_behind() == []


@pytest.mark.beside
@pytest.mark.slow
def test_a_running_job_becomes_elastic_and_goes_back(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "data.rows_per_day=30000", "mode=gba", "mode.local_batch=64")
    launched.training()
    states = []
    for mode, more in (("shadow_easgd", ("--set", "shadow_interval=0.01")), ("gba", ())):
        asked = launcher.gbactl(
            "switch", "--run", str(launched.run_dir), "--to", mode, "--set", "local_batch=64", *more, "--wait",
            "--json",
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        states.append(json.loads(asked.stdout.splitlines()[-1])["state"])
    done = launched.finish()
    adds_up(done, 30000)
    assert states == ["done", "done"]
    assert [phase["mode"] for phase in done.result["phases"]] == ["gba", "shadow_easgd", "gba"]
    assert [("replicas" in phase) for phase in done.result["phases"]] == [False, True, False]

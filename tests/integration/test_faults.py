"""Stragglers on real processes: what is injected is what a run shows, and what is written down about it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gbactl.cpu import available_cores
from gbactl.tracking.mlflow_store import NOTE, connect
from tests.support import simulated_runs, small_data
from tests.support.processes import SMALL, Launched, Launcher, alive, children_of, collective, wait_for
from tests.support.typed import Typist

# a model of real size: in batches of 2 ms a worker's own network thread weighs as much as what is stretched
FAULTY = (
    "cluster.workers=4", "train.global_batch=2048", "model.hidden=[400,400,400]", "model.dim=16",
    "data.rows_per_day=120000", "train.max_eval_samples=2000",
)  # fmt: skip
NOISE = 0.4  # a short run on a machine with other work: one that sleeps much is served first when it wakes up
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def hogs_of(launcher: int) -> list[int]:
    """Pids of the busy processes that a launcher started."""
    return children_of(launcher, "gbactl.nodes.child_main\0cpu-hog")


def checked(result: dict[str, Any], worker: str, factor: float, within: float) -> None:
    """What was injected is the plan's, and what was observed agrees with it."""
    found = result["faults"]["workers"][worker]
    assert found["injected"] == pytest.approx(factor)
    assert found["observed"] == pytest.approx(factor, rel=within)
    assert found["error"] == pytest.approx(found["observed"] / found["injected"] - 1.0)


def busy() -> float:
    """The share of the machine's CPU time that others take now, over two seconds."""

    def ticks() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    before = ticks()
    time.sleep(2)
    total, idle = (now - then for now, then in zip(ticks(), before, strict=True))
    return 1.0 - idle / max(1, total)


def quiet() -> bool:
    """Whether this machine has its cores for a run, so that seconds by the clock say something."""
    return busy() < 0.1


@pytest.mark.beside
@pytest.mark.parametrize("cluster", ["local", "virtual"])
def test_what_acted_and_what_never_did_is_told_at_the_end(launcher: Launcher, cluster: str) -> None:
    plans = (
        "{kind: constant, factor: 3, workers: [1]}, {kind: kill, workers: [0], step: 20}, "
        "{kind: window, factor: 4, from: 120, until: 300}"
    )
    done = launcher.start(
        "experiment=smoke", "mode=gba", f"cluster={cluster}", f"faults.plans=[{plans}]", small=False
    ).finish()
    assert done.code == 0, done.err
    slow, killed, never = done.err.splitlines()[-3:]
    assert re.fullmatch(r"  W1 3x slower \d+\.\d-\d+\.\d s", slow), slow
    assert re.fullmatch(r"  W0 killed at \d+\.\d s", killed), killed
    assert never == "  never acted: faults.plans[2] (window from 120 s)"
    faults = done.result["faults"]
    assert [(each["plan"], each["process"]) for each in faults["acted"]] == [(0, "W1"), (1, "W0")]
    assert faults["never"] == [2]


@pytest.mark.slow
@pytest.mark.alone
def test_one_slow_worker_is_observed_to_be_as_slow_as_it_was_made(launcher: Launcher) -> None:
    calm = quiet()
    result = launcher.train(*FAULTY, "mode=async", "faults=one_slow")
    if calm:
        checked(result, "W1", 4.0, NOISE)
    assert list(result["faults"]["workers"]) == ["W1"]
    assert result["faults"]["plans"] == [{"kind": "constant", "factor": 4, "workers": [1]}]
    batches = {name: worker["batches"] for name, worker in result["per_worker"].items()}
    assert 1.3 * batches["W1"] < min(batches[name] for name in ("W0", "W2", "W3"))


def lasts_as_long_as_the_slow_worker_takes(result: dict[str, Any]) -> tuple[float, float]:
    """Everybody has done as much as W1; seconds that W1 and W3 took for it."""
    assert result["faults"]["workers"]["W1"]["injected"] == pytest.approx(4.0)
    batches = [worker["batches"] for worker in result["per_worker"].values()]
    assert max(batches) - min(batches) <= 1
    took = [result["per_worker"][name]["samples"] / result["per_worker"][name]["compute_eps"] for name in ("W1", "W3")]
    assert sum(phase["seconds"] for phase in result["phases"]) > 0.9 * took[0]
    return took[0], took[1]


@pytest.mark.slow
@pytest.mark.alone
def test_in_sync_a_slow_worker_slows_everybody(launcher: Launcher) -> None:
    calm = quiet()
    result = launcher.train(*FAULTY, "mode=sync", f"collective={collective()}", "faults=one_slow")
    slow, quick = lasts_as_long_as_the_slow_worker_takes(result)
    if calm:
        checked(result, "W1", 4.0, NOISE)
        assert 0.9 * slow > 2 * quick


@pytest.mark.beside
def test_in_sync_a_slow_worker_slows_everybody_by_the_clock_of_a_virtual_cluster(tmp_path: Path) -> None:
    cfg = simulated_runs.config("sync", faults=[{"kind": "constant", "factor": 4, "workers": [1]}])
    result = simulated_runs.run(cfg, small_data.prepared(tmp_path / "cache", 6000), tmp_path / "run")
    checked(result, "W1", 4.0, 0.01)
    slow, quick = lasts_as_long_as_the_slow_worker_takes(result)
    assert slow == pytest.approx(4 * quick, rel=0.02)


def test_a_slow_server_is_observed_to_be_slow(launcher: Launcher) -> None:
    found = launcher.train("mode=gba", "data.rows_per_day=24000", "faults=slow_server")["faults"]["servers"]
    assert list(found) == ["S0"] and found["S0"]["injected"] == pytest.approx(3.0, abs=0.01)
    assert found["S0"]["observed"] > 1.1  # of a server that is slower itself while other processes want its core


@pytest.mark.beside
@pytest.mark.slow
def test_a_random_plan_on_every_worker_is_written_down(launcher: Launcher) -> None:
    plans = "faults.plans=[{kind: random, distribution: exponential, mean: 2}]"
    launched = launcher.start("mode=gba", "data.rows_per_day=24000", plans, "faults.seed=5")
    done = launched.finish()
    assert done.code == 0, done.err
    written = json.loads((done.run_dir / "faults.json").read_text())
    told = {"kind": "random", "distribution": "exponential", "mean": 2, "workers": [0, 1]}
    assert written == {"seed": 5, "plans": [told]}
    workers = done.result["faults"]["workers"]
    assert set(workers) == {"W0", "W1"}
    assert all(1.5 < worker["injected"] < 2.6 for worker in workers.values())


def hogged(launcher: Launcher, **more: Any) -> Launched:
    plans = f"faults.plans=[{{kind: hog, cores: [{available_cores()[0]}], processes: 2}}]"
    return launcher.start(*FAULTY, "mode=gba", plans, **more)


@LINUX
@pytest.mark.slow
@pytest.mark.alone
def test_a_hog_runs_beside_the_run_and_is_gone_after_it(launcher: Launcher) -> None:
    launched = hogged(launcher)
    pids = wait_for(lambda: hogs_of(launched.process.pid))
    wait_for(lambda: os.sched_getaffinity(pids[0]) == {available_cores()[0]}, 20)
    done = launched.finish()
    assert done.code == 0, done.err
    assert not hogs_of(launched.process.pid) and not any(alive(pid) for pid in pids)
    assert "W0" in done.result["faults"]["workers"]
    assert all(worker["injected"] is None for worker in done.result["faults"]["workers"].values())


@pytest.mark.beside
@pytest.mark.slow
@LINUX
def test_a_hog_that_dies_fails_nobody(launcher: Launcher) -> None:
    launched = hogged(launcher)
    for pid in wait_for(lambda: len(pids := hogs_of(launched.process.pid)) == 2 and pids):
        os.kill(pid, signal.SIGKILL)
    done = launched.finish()
    assert done.code == 0, done.err


@pytest.mark.beside
@pytest.mark.slow
@LINUX
def test_hogs_die_with_a_launcher_that_is_killed(launcher: Launcher) -> None:
    launched = hogged(launcher)
    wait_for(lambda: hogs_of(launched.process.pid))
    launched.process.kill()
    wait_for(lambda: not hogs_of(launched.process.pid), 20)


@pytest.mark.beside
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("faults.plans=[{kind: constant, factor: 0.5}]",), "factor=0.5 is not a number from 1 to"),
        (("faults.plans=[{kind: hog, cores: [4096]}]",), "A hog names core 4096; the cores there are"),
        (("faults=nobody",), "Available options in 'faults'"),
    ],
)
def test_a_plan_that_cannot_be_ends_in_a_sentence(typed: Typist, overrides: tuple[str, ...], sentence: str) -> None:
    done = typed("train", *SMALL, "mode=gba", "run_dir=runs/0", *overrides)
    assert done.code == 2 and sentence in done.err and "Traceback" not in done.err
    assert not (typed.cwd / "runs" / "0").exists()


def reported(launcher: Launcher, *options: str) -> dict[str, Any]:
    """What `gbactl report` makes of all runs."""
    shown = launcher.gbactl("report", "--format", "json", *options)
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


@pytest.mark.slow
@pytest.mark.alone
def test_the_report_shows_injected_beside_observed(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", "data.rows_per_day=24000", "faults=one_slow", tracking=True)
    assert launched.finish().code == 0
    (line,) = reported(launcher)["slowdowns"]
    assert (line["key"], line["workers"], line["n"]) == (["gba"], "W1", 1)
    assert line["injected"]["mean"] == pytest.approx(4.0) and line["observed"]["mean"] > 1.5


@pytest.mark.beside
@pytest.mark.slow
def test_the_report_shows_what_failures_cost(launcher: Launcher) -> None:
    plans = "faults.plans=[{kind: kill, servers: [0], step: 7}, {kind: kill, workers: [1], step: 20}]"
    saved = ("checkpoint=cpr", "checkpoint.interval_steps=3")
    result = launcher.train("mode=gba", "data.rows_per_day=60000", plans, *saved, tracking=True)
    tags = connect(f"sqlite:///{launcher.cwd}/mlflow.db").get_run(result["run_id"]).data.tags
    assert f"- failures: {tags['gbactl.failures']}\n" in tags[NOTE]
    lines = reported(launcher, "--by", "tags.gbactl.failures")["failures"]
    assert [(line["process"], line["failure"], line["n"]) for line in lines] == [("S0", "kill", 1), ("W1", "kill", 1)]
    for line, failed in zip(lines, result["recovery"], strict=True):
        assert line["key"] == ["S0 kill, W1 kill"]
        shown = {name: None if stat is None else stat["mean"] for name, stat in line["stats"].items()}
        assert shown == pytest.approx({"count": 1.0, **{name: failed[name] for name in shown if name != "count"}})


@LINUX
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_injected_and_observed_agree_within_five_percent(launcher: Launcher, mode: str) -> None:
    """At the size of a real model. Other work takes the CPU from a worker that computes, not from one that waits."""
    if (share := busy()) > 0.1:
        pytest.skip(f"other work takes {share:.0%} of the CPU: 5 % cannot be measured")
    result = launcher.train(
        f"mode={mode}", f"collective={collective()}", "data.days=2", "data.rows_per_day=600000",
        "data.max_cardinality=5000", "train.max_eval_samples=10000", "model.hidden=[200,200]", "faults=one_slow",
        small=False,
    )  # fmt: skip
    checked(result, "W1", 4.0, 0.05)

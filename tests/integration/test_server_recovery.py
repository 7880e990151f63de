"""Servers killed and stopped, on real processes: another one comes with what was saved; what it cost is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gbactl.coordinator import event_log
from tests.support.failures import logged
from tests.support.processes import SECONDS, Launched, Launcher, alive
from tests.support.slow import slow

KILL = "faults.plans=[{kind: kill, servers: [0], step: 7}]"
SAVED = ("checkpoint=cpr", "checkpoint.interval_steps=3")
LONG = ("data.rows_per_day=60000", "model.hidden=[256,256]", "train.global_batch=256", "train.max_eval_samples=2000")


def ended(launched: Launched, rows: int = 4_000, within: float = SECONDS) -> dict[str, Any]:
    """The result of a run that ended well and in time, whose samples all have a fate, with nothing left behind."""
    done = launched.finish(within).accounted(rows)
    assert launched.left_behind() == []
    return done.result


@pytest.mark.parametrize("mode", ["gba", slow("sync")])
def test_a_killed_server_comes_back_alone(launcher: Launcher, mode: str) -> None:
    launched = launcher.start(f"mode={mode}", "collective=shm", KILL, *SAVED)
    result = ended(launched)
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("S0", "kill")
    assert 0.0 < failed["detected_s"] < 2.0 and failed["detected_s"] < failed["loaded_s"] <= failed["useful_s"]
    assert 0 < failed["samples_undone"] < 4_000 and failed["row_updates_undone"] > 0
    assert failed["pls"] == pytest.approx(failed["samples_undone"] / (2 * 4_000)) == result["checkpoint"]["pls"]
    assert (launched.run_dir / "logs" / "S0-1.log").exists() and "lost_workers" not in result
    [injected] = json.loads((launched.run_dir / "faults.json").read_text())["injected"]
    assert injected["done"] and not alive(injected["pid"])
    [timed] = logged(launched.run_dir, result)
    assert timed["at_s"] == pytest.approx(injected["at"], abs=0.1)


@pytest.mark.beside
def test_everybody_goes_back(launcher: Launcher) -> None:
    launched = launcher.start("mode=hop_bs", "checkpoint=full", "checkpoint.interval_steps=5", KILL)
    [failed] = ended(launched)["recovery"]
    assert failed["samples_rolled_back"] > 0 and failed["pls"] == 0.0
    states = [record.fields["state"] for record in event_log.read(launched.run_dir / "events.log")
              if isinstance(record, event_log.InfoRecord) and record.kind == event_log.SERVER]  # fmt: skip
    assert states == ["lost", "back", "rewound"]


@pytest.mark.slow
def test_a_stopped_server_counts_as_dead_and_ends_when_it_wakes_up(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=async", "cluster.hang_seconds=1", "checkpoint=cpr")
    launched.training()
    launched.hangs_and_wakes_up("S1")
    assert launched.process.poll() is None
    result = ended(launched, 60_000)
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("S1", "hang")
    assert failed["useful_s"] is not None


@pytest.mark.beside
@pytest.mark.slow
def test_sync_that_went_back_has_the_bits_of_a_run_in_which_nobody_died(launcher: Launcher) -> None:
    options = ("mode=sync", "collective=shm", "checkpoint=full", "checkpoint.interval_steps=5")
    plain = ended(launcher.start(*options))
    killed = ended(launcher.start(*options, KILL))
    assert killed["checksums"]["model"] == plain["checksums"]["model"] is not None
    assert (killed["auc"], killed["global_step"]) == (plain["auc"], plain["global_step"])
    assert len(killed["recovery"]) == 1


READY_MADE = {
    "kill_worker": "W1", "hang_worker": "W1", "kill_server": "S0", "hang_server": "S0", "kill_coordinator": "C",
}  # fmt: skip


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "sync", "shadow_ma"])
@pytest.mark.parametrize("plan", READY_MADE)
def test_a_ready_made_failure_in_the_smoke_experiment_as_it_is(launcher: Launcher, plan: str, mode: str) -> None:
    launched = launcher.start("experiment=smoke", f"mode={mode}", f"faults={plan}", small=False)
    result = ended(launched, 80_000, within=40)
    failure = plan.partition("_")[0]
    assert [(failed["process"], failed["failure"]) for failed in result["recovery"]] == [(READY_MADE[plan], failure)]

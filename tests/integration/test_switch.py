"""Running jobs that are asked to go on in another mode, by real processes, as a user would."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from typing import Any

import pytest

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import InfoRecord
from gbactl.tracking.mlflow_store import NOTE, connect
from tests.support.processes import Launched, Launcher, Process, collective, wait_for

LONG = ("data.rows_per_day=300000", "model.hidden=[512,512,512]", "train.global_batch=64")  # a minute and more
SHORT = ("data.rows_per_day=12000", "model.hidden=[64]", "train.global_batch=64")
SECONDS = 30.0


def switch(launcher: Launcher, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launcher.gbactl("switch", *arguments, "--json")


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sums(launched: Launched) -> list[str]:
    """The models summed up before and after each switch."""
    records = event_log.read(launched.run_dir / "events.log")
    return [r.fields["model"] for r in records if isinstance(r, InfoRecord) and "model" in r.fields]


def stopped(launched: Launched) -> None:
    """Ctrl-C; it ends soon and leaves nothing."""
    began = time.monotonic()
    launched.process.send_signal(signal.SIGINT)
    done = launched.finish(SECONDS)
    assert time.monotonic() - began < SECONDS and done.code == 130 and "Traceback" not in done.err
    assert launched.left_behind() == [] and not (launched.run_dir / "control.json").exists()


@pytest.mark.beside
@pytest.mark.slow
def test_a_running_job_goes_on_in_another_mode_and_back(launcher: Launcher) -> None:
    uri = f"sqlite:///{launcher.cwd / 'mlflow.db'}"
    launched = launcher.start(
        *LONG, "data.rows_per_day=80000", "mode=sync", f"collective={collective()}", "switch.prepare=all",
        f"tracking.uri={uri}", tracking=True,
    )  # fmt: skip
    launched.training()
    run = ("--run", str(launched.run_dir))
    door = launched.run_dir / "control.json"
    assert stat.S_IMODE(door.stat().st_mode) == 0o600
    status = said(switch(launcher, *run, "--status", "--json"))
    assert status["mode"] == "sync" and status["live"] == 2 and status["switches"] == []
    there = said(switch(launcher, *run, "--to", "gba", "--set", "iota=5", "--wait"))
    assert (there["state"], there["from"], there["to"]) == ("done", "sync", "gba") and there["pause_ms"] > 0
    same = switch(launcher, *run, "--to", "gba", "--set", "iota=5")
    assert said(same)["state"] == "same"
    assert said(switch(launcher, *run, "--to", "sync", "--wait"))["state"] == "done"
    shown = launcher.gbactl("switch", *run, "--status").stdout.splitlines()
    assert any("mode" in line and "sync" in line for line in shown) and max(map(len, shown)) <= 80
    assert sum("sync to gba" in line or "gba to sync" in line for line in shown) == 2
    result = launched.finish(240).result
    assert [p["mode"] for p in result["phases"]] == ["sync", "gba", "sync"]
    assert result["mode"] == "sync>gba@step{}>sync@step{}".format(*(p["first_step"] for p in result["phases"][1:]))
    asked = "not in its command: switch to gba at step {}, to sync at step {}\n"
    note = connect(uri).get_run(result["run_id"]).data.tags[NOTE]
    assert asked.format(*(p["first_step"] for p in result["phases"][1:])) in note
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] == 80000
    before = sums(launched)
    assert len(before) == 4 and before[0] == before[1] and before[2] == before[3] != before[0]
    ended = switch(launcher, *run, "--to", "gba")
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "has ended" in ended.stderr
    assert not door.exists()


@pytest.mark.beside
@pytest.mark.slow
def test_what_cannot_be_asked_is_one_sentence(launcher: Launcher) -> None:
    launched = launcher.start(*LONG, "mode=gba")
    launched.training()
    run = ("--run", str(launched.run_dir))
    for arguments, text in (
        ((*run, "--to", "sync"), "not started for mode=sync"),
        ((*run, "--to", "gbaa"), "--to gbaa is no mode; type --to one of"),
        ((*run, "--to", "gba", "--set", "iotta=5"), "no key iotta"),
        ((*run, "--to", "gba", "--set", "local_batch=7"), "not a multiple"),
        ((*run, "--to", "gba", "--set", "iota"), "no KEY=VALUE"),
        (("--run", "0123456789", "--to", "gba"), "There is no run 0123456789"),
        ((*run,), "Type --to MODE"),
        (("--to", "gba"), "need --run RUN"),
        (("mode=gba",), "nothing to switch"),
    ):
        done = switch(launcher, *arguments)
        assert done.returncode in (1, 2) and text in done.stderr + done.stdout, arguments
        assert "Traceback" not in done.stderr
    assert said(switch(launcher, *run, "--to", "gba"))["state"] == "same"
    stopped(launched)


@pytest.mark.beside
@pytest.mark.slow
def test_a_schedule_within_a_day(launcher: Launcher) -> None:
    """Between the last two switches two of the four processes only join in the all-reduce."""
    entries = (
        "[{at: {samples: 4000}, to: gba}, {at: {step: 100}, to: bsp, set: {workers: 4}}, "
        "{at: {fraction: 0.7}, to: sync}, {at: {fraction: 0.9}, to: gba}]"
    )
    uri = f"sqlite:///{launcher.cwd / 'mlflow.db'}"
    result = launcher.train(
        *SHORT, "mode=sync", f"collective={collective()}", f"switch.schedule={entries}", f"tracking.uri={uri}",
        tracking=True,
    )  # fmt: skip
    assert [(p["mode"], p["first_sample"]) for p in result["phases"]] == [
        ("sync", 0), ("gba", 4032), ("bsp", 6400), ("sync", 8448), ("gba", 10816),
    ]  # fmt: skip
    assert result["samples"]["read"] == result["samples"]["trained"] + result["samples"]["decayed"] == 12000
    assert set(result["per_worker"]) == {"W0", "W1", "W2", "W3"}, "two wait for their phase"
    assert all(p["pause_ms"] > 0 for p in result["phases"][1:])
    client = connect(uri)
    told = client.get_metric_history(result["run_id"], "train/mode_id")
    assert {(2.0, 4032), (3.0, 6400), (0.0, 8448)} <= {(m.value, m.step) for m in told}
    assert {m.value for m in told} == {0.0, 2.0, 3.0}
    found = client.get_run(result["run_id"])
    tags, named = found.data.tags, "sync>gba@samples4000>bsp@step100>sync@70%>gba@90%"
    assert result["mode"] == tags["gbactl.mode"] == named
    assert found.info.run_name.startswith(f"{named} ") and found.info.run_name.endswith(" s0")
    assert tags["gbactl.phases"] == (
        "sync; gba from day 0, sample 4032; bsp from day 0, sample 6400; sync from day 0, sample 8448; "
        "gba from day 0, sample 10816"
    )
    assert f"- modes: {tags['gbactl.phases']}\n" in tags[NOTE]


def asked(launched: Launched, launcher: Launcher, mode: str) -> Process:
    return launcher.begin("switch", "--run", str(launched.run_dir), "--to", mode, "--wait", "--json")


def send(pids: list[int], kind: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, kind)


def draining(launched: Launched) -> None:
    """Wait until a phase was told to stop: the switch is under way."""
    path = launched.run_dir / "logs" / "C.log"
    wait_for(lambda: "a switch to" in path.read_text())


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize(("lost", "to"), [("end", "bsp"), ("continue", "bsp"), ("continue", "sync")])
def test_a_worker_killed_during_a_switch(launcher: Launcher, lost: str, to: str) -> None:
    """It never comes back, so the drain waits for it: the run ends, or goes on in the other mode without it.

    Only sync needs it: then the run stays where it was."""
    more = () if to == "bsp" else ("switch.prepare=all", f"collective={collective()}")
    launched = launcher.start(*LONG, "data.rows_per_day=40000", "mode=gba", f"cluster.lost_worker={lost}", *more)
    launched.training()
    victim = launched.node("W1")
    os.kill(victim, signal.SIGSTOP)
    client = asked(launched, launcher, to)
    draining(launched)
    os.kill(victim, signal.SIGKILL)
    out, err = client.communicate(timeout=SECONDS)
    done = launched.finish()
    if lost == "end":
        assert done.code == 1 and "W1" in done.err and client.returncode == 1 and "ended" in err
    else:
        said_last = json.loads(out)
        assert said_last["state"] == ("done" if to == "bsp" else "stayed")
        assert to == "bsp" or "W1 died, and sync needs every worker" in said_last["why"]
        assert [p["mode"] for p in done.result["phases"]] == ["gba", to if to == "bsp" else "gba"]
        assert done.result["samples"]["read"] == 40000
    assert launched.left_behind() == []


@pytest.mark.beside
def test_ctrl_c_and_another_wish_during_a_switch(launcher: Launcher) -> None:
    """With every worker stopped some batch is in hand, so the drain waits."""
    launched = launcher.start(*LONG, "mode=gba")
    launched.training()
    workers = [launched.node("W0"), launched.node("W1")]
    send(workers, signal.SIGSTOP)
    client = asked(launched, launcher, "bsp")
    draining(launched)
    other = switch(launcher, "--run", str(launched.run_dir), "--to", "async", "--wait")
    assert other.returncode == 1 and "another switch is under way" in other.stdout
    send(workers, signal.SIGCONT)
    out, _ = client.communicate(timeout=SECONDS)
    assert json.loads(out)["state"] == "done"
    log = launched.run_dir / "events.log"
    before = log.stat().st_size
    wait_for(lambda: log.stat().st_size > before + 1000)  # batches of the new mode are handed out
    send(workers, signal.SIGSTOP)
    client = asked(launched, launcher, "gba")
    wait_for(lambda: (launched.run_dir / "logs" / "C.log").read_text().count("a switch to") == 2)
    stopped(launched)
    client.communicate(timeout=SECONDS)
    assert client.returncode == 1


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "ctrl-c"])
def test_a_switch_out_of_sync_that_is_cut_ends_the_run_and_leaves_nothing(launcher: Launcher, end: str) -> None:
    """Everybody waits in the all-reduce for a worker that has stopped; another wish is refused meanwhile."""
    launched = launcher.start(
        *LONG, "mode=sync", "switch.prepare=all", f"collective={collective()}", "cluster.lost_worker=end"
    )  # fmt: skip
    launched.training()
    victim = launched.node("W1")
    os.kill(victim, signal.SIGSTOP)
    client = asked(launched, launcher, "gba")
    draining(launched)
    other = switch(launcher, "--run", str(launched.run_dir), "--to", "async")
    assert other.returncode == 1 and "another switch is under way" in other.stdout
    if end == "ctrl-c":
        stopped(launched)
    else:
        os.kill(victim, signal.SIGKILL)
        done = launched.finish(SECONDS)
        assert done.code == 1 and "W1" in done.err and launched.left_behind() == []
    _, err = client.communicate(timeout=SECONDS)
    assert client.returncode == 1 and "ended" in err


@pytest.mark.slow
def test_a_hung_worker_is_given_up_and_does_not_keep_a_switch(launcher: Launcher) -> None:
    """After the deadline its batches are decayed; sync would need it, so the run stays where it is."""
    launched = launcher.start(
        *LONG, "data.rows_per_day=20000", "mode=gba", "switch.prepare=all", "switch.drain_seconds=1",
        f"collective={collective()}",
    )  # fmt: skip
    launched.training()
    victim = launched.node("W1")
    os.kill(victim, signal.SIGSTOP)
    client = asked(launched, launcher, "sync")
    out, _ = client.communicate(timeout=SECONDS)
    assert json.loads(out)["state"] == "stayed" and "did not answer" in json.loads(out)["why"]
    os.kill(victim, signal.SIGCONT)
    result = launched.finish().result
    assert {p["mode"] for p in result["phases"]} == {"gba"} and len(result["phases"]) == 2
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] == 20000 and samples["decayed"] > 0
    assert launched.left_behind() == []

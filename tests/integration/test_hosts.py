"""Trainings on several hosts: network namespaces with an sshd in each, which share no memory and no run directory."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gbactl.coordinator import event_log
from gbactl.engine import host_agents
from tests.support.commands import ROOT
from tests.support.netns import LAUNCHER, NAMESPACES, Hosts, hosts
from tests.support.pages import commands
from tests.support.processes import Launched, alive, collective, wait_for
from tests.support.site import LONG, NAMES, OBSTACLE, Site
from tests.support.slow import slow

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or "")
WIDE = ("model.dim=32", "train.global_batch=512")  # so that rows are worth a slot of shared memory
LISTS = ("data.lists=1", "data.list_length=3", "data.history_length=4")  # further files of the data that are sent
CUT_SECONDS = 4.0
BEGIN = 10  # of the records in an event log


@pytest.mark.beside
@pytest.mark.parametrize("mode", [slow("gba"), slow("async"), "sync", slow("shadow_ma")])
def test_three_hosts_train(site_of: Callable[..., Site], tmp_path: Path, mode: str) -> None:
    store = tmp_path / "mlflow.db"
    site = site_of()
    launched = site.start(
        f"mode={mode}",
        *LONG,
        *WIDE,
        *LISTS,
        "data.rows_per_day=12000",
        f"tracking.uri=sqlite:///{store}",
        tracking=True,
    )
    launched.training()
    no_key_is_on_a_command_line_or_in_an_environment(site)
    done = launched.finish().accounted(12_000)
    result = done.result
    logs = {path.stem for path in (done.run_dir / "logs").glob("*.log")}
    assert {"C", "S0", "S1", "W0", "W1", "W2", "W3"} <= logs
    for name in ("S0", "S1", "W0", "W1", "W2", "W3"):
        assert re.search(r"pid \d+", (done.run_dir / "logs" / f"{name}.log").read_text()), f"{name}'s log did not come"
    for row in ("a ", "b ", "c "):
        assert re.search(rf"^{row} .*10\.77\.0\.\d.* sent +ok *$", done.err, re.M), done.err
    with sqlite3.connect(store) as connection:
        assert connection.execute("select run_uuid, status from runs").fetchall() == [(result["run_id"], "FINISHED")]
    wire = result["wire"]
    assert wire["shared_memory"] > 0 and wire["bytes"]["rows"] > 0, "memory within a host, TCP between"


def no_key_is_on_a_command_line_or_in_an_environment(site: Site) -> None:
    secret = re.compile(rb"[0-9a-f]{64}")
    for name in (*NAMES, LAUNCHER):
        assert site.machines.pids(name)
        for pid, what in itertools.product(site.machines.pids(name), ("cmdline", "environ")):
            path = Path(f"/proc/{pid}/{what}")
            assert not secret.search(path.read_bytes() if path.exists() else b""), f"{path} on {name}"


@pytest.mark.beside
@pytest.mark.slow
def test_sync_has_the_bits_of_one_host(site_of: Callable[..., Site]) -> None:
    site = site_of()
    overrides = ("mode=sync", "train.global_batch=240", "cluster.workers=3")
    one = site.launcher.train(*overrides)
    several = site.start("mode=sync", "train.global_batch=240", on="[a:1,b:1,c:1]", workers=3).finish()
    assert several.code == 0, several.err
    assert several.result["checksums"] == one["checksums"]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "days"), [("gba", 12), ("sync", 4)])
def test_a_short_cut_is_no_loss(site_of: Callable[..., Site], mode: str, days: int) -> None:
    """Long enough for TCP to try again and again, and shorter than `cluster.hang_seconds`. In `gba` the others go on
    meanwhile, by 200,000 samples and more."""
    site = site_of()
    launched = site.start(f"mode={mode}", "cluster.placement=packed", *LONG, f"data.days={days}")
    launched.training()
    site.machines.cut("c")
    time.sleep(CUT_SECONDS)
    before = _announced(launched, worker=3)
    site.machines.mend("c")
    done = launched.finish()
    assert done.code == 0, done.err
    assert "lost_workers" not in done.result
    assert _announced(launched, worker=3) > before + 10, "the host that was cut off did nothing more"


def _announced(launched: Launched, worker: int) -> int:
    """Gradients of a worker in the event log so far."""
    records, _ = event_log.tail(launched.run_dir / "events.log", BEGIN)
    return sum(isinstance(record, event_log.AnnounceRecord) and record.worker == worker for record in records)


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "shadow_ma", "shadow_easgd", "fr_bmuf"])
def test_a_host_disappears_and_its_workers_are_replaced_elsewhere(site_of: Callable[..., Site], mode: str) -> None:
    """Where their ring breaks a server sums then, for the successor too."""
    site = site_of()
    launched = site.start(f"mode={mode}", "cluster.placement=packed", "cluster.hang_seconds=3", *LONG, "data.days=3")
    launched.training()
    site.machines.kill("c")
    done = launched.finish()
    assert done.code == 0, done.err
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W3"]
    assert "Host c is gone" in done.err
    samples = done.result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"] and not samples["lost"]
    assert (done.run_dir / "logs" / "W3-1.log").exists()


@pytest.mark.beside
@pytest.mark.slow
def test_a_host_that_is_cut_off_ends_by_itself(site_of: Callable[..., Site]) -> None:
    site = site_of()
    launched = site.start("mode=gba", "cluster.placement=packed", "cluster.hang_seconds=3", *LONG, "data.days=3")
    launched.training()
    assert site.machines.ours("c")
    site.machines.cut("c")
    wait_for(lambda: not site.machines.ours("c"), 20)
    done = launched.finish()
    site.machines.mend("c")
    assert done.code == 0, done.err
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W3"]
    assert "Host c is gone" in done.err and not done.result["samples"]["lost"]
    assert (done.run_dir / "logs" / "W3-1.log").exists()


@pytest.mark.beside
@pytest.mark.slow
def test_a_lost_host_s_server_comes_back_elsewhere(site_of: Callable[..., Site]) -> None:
    site = site_of(shared=True)
    launched = site.start(
        "mode=gba", "checkpoint=cpr", "checkpoint.interval_steps=10", "cluster.hang_seconds=3", "data.days=3", *LONG
    )
    launched.training()
    wait_for(lambda: list(launched.run_dir.glob("checkpoints/*/manifest.json")) or launched.process.poll() is not None)
    site.machines.kill("b")  # S1 and W2
    done = launched.finish()
    assert done.code == 0, done.err
    assert {failed["process"] for failed in done.result["recovery"]} >= {"S1", "W2"}


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_launcher_s_end_is_everybody_s(site_of: Callable[..., Site], number: int) -> None:
    site = site_of()
    launched = site.start("mode=gba", *LONG, "data.days=3")
    launched.training()
    assert len(site.ours()) == 9  # agents, servers, workers
    os.kill(launched.process.pid, number)
    wait_for(lambda: not site.ours(), 10)


@pytest.mark.beside
@pytest.mark.slow
def test_ctrl_c_waits_for_no_host_that_is_cut_off(site_of: Callable[..., Site]) -> None:
    site = site_of()
    launched = site.start("mode=gba", *LONG, "data.days=3", "cluster.hang_seconds=8", "cluster.stop_seconds=1")
    launched.training()
    site.machines.cut("c")
    os.kill(launched.process.pid, signal.SIGINT)
    done = launched.finish(10)
    assert done.code != 0
    wait_for(lambda: not site.ours(), 15)  # on c after its own 8 s


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_data_that_crawl(site_of: Callable[..., Site], shared_cache: Path) -> None:
    site = site_of()
    site.machines.limit("c", "2mbit")
    launched = site.start("mode=gba", *LONG, "data.days=3")  # 29 MB: two minutes

    def partial() -> list[Path]:
        roots = [Path(f"/proc/{pid}/root") for pid in site.machines.pids("c")[:1]]  # its sshd
        return [path for root in roots for path in (root / shared_cache.relative_to("/")).glob("*.partial-*")]

    wait_for(lambda: partial() or launched.process.poll() is not None)
    os.kill(launched.process.pid, signal.SIGINT)
    done = launched.finish(10)
    assert done.code == 130, done.err
    wait_for(lambda: not site.ours() and not partial(), 30)


@pytest.mark.beside
@pytest.mark.slow
def test_hosts_that_do_not_reach_each_other_are_named(site_of: Callable[..., Site]) -> None:
    site = site_of()
    site.machines.separate("b", "c")
    done = site.start("mode=gba").finish()
    assert done.code == 1
    assert re.search(r"Host b does not reach c at 10\.77\.0\.4:\d+ \(", done.err), done.err
    assert re.search(r"Host c does not reach b at 10\.77\.0\.3:\d+ \(", done.err), done.err
    assert "does not reach a " not in done.err and "Host a does not" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("how", [("mode=gba",), ("mode=sync",), ("mode=gba", "cluster.lost_worker=end")])
def test_hosts_that_lose_each_other_are_named_too(site_of: Callable[..., Site], how: tuple[str, ...]) -> None:
    """W3 on c and S1 on b, both of which the launcher reaches: the third W3 is on another host."""
    site = site_of()
    launched = site.start(*how, "cluster.hang_seconds=3", *LONG, "data.days=12")
    launched.training()
    site.machines.separate("b", "c")
    done = launched.finish()
    assert "Host c does not reach host b" in done.err, done.err
    if len(how) > 1:
        assert done.code == 1 and "W3 lost its connection to S1." in done.err
        return
    assert done.code == 0, done.err
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W3"]
    assert re.search(r"W3 is started again on host [ab]\.", done.err) and "W3 is back" in done.err


@pytest.mark.slow
@pytest.mark.beside
def test_a_host_that_cannot_be_reached_is_named_before_anything_trains(site_of: Callable[..., Site]) -> None:
    site = site_of()
    done = site.start("mode=gba", on="[a:2,nowhere:2]").finish()
    assert done.code == 1
    assert "Host nowhere cannot be reached" in done.err and " nowhere true` works" in done.err
    assert not (done.run_dir / "events.log").exists()


@pytest.mark.beside
@pytest.mark.slow
def test_a_host_whose_own_name_points_to_itself_alone_is_told(site_of: Callable[..., Site]) -> None:
    done = site_of(named=False).start("mode=sync").finish()
    assert done.code == 1
    assert re.search(r"Host c takes its own name \S+ for \S+, where Horovod's ring would listen", done.err)


@pytest.mark.beside
@pytest.mark.slow
def test_a_lost_worker_ends_the_run_with_its_host_s_name_where_that_is_wanted(site_of: Callable[..., Site]) -> None:
    site = site_of()
    how = ("cluster.lost_worker=end", "cluster.placement=packed", "cluster.hang_seconds=3")
    launched = site.start("mode=sync", *how, *LONG, "data.days=3")
    launched.training()
    site.machines.kill("c")
    done = launched.finish(60)
    assert done.code == 1
    assert "W3 was killed by the loss of host c" in done.err or "W3 has not answered for 3 s" in done.err
    assert "Host c is gone" in done.err


@pytest.mark.beside
@pytest.mark.slow
def test_a_run_switches_and_replays(site_of: Callable[..., Site]) -> None:
    site = site_of()
    done = site.start("mode=sync", "data.days=3", "switch.schedule=[{at: {day: 1}, to: gba}]").finish()
    assert done.code == 0, done.err
    assert [phase["mode"] for phase in done.result["phases"]] == ["sync", "gba"]
    asynchronous = site.start("mode=async").finish()
    assert asynchronous.code == 0, asynchronous.err
    replayed = site.gbactl("replay", str(asynchronous.run_dir))
    assert replayed.returncode == 0, replayed.stderr + replayed.stdout


@pytest.mark.slow
def test_the_doctor_measures_every_line_and_what_is_slow_is_slow(site_of: Callable[..., Site], tmp_path: Path) -> None:
    site = site_of()
    site.machines.limit("c", "50mbit")
    out = tmp_path / "network.yaml"
    where = ("cluster=hosts", "cluster.hosts=[a:1,b:1,c:1]", f"cluster.ssh='{site.machines.ssh}'")
    done = site.gbactl("doctor", *where, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["ok"] and set(found["hosts"]) == set(NAMES)
    pairs = {(pair["from"], pair["to"]): pair for pair in found["pairs"]}
    assert set(pairs) == {(a, b) for a in NAMES for b in NAMES if a != b}
    assert all(pair["latency_us"] > 0 for pair in pairs.values())
    assert 0.02 < pairs["c", "a"]["bandwidth_gbit"] < 0.06  # 50 Mbit/s of frames, of which TCP's headers take some
    assert pairs["a", "b"]["bandwidth_gbit"] > pairs["c", "a"]["bandwidth_gbit"]
    assert set(host_agents.read(out)) == {"latency_us", "bandwidth_gbit"}


def test_a_delayed_host_is_as_far_as_asked_and_leaves_nothing(tmp_path: Path) -> None:
    delay = 0.02
    with hosts(tmp_path, ("a", "b"), delays={"b": delay}) as at:
        near, far = (_round_trip(at, LAUNCHER, name) for name in ("a", "b"))
        assert near < delay < 2 * delay <= far < 3 * delay
        assert 2 * delay <= _round_trip(at, "b", "a") < 3 * delay
        at.limit("b", "100mbit")
        assert 2 * delay <= _round_trip(at, "a", "b") < 3 * delay
        counts = at.relays["b"].counts()
        assert counts["frames"] > 10 and counts["dropped"] == 0
        relays = at.pids("sw")
        assert len(relays) == 1
    assert not [path for path in NAMESPACES.glob("*") if path.name.startswith(at.ns(""))]
    assert not [pid for pid in relays if alive(pid)]


OTHERS = """
import sys
from pathlib import Path
from tests.support.netns import hosts
with hosts(Path(sys.argv[1]), ("a",)):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.beside
@pytest.mark.slow
def test_hosts_answer_when_those_of_a_test_beside_them_are_gone(tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "others"]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", OTHERS, str(folders[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as others:
        assert others.stdout is not None and others.stdout.readline() == "ready\n"
        with hosts(folders[0], ("a",)) as at:
            others.communicate()
            assert others.returncode == 0
            assert at.answers("a")


def _round_trip(at: Hosts, source: str, target: str) -> float:
    """Seconds that it takes to connect to a host's sshd, at best."""
    connect = (
        "import socket, sys, time\n"
        "for _ in range(5):\n"
        "    began = time.perf_counter()\n"
        "    with socket.create_connection((sys.argv[1], 22)):\n"
        "        print(time.perf_counter() - began)\n"
    )
    asked = [*at.inside(source), sys.executable, "-c", connect, at.address(target)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30)
    return min(map(float, done.stdout.split()))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_tutorial(site_of: Callable[..., Site]) -> None:
    site = site_of()
    small = ["data.days=2", "data.rows_per_day=8000", "model.dim=4", "model.hidden=[8]", "train.max_eval_samples=1000"]
    extra = {
        "doctor": [f"cluster.ssh='{site.machines.ssh}'"],
        "train": [f"cluster.ssh='{site.machines.ssh}'", "cluster.forward=[GBACTL_CACHE]", *small],
        "calibrate": ["--workers", "2,4", "--seconds", "2", f"collective={collective()}", *small[2:4]],
    }
    lines = commands("docs/tutorials/several-machines.md", "hosts")
    assert [line.split()[:2] for line in lines] == [["gbactl", name] for name in extra]
    for line in lines:
        words = shlex.split(line)[1:]
        done = site.gbactl(*words, *extra[words[0]], seconds=240)
        busy = words[0] == "calibrate" and "The fit is too inexact" in done.stderr  # so it says
        assert done.returncode == 0 or busy, f"{line}\n{done.stderr}"


@pytest.mark.beside
@pytest.mark.slow
def test_a_killed_coordinator_is_replaced(site_of: Callable[..., Site]) -> None:
    site = site_of()
    launched = site.start("mode=gba", *LONG)
    launched.training()
    os.kill(launched.node("C"), signal.SIGKILL)
    done = launched.finish().accounted(60_000)
    assert "C" in {failed["process"] for failed in done.result["recovery"]}

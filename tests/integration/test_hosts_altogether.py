"""What a run on one host can do, on several: switch, recover, go on, report; and what of it the network gets to see."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.netns import LAUNCHER
from tests.support.processes import wait_for
from tests.support.site import LONG, NAMES, OBSTACLE, Site
from tests.support.sockets import LOOPBACK, listeners

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or "")
LOSS = 0.02


def gbactl(site: Site, *arguments: str) -> str:
    """A command beside the launcher that must go well; what it printed."""
    done = site.gbactl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listened(pids: list[int]) -> set[str]:
    """Addresses, as the kernel writes them."""
    return {place.split(":")[0] for pid in pids for place in listeners(pid)}


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_nobody_listens_elsewhere_or_gets_a_variable_that_is_not_named(site_of: Callable[..., Site], mode: str) -> None:
    site = site_of()
    site.launcher.environment |= {"ASKED_FOR": "forwarded", "NOT_ASKED_FOR": "a password"}
    launched = site.start(f"mode={mode}", "cluster.forward=[GBACTL_CACHE,ASKED_FOR]", *LONG)
    launched.training()
    for name in (*NAMES, LAUNCHER):
        (own,) = struct.unpack("<I", socket.inet_aton(site.machines.address(name)))
        everyone = site.machines.pids(name)
        assert f"{own:08X}" in listened(everyone) <= {f"{own:08X}", *LOOPBACK}, name
        if name == LAUNCHER:
            continue
        variables = {line for pid in everyone for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        assert b"ASKED_FOR=forwarded" in variables
        assert not [line for line in variables if b"a password" in line or line.startswith(b"NOT_ASKED_FOR")]
    assert launched.finish().code == 0


@pytest.mark.beside
@pytest.mark.slow
def test_a_running_job_is_switched_encrypted_and_reported(site_of: Callable[..., Site], tmp_path: Path) -> None:
    site, store = site_of(), f"sqlite:///{tmp_path / 'mlflow.db'}"
    encrypted = ("transport.encrypt=true", f"tracking.uri={store}")
    launched = site.start("mode=gba", *encrypted, *LONG, "data.days=3", tracking=True)
    launched.training()
    run = ("--run", str(launched.run_dir))
    gbactl(site, "switch", *run, "--to", "async", "--wait")
    assert "gba to async" in gbactl(site, "switch", *run, "--status")
    done = launched.finish()
    done.accounted(120000)
    assert [phase["mode"] for phase in done.result["phases"]][:2] == ["gba", "async"]
    assert done.result["refused"] == {}
    (told,) = json.loads(gbactl(site, "report", "--uri", store, "--format", "json"))["groups"]
    [key] = told["key"]
    assert re.fullmatch(r"gba>async@step\d+", key) and told["n"] == 1


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_a_worker_that_hangs_on_another_host_is_replaced(site_of: Callable[..., Site], mode: str) -> None:
    """It wakes up later, and is gone by the end."""
    plan = "faults.plans=[{kind: hang, workers: [3], step: 10, seconds: 8}]"
    done = site_of().start(f"mode={mode}", "cluster.hang_seconds=3", plan, *LONG, "data.days=3").finish()
    done.accounted(120000)
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W3"]
    assert [(each["process"], each["failure"]) for each in done.result["recovery"]] == [("W3", "hang")]


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "shadow_ma"])
def test_a_ring_that_breaks_while_everybody_lives_loses_nobody(site_of: Callable[..., Site], mode: str) -> None:
    """One host's connections of the ring are reset; on others it does not fail by itself."""
    site = site_of()
    launched = site.start(f"mode={mode}", *LONG, "data.days=3")
    launched.training()
    ends = [int(place.split(":")[1], 16) for pid in site.machines.pids("b") for place in listeners(pid)]
    ring = " and ".join(f"dport != :{port}" for port in ends)  # nobody listens for it any more
    reset = ("ss", "-H", "-K", "state", "established", "dst", site.machines.address("b"), "and", ring)
    broken = subprocess.run([*site.machines.inside("c"), *reset], check=True, capture_output=True, text=True)
    assert broken.stdout
    done = launched.finish(120)
    done.accounted(120000)
    assert "lost_workers" not in done.result
    assert "from now on this run sums without its ring" in (done.run_dir / "logs" / "W3.log").read_text()


@pytest.mark.beside
@pytest.mark.slow
def test_a_run_whose_launcher_was_killed_goes_on(site_of: Callable[..., Site]) -> None:
    site = site_of(shared=True)
    killed = site.start("mode=gba", "checkpoint=full", "checkpoint.interval_steps=10", *LONG, "data.days=3")
    killed.training()
    wait_for(lambda: list(killed.run_dir.glob("checkpoints/*/manifest.json")))
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.communicate()
    wait_for(lambda: not site.ours(), 20)
    go_on = (f"resume={killed.run_dir}", f"run_dir={killed.run_dir}")
    refused = site.launcher.start(*go_on, small=False).finish()
    assert "if you trust it, type cluster.ssh=VALUE beside resume=" in refused.err
    trusted = (f"cluster.ssh='{site.machines.ssh}'", "cluster.forward=[GBACTL_CACHE]")
    done = site.launcher.start(*go_on, *trusted, small=False).finish()
    done.run_dir = killed.run_dir
    done.accounted(120000)
    assert done.result["checkpoint"]["resumed_at"] >= 10


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "sync", "shadow_ma"])
def test_frames_that_are_lost_on_the_way_are_sent_again(site_of: Callable[..., Site], mode: str) -> None:
    site = site_of(losses={"c": LOSS})
    done = site.start(f"mode={mode}", "data.rows_per_day=8000").finish()
    done.accounted(8000)
    assert "lost_workers" not in done.result
    counts = site.machines.relays["c"].counts()
    assert counts["lost"] > 10 and counts["dropped"] == 0


@pytest.mark.beside
@pytest.mark.slow
def test_versions_and_memory_that_do_not_do_are_told_before_anything_trains(
    site_of: Callable[..., Site], tmp_path: Path
) -> None:
    (tmp_path / "shim" / "torch-9.9.dist-info").mkdir(parents=True)
    (tmp_path / "shim" / "torch-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n"
    )
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "shim"}:$PYTHONPATH exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    large = ("model.dim=65536", "data.max_cardinality=20000", "model.hidden=[1]")
    done = site_of().start("mode=gba", f"cluster.python={other}", *large).finish()
    assert done.code == 1 and "Traceback" not in done.err
    for name in NAMES:
        assert re.search(rf"Host {name} has torch 9\.9, and this machine has \S+; install the same version", done.err)
    need = r"has [\d,]+ MiB of memory free, and its servers and workers need [\d,]+; free some, spread"
    assert [name for name in NAMES if re.search(f"Host {name} {need}", done.err)] == ["a", "b"]  # where servers are
    assert not (done.run_dir / "events.log").exists()

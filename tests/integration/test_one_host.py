"""cluster=hosts with this machine as its only host: agents without ssh, which any user may try."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.processes import Launcher, alive, children_of, collective, wait_for
from tests.support.slow import slow

pytestmark = pytest.mark.skipif(collective() != "horovod", reason="cluster=hosts needs Horovod's launcher")
HERE = ("cluster=hosts", "cluster.hosts=[localhost:2]")


@pytest.mark.beside
@pytest.mark.slow
def test_it_has_the_bits_of_a_local_run(launcher: Launcher) -> None:
    overrides = ("mode=sync", "train.global_batch=240", "cluster.workers=3")
    local = launcher.train(*overrides)
    done = launcher.start(*overrides, "cluster=hosts", "cluster.hosts=[localhost:3]").finish()
    assert done.code == 0, done.err
    assert done.result["checksums"] == local["checksums"] and done.result["samples"]["read"] == 4000
    assert {path.stem for path in (done.run_dir / "logs").glob("*.log")} >= {"C", "S0", "S1", "W0", "W1", "W2"}
    assert "localhost" in done.err and "the same" in done.err


@pytest.mark.beside
@pytest.mark.slow
def test_a_killed_worker_is_replaced(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", *HERE, "data.rows_per_day=60000")
    launched.training()
    os.kill(launched.node("W1"), signal.SIGKILL)
    done = launched.finish()
    assert done.code == 0, done.err
    assert [lost["process"] for lost in done.result["lost_workers"]] == ["W1"]


@pytest.mark.beside
def test_an_agent_s_end_is_that_of_its_processes_and_of_the_run(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", *HERE, "data.rows_per_day=60000", "data.days=3")
    launched.training()
    pids = [launched.node(name) for name in ("S0", "S1", "W0", "W1")]
    (agent,) = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    os.kill(agent, signal.SIGKILL)
    done = launched.finish()
    assert done.code == 1
    assert "was killed by the loss of host localhost" in done.err or "Every host is gone" in done.err
    wait_for(lambda: not children_of(agent))


@pytest.mark.beside
@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_ctrl_c_waits_for_no_host_that_does_not_answer(launcher: Launcher, tmp_path: Path, number: int) -> None:
    ssh, pid = tmp_path / "ssh", tmp_path / "pid"
    ssh.write_text(f"#!/bin/sh\nsleep 0.5; echo $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 60\n")
    ssh.chmod(0o755)
    where = "cluster.hosts=[localhost:1,there-is-no-such-host.invalid:1]"
    launched = launcher.start("mode=gba", "cluster=hosts", where, f"cluster.ssh={ssh}")
    wait_for(pid.exists)
    launched.process.send_signal(number)
    done = launched.finish(10)
    assert done.code == 128 + number and done.err.splitlines()[-1].startswith("gbactl: stopped"), done.err
    assert not alive(int(pid.read_text()))

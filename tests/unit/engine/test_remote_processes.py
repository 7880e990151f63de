"""A lost host that is there again: when it is used, and what is said of it meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gbactl.engine import preflight, remote_processes
from gbactl.engine.agent import files_of
from gbactl.engine.host_agents import HostAgents
from gbactl.launch.hydra_config import compose
from tests.support.processes import launch_of

THERE = {"gbactl": "0.1.0", "code": "5a0f"}


def started(
    agents: type[HostAgents], said: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> remote_processes.RemoteRunProcesses:
    """Processes of a run on host b, of which none has been started."""
    monkeypatch.setattr(remote_processes, "HostAgents", agents)
    monkeypatch.setattr(remote_processes, "RESTORE_SECONDS", 0.0)
    cfg = compose(["cluster=exec", "cluster.hosts=[b:1]", "cluster.bind=127.0.0.1", "mode=gba", "model.dim=4"])
    launch = launch_of(cfg, folder)
    launch.show, launch.dataset.fingerprint = SimpleNamespace(print_line=said.append, show_step=None), ""
    return remote_processes.RemoteRunProcesses(launch, str, True)


def test_why_a_host_that_is_there_again_is_not_used_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost, it does not answer; then it has source files that were edited meanwhile, twice, and then those of here."""
    found: list[dict[str, Any]] = [THERE, {}, THERE | {"code": "91bc"}, THERE | {"code": "91bc"}, THERE]
    said: list[str] = []

    class Agents(HostAgents):
        def connect(self) -> None:
            report, link = self.reports["b"], SimpleNamespace(host="b", close=lambda: None)
            report.facts, self.links["b"] = found.pop(0), link  # type: ignore[assignment]
            report.faults += preflight.versions("b", report.facts, THERE) if report.facts else ["Host b is not there."]

        def each(self, work: object) -> None:
            """There is no agent to ask."""

        def close(self) -> None:
            """Nor to end."""

    processes = started(Agents, said, tmp_path, monkeypatch)
    processes.agents.connect()
    processes._restore("b")
    assert not found and said == [
        "  Host b is there again, but cannot be used. Host b has gbactl source hash 91bc, and this machine has 5a0f; "
        "check out the same commit there, with the same changes, and type make install.",
        "  Host b is there again; it gets no worker.",
    ]


def test_logs_and_traces_that_agents_send_are_in_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = started(HostAgents, [], tmp_path, monkeypatch)
    for kind, path in files_of(tmp_path, "W0-1").items():
        path.parent.mkdir()
        for data in (b"one", b"two"):
            processes._on_report(kind, {"name": "W0-1", "data": data})
        assert path.read_bytes() == b"onetwo"


def test_the_end_waits_for_who_still_asks_a_lost_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, ended, done = threading.Event(), threading.Event(), list[str]()

    class Agents(HostAgents):
        def connect(self) -> None:
            asks.set()
            ended.wait(10)
            self.reports["b"].faults.append("Host b is not there.")

        def each(self, work: object) -> None:
            """There is no agent to ask."""

        def close(self) -> None:
            ended.set()
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.2)
                done.append("closed")

    processes = started(Agents, [], tmp_path, monkeypatch)
    processes._lost("b", "its agent has ended")
    assert asks.wait(10)
    processes.stop()
    assert done == ["closed"]

"""cluster=ray without Ray, with too few CPUs, and the command for one host; with a cluster: test_engines.py."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gbactl.config.engine_interface import engine_named
from gbactl.config.groups import ClusterConfig
from gbactl.engine import ray
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import ClusterError, ConfigError, MissingDependencyError
from gbactl.wire import listener
from gbactl.wire.auth import TlsContexts

CLUSTER = ClusterConfig("ray", workers=4, hosts=["n1:2", "n2:2"], python="/opt/python")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> HostsEngine:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    made = engine_named("ray")
    assert isinstance(made, HostsEngine)
    return made


def test_the_command_for_a_host_reserves_its_slots(engine: HostsEngine) -> None:
    told = engine.agent(CLUSTER, "n2")
    assert told == f"{sys.executable} -m gbactl.engine.ray n2 2 n1 /opt/python -m gbactl.engine.agent"


def test_the_nodes_are_asked_for_only_where_no_hosts_are_given(
    engine: HostsEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.RayEngine, "hosts", lambda _: ["n1:2", "n2:3"])
    assert engine.defaults({"hosts": [], "workers": None}) == {"hosts": ["n1:2", "n2:3"], "workers": 5}
    assert engine.defaults({"hosts": ["n1:1"], "workers": None}) == {"workers": 1}


def test_fewer_cpus_than_workers(engine: HostsEngine) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.workers=5 do not fit into the 4 slots of cluster\.hosts"):
        engine.check(CLUSTER, 5)


def test_without_ray_it_says_what_to_install(engine: HostsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for ask in (engine.hosts, lambda: engine.agent(CLUSTER, "n1")):
        with pytest.raises(MissingDependencyError, match=r"not installed; type pip install 'gbactl\[ray\]'"):
            ask()


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            ConnectionError("Could not find any running Ray instance."),
            r"no running Ray cluster; type `ray start --head`",
        ),
        (RuntimeError("Version mismatch:\nPython"), r"^Ray cannot be used: Version mismatch:$"),
    ],
)
def test_without_a_cluster_it_says_how_to_begin_one(
    raised: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(init=init))
    with pytest.raises(ClusterError, match=told):
        ray._connect()


def test_the_last_line_of_the_process_that_asks_ray_is_the_reason(
    engine: HostsEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "__name__", "gbactl.no_such_module")
    with pytest.raises(ConfigError, match=r"No module named gbactl\.no_such_module"):
        engine.hosts()


@pytest.mark.parametrize(
    ("live", "cpus", "place"),
    [
        ({"n1": 4, "n2": 2}, 2, ("n2-id", False)),
        ({"n1": 4, "n2": 1}, 1, ("n2-id", False)),
        ({"n1": 4, "n3": 2}, 2, {"ray.io/node-id": "!in(n1-id)"}),  # n2 was lost since it was named
        ({"n3": 2}, 2, {}),
    ],
)
def test_an_agent_s_place_is_its_node_or_one_that_is_no_host(live: dict[str, int], cpus: int, place: object) -> None:
    def node(name: str, count: int, alive: bool = True) -> dict[str, Any]:
        return {"NodeName": name, "NodeID": f"{name}-id", "Alive": alive, "Resources": {"CPU": count}}

    affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    known = [*(node(*each) for each in live.items()), node("n2", 8, False)]
    cluster = SimpleNamespace(nodes=lambda: known, util=SimpleNamespace(scheduling_strategies=affinity))
    found = ray._place(cluster, "n2", 2, ["n1"])
    assert found.pop("num_cpus") == cpus and list(found.values()) == [place]
    with pytest.raises(ClusterError, match=f"^Ray has no node n9, but {', '.join(live)}$"):
        ray._place(cluster, "n9", 2, ["n1"])


def test_why_an_agent_does_not_start() -> None:
    starter = ray.Starter()
    assert "No such file or directory: '/there/is/no/python'" in starter.run(["/there/is/no/python"], "/nowhere", "ab")
    failing = "import sys; sys.exit('no gbactl' if sys.stdin.read() == 'ab\\n' else 'no key')"
    assert starter.run([sys.executable, "-c", failing], "/nowhere", "ab") == "no gbactl"
    assert starter.run(["true"], "/nowhere", "ab") == ""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("The actor died.", "The actor died."),
        (
            "Failed to set up runtime environment.\nTraceback:\n  File ...\nOSError: no package\n",
            "Failed to set up runtime environment. OSError: no package",
        ),
        ("", "RuntimeError"),
    ],
)
def test_why_ray_does_not_run_an_agent(raised: str, told: str) -> None:
    assert ray._reason(RuntimeError(raised)) == told


@pytest.fixture
def launcher_pipe() -> Iterator[int]:
    """A pipe in the place of standard input: the launcher's end of it, which the test closes."""
    before, (pipe, launcher) = os.dup(0), os.pipe()
    os.dup2(pipe, 0)
    yield launcher
    os.dup2(before, 0)
    for each in (before, pipe):
        os.close(each)


def test_a_driver_ends_when_ray_reports_its_actor_dead_though_the_agent_s_connection_is_open(
    launcher_pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, dead, ended = os.pipe(), threading.Event(), threading.Event()

    def lose(_: object) -> str:
        dead.wait()
        raise RuntimeError("The actor died because its node has died.")

    cluster, called, told = MagicMock(get=lose, nodes=lambda: [{"NodeName": "n1", "Alive": False}]), Queue(), []
    cluster.util.get_node_ip_address.return_value = "127.0.0.1"
    cluster.remote().options().remote().run.remote = lambda *arguments: called.put(arguments)
    monkeypatch.setattr(ray, "_connect", lambda: cluster)
    monkeypatch.setattr(ray, "signal", MagicMock())
    monkeypatch.setattr(ray, "print", lambda text, **_: told.append(text), raising=False)
    monkeypatch.setattr(ray, "os", SimpleNamespace(_exit=lambda code: ended.set(), getcwd=os.getcwd))
    driver = threading.Thread(target=ray.run_agent, args=("n1", 2, [""], ["agent"], out[1]), daemon=True)
    try:
        driver.start()
        command, _, key = called.get(timeout=10)
        with TlsContexts(bytes.fromhex(key)).dial(listener.dial(command[-1], 10)) as agent:
            agent.send(b"x")
            assert os.read(out[0], 1) == b"x" and not ended.is_set()
            dead.set()
            assert ended.wait(10) and driver.is_alive()  # a process would have ended
            assert told == ["Node n1: Ray does not run the agent: The actor died because its node has died."]
    finally:
        dead.set()
        driver.join(10)
        for each in (launcher_pipe, out[0]):
            os.close(each)


@pytest.mark.parametrize("command_ends", [False, True])
def test_a_driver_that_waits_for_an_agent_ends_with_its_launcher_or_its_command(
    launcher_pipe: int, monkeypatch: pytest.MonkeyPatch, command_ends: bool
) -> None:
    """The launcher may be killed, and its end of the pipe is then closed; the command may be `true`, to try it."""
    over = threading.Event()
    if command_ends:
        over.set()
    typed = os.fdopen(launcher_pipe, "wb")

    def end(_: object) -> str:
        over.wait()
        return ""

    cluster = MagicMock(get=end, nodes=lambda: [{"NodeName": "n1", "Alive": False}])
    cluster.util.get_node_ip_address.return_value = "127.0.0.1"
    monkeypatch.setattr(ray, "_connect", lambda: cluster)
    monkeypatch.setattr(ray, "FREE_SECONDS", 0.05)
    monkeypatch.setattr(ray, "print", lambda *_, **__: typed.close(), raising=False)
    try:
        driver = threading.Thread(target=ray.run_agent, args=("n1", 2, [""], ["agent"], 1), daemon=True)
        driver.start()
        driver.join(10)
        assert typed.closed is not command_ends and not driver.is_alive()
    finally:
        over.set()
        typed.close()

"""A real agent of this machine on a pipe: what it starts, tells and ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gbactl.data.cache import prepare
from gbactl.engine import host_and_network_facts
from gbactl.engine.agent import FILES, AgentProcess, AgentProcesses, files_of, mark
from gbactl.engine.agent_connection import AGENT, PIECE, AgentConnection, MessageDecoder, command, pack
from gbactl.engine.host_agents import HostAgents
from gbactl.engine.host_and_network_facts import ReachabilityProbe, dial
from gbactl.errors import ClusterError, WireError
from gbactl.install import code_version
from gbactl.wire import auth, listener
from gbactl.wire.auth import TlsContexts, relay
from tests.support.processes import alive, wait_for

DATA = {"name": "synthetic", "days": 2, "rows_per_day": 300, "max_cardinality": 50, "seed": 1}
TOKEN = "ab" * 32


@pytest.fixture
def link(tmp_path: Path) -> Iterator[AgentConnection]:
    made = AgentConnection("here", f"{shlex.quote(sys.executable)} -m {AGENT}", tmp_path / "errors.log", 30.0)
    yield made
    made.close()


@contextlib.contextmanager
def agents_of(folder: Path, environment: dict[str, str] | None = None) -> Iterator[HostAgents]:
    """The agents of a run on this host alone, connected and set up."""
    made = HostAgents(["localhost"], lambda host: command(host, "ssh", None), folder, 30.0)
    try:
        made.connect()
        made.send_setup("127.0.0.1", 30.0, folder, environment or {})
        yield made
    finally:
        made.close()


def settle(link: AgentConnection, **more: Any) -> dict[str, Any]:
    fields = {
        "hang_seconds": 30.0, "token": TOKEN, "launcher": "127.0.0.1", "paths": [], "environment": {}, "traced": False,
    }  # fmt: skip
    return link.request("settle", 20.0, **{**fields, "run_dir": "/there/is/no/such", **more})


def test_facts_and_addresses(link: AgentConnection) -> None:
    found = link.request("facts", 30.0)
    assert found["gbactl"] and found["cores"] >= 1 and found["memory"] > 0 and found["code"] == code_version()
    answer = settle(link, paths=["/", "/there/is/no/such"])
    assert (answer["address"], answer["interface"], answer["shared"]) == ("127.0.0.1", "lo", False)
    assert answer["sees"] == {"/": True, "/there/is/no/such": False}


def test_cores_and_memory_of_a_host_are_what_control_groups_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_and_network_facts, "usable_cores", lambda: 3)
    monkeypatch.setattr(host_and_network_facts, "free_memory", lambda: 5 << 20)
    found = host_and_network_facts.facts()
    assert (found["cores"], found["memory"]) == (3, 5 << 20)


@contextlib.contextmanager
def dialling(key: bytes) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """An agent that has the key and dials back, and the listener that it dials."""
    with listener.listen("127.0.0.1") as waiting:
        typed = [sys.executable, "-m", AGENT, listener.address_of(waiting)]
        with subprocess.Popen(typed, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
            assert agent.stdin is not None
            agent.stdin.write(f"{key.hex()}\n")
            agent.stdin.flush()
            yield agent, waiting


def test_it_does_not_serve_who_has_another_key() -> None:
    with dialling(auth.new_key()) as (agent, waiting):
        connection = TlsContexts(auth.new_key()).accept(waiting.accept()[0])
        with connection, pytest.raises(WireError, match=auth.STRANGE):
            connection.do_handshake()
        _, err = agent.communicate(timeout=20)
        assert agent.returncode == 1 and auth.STRANGE in err


def test_it_dials_back_to_who_knows_the_key() -> None:
    key = auth.new_key()
    with dialling(key) as (agent, waiting):
        connection = TlsContexts(key).accept(waiting.accept()[0])
        connection.do_handshake()
        ends = os.pipe(), os.pipe()
        carrier = threading.Thread(target=relay, args=(connection, ends[0][0], ends[1][1]))
        carrier.start()
        os.write(ends[0][1], pack("facts", {"ask": 1}))
        reader, answers = MessageDecoder(greeted=False), []
        while not answers:
            answers = [fields for name, fields in reader.feed(os.read(ends[1][0], 1 << 16)) if name == "answer"]
        assert answers[0]["client"] == "127.0.0.1" and answers[0]["gbactl"]
        os.close(ends[0][1])
        carrier.join(20)
        assert agent.wait(20) == 0


def test_a_question_that_fails_is_answered_with_its_reason(link: AgentConnection) -> None:
    settle(link)
    with pytest.raises(ClusterError, match=r"Host here: This host has no data yet\."):
        link.request("start", 20.0, name="W0", boot={}, environment={}, seat=None)


def test_it_ends_with_what_it_started_when_its_input_ends(link: AgentConnection, tmp_path: Path) -> None:
    pid = started(link, tmp_path)
    assert alive(pid)
    link.close()
    wait_for(lambda: not alive(pid), 20)


def started(link: AgentConnection, tmp_path: Path) -> int:
    """The pid of a server that looks for a coordinator in vain."""
    path = prepare({**DATA, "cache": str(tmp_path / "cache")})
    settle(link, run_dir=str(tmp_path))
    asked = link.request("find", 20.0, path=str(path), fingerprint=fingerprint(path), cache=str(tmp_path / "cache"))
    assert asked["found"]
    boot = {
        "role": "server", "index": 0, "key": "00" * 32, "coordinator": "203.0.113.1:9", "run_dir": "", "dataset": "",
        "config": {"cluster": {"name": "local"}}, "listener": -1, "place": None, "incarnation": 0, "host": "",
        "coordinator_failure": [0.0, ""],
    }  # fmt: skip
    return int(link.request("start", 20.0, name="S0", boot=boot, environment={}, seat=None)["pid"])


def fingerprint(path: Path) -> str:
    from gbactl.data.dataset import open_dataset

    return open_dataset(path).fingerprint


def test_a_process_s_log_and_end_are_told(link: AgentConnection, tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    link.on_report = lambda name, fields: told.append((name, fields))
    pid = started(link, tmp_path)
    wait_for(lambda: any(name == "log" and f"pid {pid}".encode() in fields["data"] for name, fields in told), 30)
    link.send("signal", name="S0", number=int(signal.SIGKILL))
    wait_for(lambda: ("exited", {"name": "S0", "code": -9}) in told, 20)


@pytest.mark.parametrize("traced", [True, False])
def test_a_trace_is_sent_in_pieces_before_the_end_is_told(traced: bool) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    nodes = AgentProcesses(lambda name, fields: told.append((name, fields)))
    assert not nodes.choose_log_folder(Path("/there/is/no/such"), TOKEN, traced)
    assert nodes._folder is not None
    files, whole = files_of(nodes._folder, "W0"), os.urandom(PIECE + 7)
    assert files["trace"].parent.is_dir() == traced
    if traced:
        files["trace"].write_bytes(whole)
    nodes.processes["W0"] = AgentProcess("W0", SimpleNamespace(poll=lambda: 0))  # type: ignore[arg-type]
    nodes.poll()
    nodes.clear()
    sent = [("trace", {"name": "W0", "data": piece}) for piece in (whole[:PIECE], whole[PIECE:])]
    assert told == [*(sent if traced else []), ("exited", {"name": "W0", "code": 0})]


def test_an_agent_that_is_stopped_counts_as_gone(link: AgentConnection) -> None:
    lost = threading.Event()
    link.on_lost = lambda why: lost.set()
    settle(link)
    link.patience = 1.0
    os.kill(link._process.pid, signal.SIGSTOP)
    assert lost.wait(20) and link.lost_reason == "it has said nothing for 1 s"
    with pytest.raises(ClusterError, match="Host here is gone: it has said nothing for 1 s"):
        link.request("facts", 5.0)


def test_an_agent_that_hears_nothing_ends_by_itself(link: AgentConnection, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / mark(TOKEN)).touch()
    pid = started(link, tmp_path)
    settle(link, run_dir=str(tmp_path), hang_seconds=1.0)
    link._ending = True  # no more pulses
    wait_for(lambda: not alive(pid) and link.lost_reason is not None, 20)


@pytest.mark.parametrize("name", ["open_shell", "start"])
def test_nonsense_ends_the_agent(link: AgentConnection, name: str) -> None:
    settle(link)
    link.send(name)  # no such question, or one without its fields
    wait_for(lambda: link.lost_reason is not None, 20)


def test_a_host_that_ssh_cannot_reach(tmp_path: Path) -> None:
    dead = "sh -c 'echo the line is dead >&2; exit 255'"
    agents = HostAgents(["there-is-no-such-host.invalid"], lambda host: command(host, dead, None), tmp_path, 20.0)
    try:
        agents.connect()
        (sentence,) = agents.faults
        assert sentence.startswith("Host there-is-no-such-host.invalid cannot be reached (the line is dead); see that")
    finally:
        agents.close()


def test_data_that_a_host_lacks_are_sent(tmp_path: Path) -> None:
    """Every array that data can have: those of columns, and those of lists with weights."""
    (tmp_path / "t.csv").write_text("y,x,c,tags,scores\n" + "1,2,a,p|q,1|2\n0,3,b,,\n" * 9)
    columns = "y: label, x: numeric, c: categorical, tags: {kind: multi, weights: scores}"
    (tmp_path / "s.yaml").write_text(f"columns: {{{columns}}}\n")
    table = {"name": "table", "path": str(tmp_path / "t.csv"), "schema": str(tmp_path / "s.yaml")}
    path = prepare({**table, "cache": str(tmp_path / "own")})
    assert {each.name for each in path.iterdir()} == set(FILES)
    with agents_of(tmp_path) as agents:
        other = tmp_path / "elsewhere" / path.name  # as a launcher would have it whose disk nobody shares
        there, link = tmp_path / "there", agents.links["localhost"]
        asked = link.request("find", 20.0, path=str(other), fingerprint=fingerprint(path), cache=str(there))
        assert not asked["found"]
        agents._send(link, path, lambda text, share: None)
        assert fingerprint(there / path.name) == fingerprint(path)
        assert all((there / path.name / name).read_bytes() == (path / name).read_bytes() for name in FILES)
        assert not list(there.glob("*.partial*"))
        agents.give_data(other, fingerprint(path), str(there), lambda text, share: None)
        assert agents.reports["localhost"].data == "the same" and not agents.faults


def test_why_data_cannot_be_written_on_a_host_is_told(tmp_path: Path) -> None:
    path = prepare({**DATA, "cache": str(tmp_path / "own")})
    (tmp_path / "file").touch()
    with agents_of(tmp_path) as agents:
        lacking, cache = tmp_path / "elsewhere" / path.name, tmp_path / "file" / "cache"
        link = agents.links["localhost"]
        link.request("find", 20.0, path=str(lacking), fingerprint=fingerprint(path), cache=str(cache))
        with pytest.raises(ClusterError, match=r"localhost: the data cannot be written to \S+/file/cache \(Not a dir"):
            agents._send(link, path, lambda text, share: None)


def test_a_class_that_a_host_cannot_import_is_found_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "click_parts_here.py").write_text("class Model: pass\n")
    targets = {
        "mode.target": "collections.OrderedDict", "model.target": "click_parts_here.Model",
        "data.target": "no_such_package.Reader",
    }  # fmt: skip
    for environment, missing in (({}, ["model", "data"]), ({"PYTHONPATH": str(folder)}, ["data"])):
        with agents_of(tmp_path, environment) as agents:
            agents.check_imports(targets)
            assert [fault.split("import ")[1].split(".target")[0] for fault in agents.faults] == missing
            assert "data.target=no_such_package.Reader (ModuleNotFoundError: No module named" in agents.faults[-1]
            assert "install its package there" in agents.faults[-1]


def test_no_host_listens_for_others_after_the_check(tmp_path: Path) -> None:
    with agents_of(tmp_path) as agents:
        where = str(agents.links["localhost"].request("listen", 20.0)["address"])
        assert dial(where, agents.token, False).error == ""
        agents.lines()
        assert not agents.faults and dial(where, agents.token, False).error != ""


def test_damaged_data_are_refused(link: AgentConnection, tmp_path: Path) -> None:
    path = prepare({**DATA, "cache": str(tmp_path / "own")})
    settle(link)
    cache = str(tmp_path / "there")
    link.request("find", 20.0, path=str(tmp_path / "no" / path.name), fingerprint=fingerprint(path), cache=cache)
    for file in path.iterdir():
        data = file.read_bytes()
        link.send("piece", name=file.name, data=data[:-1] + b"?" if file.name == "ids.npy" else data, first=True)
    with pytest.raises(ClusterError, match="is damaged"):
        link.request("whole", 20.0)
    assert not [each for each in (tmp_path / "there").iterdir() if each.is_dir()]


def test_no_file_outside_a_cache_is_written(link: AgentConnection, tmp_path: Path) -> None:
    settle(link)
    link.request("find", 20.0, path=str(tmp_path / "x"), fingerprint="", cache=str(tmp_path / "there"))
    link.send("piece", name="../../evil", data=b"x", first=True)
    wait_for(lambda: link.lost_reason is not None, 20)
    assert not (tmp_path / "there").exists() and not (tmp_path / "evil").exists()


@pytest.fixture
def probe() -> Iterator[ReachabilityProbe]:
    made = ReachabilityProbe("127.0.0.1", bytes.fromhex(TOKEN))
    yield made
    made.close()


def test_a_probe_answers_only_who_has_the_token(probe: ReachabilityProbe) -> None:
    assert dial(probe.address, bytes.fromhex(TOKEN), False).error == ""
    assert dial(probe.address, bytes(32), False).error != ""
    probe.close()
    assert dial(probe.address, bytes.fromhex(TOKEN), False).error != ""


def test_a_line_is_measured(probe: ReachabilityProbe) -> None:
    line = dial(probe.address, bytes.fromhex(TOKEN), True)
    assert line.error == "" and line.latency_us > 0 and line.gbit > 0

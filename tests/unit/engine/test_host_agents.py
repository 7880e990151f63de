"""What doctor writes of lines between hosts, calibrate reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gbactl.engine import host_agents
from gbactl.engine.host_agents import HostAgents, HostFindings, NetworkParameters
from gbactl.engine.host_and_network_facts import LinkMeasurement, ReachabilityProbe
from gbactl.engine.preflight import LAUNCHER, HostReport
from gbactl.errors import UsageError


def examined() -> HostFindings:
    lines = {
        "a": {"b": LinkMeasurement(50.0, 9.0), "c": LinkMeasurement(70.0, 1.0)},
        "b": {"a": LinkMeasurement(60.0, 8.0), "c": LinkMeasurement(error="no route")},
    }
    return HostFindings({host: HostReport(host, lines=found) for host, found in lines.items()})


def test_medians_over_the_pairs_that_answer() -> None:
    assert examined().pairs == [("a", "b", 50.0, 9.0), ("a", "c", 70.0, 1.0), ("b", "a", 60.0, 8.0)]
    assert examined().network == NetworkParameters(60.0, 8.0)
    assert HostFindings({"a": HostReport("a")}).network is None


def test_a_host_that_takes_its_name_for_loopback_is_advised_and_no_fault() -> None:
    """Only modes with an all-reduce need it; `gbactl train` refuses those."""
    facts = {"name": "alpha", "own_name": "127.0.1.1"}
    found = HostFindings(
        {"a": HostReport("a", facts, "10.0.0.7"), "b": HostReport("b", {**facts, "own_name": "10.0.0.8"}, "10.0.0.8")}
    )
    (told,) = found.advice
    assert told.startswith("For an all-reduce: Host a takes its own name alpha for 127.0.1.1")
    assert "`10.0.0.7 alpha`" in told
    gone = HostReport("gone", faults=["no answer"])
    assert HostFindings({"gone": gone, "b": found.reports["b"]}).advice == []
    assert HostFindings({"a": found.reports["a"]}).advice == []  # no ring to other hosts


def test_long_host_names_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    far, near = "node-" + "x" * 95, "node-" + "y" * 95
    host_agents.print_lines(HostFindings({far: HostReport(far, lines={near: LinkMeasurement(50.0, 9.0)})}))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert "".join(row[0] for row in rows) == far and "".join(row[1] for row in rows) == near


def test_a_written_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(host_agents.text(examined()))
    assert host_agents.read(path) == {"latency_us": 60.0, "bandwidth_gbit": 8.0}
    assert "# a -> c: 70.0 us, 1 Gbit/s" in path.read_text()


@pytest.mark.parametrize(
    "text", ["", "latency_us: 5", "latency_us: 5\nbandwidth_gbit: -1", "- 1", "latency_us: [", "a: b: c"]
)
def test_a_file_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="--network"):
        host_agents.read(path)


def test_where_only_the_engine_knows_the_hosts_the_launcher_is_at_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_agents, "is_here", lambda host: host == "here")
    monkeypatch.setattr(host_agents, "address_of_host", lambda host: None)
    monkeypatch.setattr(host_agents, "address_of_own_name", lambda: "10.1.2.3")
    for hosts, address in ((["here", "pod-0"], "10.1.2.3"), (["here"], "127.0.0.1")):
        agents = HostAgents(hosts, str, tmp_path, 1.0)
        for report in agents.reports.values():
            report.facts = {"client": None}
        assert agents._own_address() == address


def test_hosts_do_not_all_dial_the_same_one_at_the_same_time(tmp_path: Path) -> None:
    """A probe serves 64 at once, and closes the connections of others."""
    names, dialled = [f"h{n}" for n in range(5)], dict[str, list[str]]()
    agents = HostAgents(names, str, tmp_path, 1.0)
    agents.bind, probe = "127.0.0.1", ReachabilityProbe("127.0.0.1", agents.token)

    def request(host: str, name: str, _: float, **fields: Any) -> dict[str, Any]:
        dialled.setdefault(host, []).extend(fields.get("targets", ()))
        return {"address": probe.address, "lines": {}}

    agents.links = {name: SimpleNamespace(host=name, request=partial(request, name)) for name in names}  # type: ignore[misc]
    try:
        agents.lines()
    finally:
        probe.close()
    assert not agents.faults and all(len(set(places)) == 5 for places in zip(*dialled.values(), strict=True))
    assert all({host, *others} == {*names, LAUNCHER} for host, others in dialled.items())


def test_nothing_measured_nothing_written() -> None:
    with pytest.raises(UsageError, match="No connection between two hosts was measured"):
        host_agents.text(HostFindings({"a": HostReport("a")}))

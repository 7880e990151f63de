"""Each fault of a host is one sentence that names it and says what to do."""

from __future__ import annotations

import pytest

from gbactl.engine import preflight
from gbactl.engine.bandwidth_probe import LinkMeasurement
from gbactl.engine.preflight import HostReport

HERE = {"gbactl": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1"}


def test_versions() -> None:
    assert preflight.versions("b", HERE, HERE) == []
    other = {**HERE, "torch": "2.12.0", "horovod": ""}
    assert preflight.versions("b", other, HERE) == [
        "Host b has torch 2.12.0, and this machine has 2.13.0; install the same version there: "
        "pip install torch==2.13.0.",
        "Host b has no Horovod, and this machine has 0.28.1; build the same version there: "
        "python -m gbactl.install.horovod.",
    ]


def test_memory() -> None:
    assert preflight.memory("b", 5 << 20, 5 << 20) == [] and preflight.memory("b", 0, 1 << 40) == []
    (sentence,) = preflight.memory("b", 5 << 20, 6 << 20)
    assert sentence.startswith("Host b has 5 MiB of memory free, and its servers and workers need 6;")


def test_lines() -> None:
    targets = {"a": "10.0.0.2:4711", "c": "10.0.0.4:4712"}
    (sentence,) = preflight.lines("b", targets, {"a": LinkMeasurement(), "c": LinkMeasurement(error="timed out")})
    assert sentence.startswith("Host b does not reach c at 10.0.0.4:4712 (timed out); let TCP through")


def test_the_launcher_s_own_lines() -> None:
    assert preflight.unreached("b", "10.0.0.3:4711", LinkMeasurement()) == []
    (sentence,) = preflight.unreached("b", "10.0.0.3:4711", LinkMeasurement(error="no route to host"))
    assert sentence.startswith("This machine does not reach host b at 10.0.0.3:4711 (no route to host); let TCP")


def test_a_ring_that_nobody_reaches() -> None:
    assert preflight.ring("b", {"name": "node-b", "own_name": "10.0.0.3"}, "10.0.0.3") == []
    (sentence,) = preflight.ring("b", {"name": "node-b", "own_name": "127.0.1.1"}, "10.0.0.3")
    assert sentence.startswith("Host b takes its own name node-b for 127.0.1.1,")
    assert "the line `10.0.0.3 node-b`" in sentence


def test_reaching() -> None:
    told = preflight.unreachable("b", "ssh: connect to host b port 22: Connection refused", "its agent has ended")
    assert told == (
        "Host b cannot be reached (ssh: connect to host b port 22: Connection refused); see that `ssh b true` works "
        "without a question."
    )


@pytest.mark.parametrize(
    ("said", "far"),
    [
        ("W3 (pid 7 on c) failed: W3 lost its connection to S1.", "b"),
        ("W3 (pid 7 on c) failed: No gbactl process answers at 10.0.0.3:4711 ([Errno 113] No route to host).", "b"),
        ("W3 (pid 7 on c) failed: W3 lost its connection to S0.", None),  # on the same host
        ("W3 (pid 7 on c) failed: W3 lost its connection to the coordinator.", None),
        ("W3 (pid 7 on c) was killed by SIGKILL.", None),
    ],
)
def test_hosts_that_lose_each_other(said: str, far: str | None) -> None:
    found = preflight.cut("c", said, {"S0": "c", "S1": "b", "10.0.0.3": "b"})
    told = f"Host c does not reach host {far}, though this machine reaches both; see what is between them."
    assert found == ("" if far is None else told)


def test_the_table_s_line() -> None:
    found = HostReport("b", {**HERE, "cores": 4, "memory": 7 << 30}, "10.0.0.3", "eth0", "the same", 1 << 30)
    assert found.cells() == [
        "b", "10.0.0.3", "4", "0.1.0 3.11.2 2.13.0 0.28.1", "7,168 of 1,024 needed", "the same", "ok",
    ]  # fmt: skip
    found.faults.append("Something.")
    assert found.cells()[-1] == "see below"
    assert HostReport("c").cells()[-1] == "no answer"
    assert len(HostReport("c").cells()) == len(found.cells()) == len(preflight.HEADINGS)

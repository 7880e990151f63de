"""Competing processes: where they are put, that they are busy, and that they are gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, from_dict
from gbactl.errors import ConfigError
from gbactl.faults import cpu_hogs as module
from gbactl.faults.cpu_hogs import CpuHogs, HogPlacement, hogged, place

CORE = min(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else 0


def run(*plans: dict[str, Any], **cluster: Any) -> RunConfig:
    return from_dict({"faults": {"plans": list(plans)}, "cluster": {"workers": 4, **cluster}})


def hogs_of(cfg: RunConfig) -> CpuHogs:
    return CpuHogs(cfg.fault_plan(), cfg.pinned)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which four workers share cores 0 and 1."""
    monkeypatch.setattr(module, "available_cores", lambda: [0, 1])


@pytest.mark.usefixtures("two_cores")
def test_a_hog_is_put_where_its_workers_are() -> None:
    cfg = run({"kind": "hog", "workers": [1, 3], "processes": 2, "from": 1, "until": 9}, {"kind": "hog", "cores": [0]})
    plan = cfg.fault_plan()
    assert place(plan, cfg.pinned) == [HogPlacement(1, 1, 9), HogPlacement(1, 1, 9), HogPlacement(0, 0.0, None)]
    assert hogged(plan, cfg.pinned) == {0, 1, 2, 3}
    assert hogged(run({"kind": "hog", "workers": [1]}).fault_plan(), pinned=True) == {1, 3}
    assert hogged(run().fault_plan(), pinned=True) == frozenset()


@pytest.mark.usefixtures("two_cores")
def test_what_cannot_be_placed_is_said_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"pinned.*type the key cores instead, with some of: 0, 1"):
        hogs_of(run({"kind": "hog", "workers": [1]}, pin="off"))
    with pytest.raises(ConfigError, match="names core 7; the cores there are: 0, 1"):
        hogs_of(run({"kind": "hog", "cores": [7]}))
    unpinned = run({"kind": "hog", "cores": [0]}, pin="off")
    assert hogged(unpinned.fault_plan(), unpinned.pinned) == {0, 1, 2, 3}


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_hog_takes_the_cpu_of_its_core_until_it_is_stopped() -> None:
    hogs = hogs_of(run({"kind": "hog", "cores": [CORE]}))
    assert hogs.running == []
    hogs.start()
    hogs.start()  # once
    try:
        (process,) = hogs.running
        assert within(30, lambda: cpu_seconds(process.pid) > 0.3)
        assert os.sched_getaffinity(process.pid) == {CORE}
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        hogs.stop()
    assert process.returncode == -signal.SIGTERM and hogs.running == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a window of a real process")
def test_a_hog_ends_with_its_window() -> None:
    hogs = hogs_of(run({"kind": "hog", "cores": [CORE], "from": 0.0, "until": 0.1}))
    hogs.start()
    (process,) = hogs.running
    try:
        assert process.wait(30) == 0
    finally:
        hogs.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal")
def test_a_hog_dies_with_its_launcher() -> None:
    code = (
        "import sys, time\nfrom gbactl.config import from_dict\nfrom gbactl.faults.cpu_hogs import CpuHogs\n"
        f"c = from_dict({{'faults': {{'plans': [{{'kind': 'hog', 'cores': [{CORE}]}}]}}}})\n"
        "h = CpuHogs(c.fault_plan(), c.pinned)\n"
        "h.start()\nprint(h.running[0].pid, flush=True)\ntime.sleep(600)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    try:
        assert within(30, lambda: cpu_seconds(pid) > 0.2)
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()
    gone = within(30, lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())
    assert gone

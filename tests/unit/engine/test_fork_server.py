"""Nodes that are forked are what started ones are: own children, sessions, names, descriptors and environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gbactl.config import ModelConfig, RunConfig, to_dict
from gbactl.engine import fork_server
from gbactl.engine.fork_server import (
    ForkedProcess,
    ForkServer,
    Started,
    send_startup_document,
    start_node,
    thread_environment,
)
from gbactl.errors import ConfigError
from gbactl.wire.startup_document import StartupDocument
from tests.support.processes import SECONDS, alive, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes are forked on Linux only")


@pytest.fixture
def server() -> Iterator[ForkServer]:
    fork_server.open_fork_server()
    fork_server.await_fork_server()
    assert fork_server._server is not None
    yield fork_server._server


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def node(run_dir: Path, *fds: int, threads: int = 1) -> Started:
    return start_node(thread_environment(threads), run_dir / "logs" / "C.log", fds)


def shown(process: Started) -> list[str]:
    """The end of its arguments, as ps shows them."""
    return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").split("\0")[-3:]


def settled(process: Started) -> bool:
    """Whether it is ready to be told what it is to be."""
    return shown(process) == ["gbactl.nodes.child_main", str(os.getpid()), "C"]


def links(process: Started) -> dict[int, str]:
    folder = Path(f"/proc/{process.pid}/fd")
    return {int(entry.name): os.readlink(entry) for entry in folder.iterdir()}


def test_the_server_has_one_thread_and_is_kept(server: ForkServer) -> None:
    assert len(list(Path(f"/proc/{server.process.pid}/task").iterdir())) == 1
    fork_server.open_fork_server()
    assert fork_server._server is server


def test_the_server_counts_the_dense_values_of_a_model(server: ForkServer) -> None:
    cfg = ModelConfig("dcnv2", dim=4, hidden=[8], first_order=False, options={"layers": 1})
    assert server.dense_size(ModelConfig("youtube_dnn", dim=1, hidden=[]), 2, 3, (None, 0)) == 2 * 3 + 3 + 2 + 2
    assert server.dense_size(cfg, 2, 3) == 1 + (14 + 1) * 14 + (14 + 1) * 8 + 9
    with pytest.raises(ConfigError, match=r"^model\.layers=0 is not a whole number"):
        server.dense_size(ModelConfig("dcnv2", options={"layers": 0}), 2, 3)


def test_a_forked_node_is_a_child_with_a_session_and_a_name_of_its_own(server: ForkServer, run_dir: Path) -> None:
    made = node(run_dir)
    assert isinstance(made, ForkedProcess)
    wait_for(lambda: settled(made))
    assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{made.pid}/status").read_text()
    assert os.getsid(made.pid) == made.pid and made.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        made.wait(0.01)
    made.kill()
    assert made.wait(SECONDS) == made.poll() == -signal.SIGKILL
    made.terminate()  # hits nobody any more


def test_it_has_the_descriptors_that_it_was_given_and_no_others(server: ForkServer, run_dir: Path) -> None:
    given = [os.open(os.devnull, os.O_RDONLY), os.open(sys.executable, os.O_RDONLY)]
    made = node(run_dir, given[1], given[0])
    wait_for(lambda: settled(made))
    found = links(made)
    made.kill()
    assert made.wait(SECONDS)
    log = str(run_dir / "logs" / "C.log")
    assert found.pop(0).startswith("pipe:")
    assert found == {1: log, 2: log, given[0]: os.devnull, given[1]: os.path.realpath(sys.executable)}
    for fd in given:
        os.close(fd)


def test_it_has_its_own_environment_and_folder_and_its_end_is_seen(
    server: ForkServer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir)
    made = node(run_dir, threads=3)
    boot = StartupDocument("coordinator", 0, "", "", "", "", to_dict(RunConfig()))  # it works where this process does
    send_startup_document(made, boot.dumps())
    assert made.wait(SECONDS) == 1
    log = (run_dir / "logs" / "C.log").read_text()
    assert f"pid {made.pid}, threads 3" in log and " C CRITICAL " in log


def test_a_server_that_is_killed_takes_nobody_with_it_and_nodes_are_started_one_by_one(
    server: ForkServer, run_dir: Path
) -> None:
    forked = node(run_dir)
    wait_for(lambda: settled(forked))
    server.process.kill()
    server.process.wait()
    started = node(run_dir)
    try:
        assert isinstance(started, subprocess.Popen) and fork_server._server is None
        wait_for(lambda: settled(started))
        assert forked.poll() is None and alive(forked.pid)
    finally:
        for process in (forked, started):
            process.kill()
            process.wait()
    fork_server.open_fork_server()
    fork_server.await_fork_server()
    assert fork_server._server is not None and fork_server._server is not server


def test_a_server_that_cannot_import_is_done_without(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server.close_fork_server()
    (run_dir / "torch.py").write_text("raise ImportError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(run_dir), prepend=os.pathsep)
    fork_server.open_fork_server()
    fork_server.await_fork_server()
    assert fork_server._server is None

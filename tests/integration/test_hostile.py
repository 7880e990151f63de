"""Runs on a network that others are on, too: strangers stand at every door, and what is sent is encrypted."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from gbactl.wire.auth import STRANGE
from tests.support.processes import Launched, Launcher, environment, wait_for
from tests.support.sockets import LOOPBACK, listeners

ROWS = 240_000  # seconds of training: time to stand at every door of it
TRAINING = ("mode=gba", f"data.rows_per_day={ROWS}", "model.hidden=[256,256]", "cluster.transport=tcp")
ENCRYPTED = "transport.encrypt=true"


def doors(launched: Launched) -> list[int]:
    """The ports that a run's nodes listen on."""
    return [int(place.split(":")[1], 16) for pid in launched.nodes() for place in listeners(pid)]


@contextmanager
def strangers(ports: list[int], each: int) -> Iterator[list[socket.socket]]:
    """So many at every door, who say nothing, or half of something."""
    with ExitStack() as stack:
        standing = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=60)))
            for port in ports
            for _ in range(each)
        ]
        for half in standing[::2]:
            half.sendall(b"\x16\x03\x01")
        yield standing


@pytest.mark.beside
@pytest.mark.slow
def test_a_worker_dies_while_strangers_stand_at_every_door(launcher: Launcher) -> None:
    """The one in its place gets in, and every sample counts once."""
    launched = launcher.start(*TRAINING, ENCRYPTED)
    launched.training()
    with strangers(doors(launched), 150):
        subprocess.run(["kill", "-9", str(launched.node("W1"))], check=True)
        wait_for(lambda: (launched.run_dir / "logs" / "W1-1.log").exists())
        done = launched.finish()
    assert done.code == 0, done.err
    assert sum(done.result["samples"][fate] for fate in ("trained", "decayed", "lost")) == ROWS
    assert done.result["lost_workers"][0]["process"] == "W1"
    assert done.result["refused_frames"] == sum(done.result["refused"].values()) >= 3 * (150 - 128)


@pytest.mark.beside
@pytest.mark.slow
def test_who_does_not_encrypt_is_refused_and_counted(launcher: Launcher) -> None:
    launched = launcher.start(*TRAINING, "data.rows_per_day=60000", ENCRYPTED)
    launched.training()
    for port in doors(launched):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    done = launched.finish()
    assert done.code == 0, done.err
    assert done.result["refused"] == {STRANGE: 3} and done.result["refused_frames"] == 3


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_encryption_changes_no_bit(launcher: Launcher, transport: str) -> None:
    common = ("mode=sync", "collective=shm", f"cluster.transport={transport}", "seed=3")
    plain, encrypted = launcher.train(*common), launcher.train(*common, ENCRYPTED)
    assert plain["checksums"] == encrypted["checksums"] and plain["checksums"]["model"]
    assert encrypted["refused"] == {}


@pytest.mark.beside
@pytest.mark.slow
def test_the_mlflow_ui_listens_on_loopback_alone(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    ui = subprocess.Popen(
        [sys.executable, "-m", "gbactl", "ui", "--port", str(port)], cwd=tmp_path, env=environment(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert ui.stdout is not None
        assert any("Open http" in line for line in ui.stdout)
        found = {place for pid in family(ui.pid) for place in listeners(pid)}
        assert f"0100007F:{port:04X}" in found
        assert {place.split(":")[0] for place in found} <= LOOPBACK
    finally:
        ui.terminate()
        ui.wait(30)


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(each for path in tasks for child in path.read_text().split() for each in family(int(child)))]

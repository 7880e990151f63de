"""What a run does to the machine: loopback only, no grpc, four at once in one directory."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.support.processes import Launched, Launcher
from tests.support.slow import slow
from tests.support.sockets import LOOPBACK, listeners


def watch(launched: Launched) -> dict[int, set[str]]:
    """pid -> addresses, gathered until the run ends."""
    found: dict[int, set[str]] = {}
    while launched.process.poll() is None:
        for pid in [launched.process.pid, *launched.nodes()]:
            found.setdefault(pid, set()).update(listeners(pid))
    return found


@pytest.mark.beside
@pytest.mark.parametrize(
    "overrides",
    [
        slow(("mode=gba", "cluster.transport=tcp")),
        slow(("mode=sync", "collective=gloo", "cluster.transport=tcp")),
        ("mode=sync", "collective=horovod", "cluster.transport=tcp"),
    ],
)
def test_every_process_listens_on_loopback_only(launcher: Launcher, overrides: tuple[str, ...]) -> None:
    if "collective=horovod" in overrides:
        pytest.importorskip("horovod.torch")
    launched = launcher.start(*overrides)
    found = watch(launched)
    done = launched.finish()
    assert done.code == 0, done.err
    assert len(found) == 6
    assert {place.split(":")[0] for places in found.values() for place in places} <= LOOPBACK
    assert sum(bool(addresses) for addresses in found.values()) >= 3, "coordinator and servers listen"


@pytest.mark.beside
@pytest.mark.slow
def test_shared_memory_needs_no_port(launcher: Launcher) -> None:
    """On one host the nodes meet at Unix sockets without a file."""
    launched = launcher.start("mode=gba")
    found = watch(launched)
    assert launched.finish().code == 0
    assert not any(found.values())


@pytest.mark.beside
def test_strangers_who_knock_during_a_run_are_counted_and_change_nothing(launcher: Launcher) -> None:
    launched = launcher.start("mode=gba", "data.rows_per_day=60000", "model.hidden=[256,256]", "cluster.transport=tcp")
    launched.training()
    doors = [(pid, place) for pid in launched.nodes() for place in listeners(pid)]
    assert len(doors) == 3, "coordinator and two servers"
    for words in (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b"", bytes(4000)):
        for _, place in doors:
            with socket.create_connection(("127.0.0.1", int(place.split(":")[1], 16)), timeout=60) as stranger:
                stranger.sendall(words)
    done = launched.finish()
    assert done.code == 0, done.err
    assert done.result["refused_frames"] == 9
    assert done.result["samples"]["trained"] + done.result["samples"]["decayed"] == 60000
    for name in ("C", "S0", "S1"):
        assert "refused" in (done.run_dir / "logs" / f"{name}.log").read_text()


HOOK = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "grpc":
            open(os.path.join(os.environ["WATCHED"], f"grpc-{os.getpid()}"), "w").write(" ".join(sys.argv))
sys.meta_path.insert(0, Watch())
def seen():
    open(os.path.join(os.environ["WATCHED"], f"seen-{os.getpid()}"), "w").close()
seen()
os.register_at_fork(after_in_child=seen)
"""


@pytest.mark.beside
def test_no_process_of_a_run_imports_grpc_or_lets_the_key_be_read(launcher: Launcher, tmp_path: Path) -> None:
    """Neither on a command line nor in an environment, as raw or as hexadecimal bytes of its length."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "watched").mkdir()
    path = os.pathsep.join([str(tmp_path / "site"), launcher.environment["PYTHONPATH"]])
    launched = launcher.start(
        "mode=sync", "collective=gloo", tracking=True, PYTHONPATH=path, WATCHED=str(tmp_path / "watched")
    )
    launched.node("W0")
    secrets = re.compile(rb"\b[0-9a-f]{64}\b")
    for pid, name in itertools.product(launched.nodes(), ("cmdline", "environ")):
        with contextlib.suppress(OSError):
            assert not secrets.search(Path(f"/proc/{pid}/{name}").read_bytes())
    done = launched.finish()
    assert done.code == 0, done.err
    seen = {path.name for path in (tmp_path / "watched").iterdir()}
    nodes = [launched.node(name) for name in ("C", "S0", "S1", "W0", "W1")]
    assert {f"seen-{pid}" for pid in [launched.process.pid, *nodes]} <= seen
    assert not {name for name in seen if name.startswith("grpc")}


@pytest.mark.beside
@pytest.mark.slow
def test_four_launchers_at_once_on_an_empty_store(launcher: Launcher, tmp_path: Path) -> None:
    small = ("data.rows_per_day=1000", "cluster.workers=1", "cluster.servers=1", "cluster.start_timeout=100")
    started = [launcher.start(*small, "mode=async", f"seed={seed}", tracking=True) for seed in range(4)]
    finished = [launched.finish(200) for launched in started]
    assert [done.code for done in finished] == [0] * 4, [done.err for done in finished]
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        runs = dict(connection.execute("select run_uuid, status from runs").fetchall())
        params = connection.execute("select value from params where key = 'seed'").fetchall()
    assert runs == {done.result["run_id"]: "FINISHED" for done in finished}
    assert sorted(value for (value,) in params) == ["0", "1", "2", "3"]

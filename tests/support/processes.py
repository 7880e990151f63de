"""Starts `gbactl train` as a user would, and sees to it that nothing of it is left behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gbactl.config import RunConfig
from tests.support import commands
from tests.support.commands import ROOT

Process = subprocess.Popen[str] | commands.Command
SHM = Path("/dev/shm")
FORK_SERVER = "gbactl.nodes.child_main\0fork-server"
SECONDS = 120.0
SMALL = (
    "experiment=smoke", "data.days=2", "data.rows_per_day=4000", "data.max_cardinality=300", "model.dim=4",
    "model.hidden=[32]", "train.global_batch=256", "train.eval_batch=1024", "cluster.workers=2",
    "cluster.threads=1",
)  # fmt: skip


def launch_of(cfg: RunConfig, run_dir: Path) -> Any:
    """A launcher, as an engine sees it, of a run without data."""
    return SimpleNamespace(cfg=cfg, dataset=SimpleNamespace(path=run_dir), run_dir=run_dir, key=b"")


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(launcher: int, module: str = "gbactl.nodes.child_main") -> list[int]:
    """Pids of the nodes (or others) that a launcher started: its pid follows the module in their arguments."""
    mark = f"{module}\0{launcher}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "cmdline").read_bytes() and alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first true value of a condition. Fails the test when the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:.0f} s"
        time.sleep(0.02)
    return value


def seen(terminal: int, text: str, seconds: float = 60.0) -> str:
    """Read a terminal until a text was shown; return all that was shown."""
    shown, deadline = "", time.monotonic() + seconds
    readable = select.poll()  # select refuses descriptors above 1,023
    readable.register(terminal, select.POLLIN)
    while text not in shown:
        left = deadline - time.monotonic()
        assert left > 0, shown[-2000:]
        if readable.poll(1000 * left):
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


@dataclass
class Finished:
    """What a run left."""

    code: int
    out: str
    err: str
    run_dir: Path
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        found: dict[str, Any] = json.loads((self.run_dir / "result.json").read_text())
        return found

    def accounted(self, samples: int) -> Finished:
        """See that it ended well and read so many samples, each of which has one fate."""
        assert self.code == 0, self.err
        counted = self.result["samples"]
        assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == samples
        return self


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Two processes that take every core they get."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@dataclass
class Launched:
    """A running `gbactl train`."""

    process: Process
    run_dir: Path
    pids: set[int] = field(default_factory=set)

    def node(self, name: str) -> int:
        """The pid of a node, as its log tells it."""
        log = self.run_dir / "logs" / f"{name}.log"
        found = wait_for(lambda: log.exists() and re.search(r"pid (\d+)", log.read_text()))
        return int(found[1])

    def nodes(self) -> list[int]:
        """Pids of all nodes there are now."""
        now = children_of(self.process.pid)
        self.pids |= set(now)
        return now

    def training(self) -> None:
        """Wait until steps are being applied."""
        log = self.run_dir / "events.log"
        wait_for(lambda: self.process.poll() is not None or (log.exists() and log.stat().st_size > 4000))
        assert self.process.poll() is None, self.process.communicate()[1]
        self.nodes()

    def hangs_and_wakes_up(self, name: str) -> None:
        """Stop a node until another one is in its place, and let it go on: it has to end by itself."""
        pid = self.node(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: (self.run_dir / "logs" / f"{name}-1.log").exists(), 20)
            assert alive(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not alive(pid), 20)

    def finish(self, seconds: float = SECONDS) -> Finished:
        """Wait for the end."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=seconds)
        return Finished(self.process.returncode, out, err, self.run_dir, time.monotonic() - began)

    def left_behind(self) -> list[str]:
        """Nodes that still live and shared memory that still has a name."""
        logs = [path.read_text(errors="replace") for path in self.run_dir.glob("logs/*.log")]
        self.pids |= {int(pid) for log in logs for pid in re.findall(r" pid (\d+)", log)}
        owners = {str(pid) for pid in {self.process.pid, *self.pids}}
        memory = [path.name for path in SHM.glob("gbactl-*") if path.name.split("-")[1] in owners]
        left = [*children_of(self.process.pid), *children_of(self.process.pid, FORK_SERVER)]
        return memory + [f"pid {pid}" for pid in left]

    def reap(self) -> list[str]:
        """End it whatever it does; returns what had to be cleaned away after a grace period."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()
        deadline = time.monotonic() + 10
        while (left := self.left_behind()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in children_of(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        return left


class Launcher:
    """Starts trainings in one directory."""

    def __init__(self, cwd: Path, environment: dict[str, str]) -> None:
        self.cwd = cwd
        self.environment = environment
        self.before: tuple[str, ...] = ()  # of the command: where it runs
        self.started: list[Launched] = []

    def start(self, *overrides: str, small: bool = True, tracking: bool = False, **environment: str) -> Launched:
        """Start one; its run directory is runs/<number>."""
        run_dir = self.cwd / "runs" / str(len(self.started))
        arguments = [
            *(SMALL if small else ()),
            f"run_dir={run_dir}",
            f"tracking.enabled={tracking}",
            *overrides,
        ]
        launched = Launched(self.begin("train", *arguments, **environment), run_dir)
        self.started.append(launched)
        return launched

    def begin(self, *arguments: str, **environment: str) -> Process:
        """Start a command, in a forked process unless it is to run elsewhere, or with an environment of its own."""
        if not self.before and not environment:
            return commands.Command(arguments, self.cwd, self.environment)
        return subprocess.Popen(
            [*self.before, sys.executable, "-m", "gbactl", *arguments],
            cwd=self.cwd, env={**self.environment, **environment}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def gbactl(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        process = self.begin(*arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, process.wait(), out, err)

    def train(self, *overrides: str, **more: Any) -> dict[str, Any]:
        """Run one to its good end; returns result.json."""
        done = self.start(*overrides, **more).finish()
        assert done.code == 0, done.err
        return done.result

    def replayed(self, run_dir: Path) -> dict[str, Any]:
        """The verdict of a replay."""
        done = self.gbactl("replay", str(run_dir), "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def environment(cache: Path) -> dict[str, str]:
    """What a launcher gets: the tests' own data cache, no tracking store of the user's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GBACTL_", "OMP_", "MKL_"))}
    return {**kept, "PYTHONPATH": ROOT, "GBACTL_CACHE": str(cache)}


def collective() -> str:
    """The default all-reduce where it is installed, else the other."""
    try:
        import horovod.torch  # noqa: F401
    except ImportError:
        return "gloo"
    return "horovod"

"""The child processes of a run: started together, watched, and all gone at the end whatever happens; and what an engine
is: a place (config/place.py) that has runs trained there.

To add one: engine/NAME.py with its PLACE, which `train`s, conf/cluster/NAME.yaml, one test.
tests/integration/test_additions.py does it.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from gbactl.collective.rendezvous_base import Seat
from gbactl.config import RunConfig
from gbactl.coordinator.journal import NAME as JOURNAL
from gbactl.coordinator.journal import kept
from gbactl.data.dataset import Dataset
from gbactl.engine.fork_server import await_fork_server, start_node, tell, thread_environment
from gbactl.engine.signals import whole
from gbactl.nodes.process import FAILED_LINE, NOTICED_LINE
from gbactl.processor import available_cores
from gbactl.wire.addresses import address_of, listen, local
from gbactl.wire.bootstrap import Bootstrap
from gbactl.wire.messages import Event
from gbactl.worker.core_sharing import open_board, places

GRACE_SECONDS = 3.0
MOST_LIVES = 3  # coordinators one after the other that are killed before they go on


class Launch(Protocol):
    """The launcher's side of a run (launch/run.py), as an engine needs it. `config`: the run's, as its processes get
    it; `key`: what they know each other by."""

    cfg: RunConfig
    config: dict[str, Any]
    dataset: Dataset
    run_dir: Path
    key: bytes
    show: Any

    def follow(self, children: Children) -> None:
        """Have real processes train until there is a result. Raises GbactlError where one ends badly."""

    def on_event(self, event: Event) -> None:
        """Take what a coordinator in this process tells."""

    def look_at_signals(self, tell: Callable[[Event], None]) -> None:
        """Tell such a coordinator what the user wishes; to be called again and again."""


class Engine(Protocol):
    """A place, as a launcher uses it."""

    def train(self, launch: Launch) -> None:
        """Have a run trained. Raises GbactlError."""


def engine_of(cfg: RunConfig) -> Engine:
    """The engine of the place where a run's processes are."""
    return cast(Engine, cfg.place)


class Process(Protocol):
    """A process here (subprocess.Popen) or on another host."""

    @property
    def pid(self) -> int:
        """Its number on its host."""

    def poll(self) -> int | None:
        """None while it runs; else its exit code, or minus the signal that killed it."""

    def send_signal(self, sig: int, /) -> None:
        """Signal it, if it still runs."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""


@dataclass
class Child:
    """A started process and its name (W3, S0, C)."""

    name: str
    process: Process
    log: Path

    def exit_sentence(self) -> str | None:
        """Why it ended, in one sentence; None while it runs or if it ended well."""
        code = self.process.poll()
        if code is None or code == 0:
            return None
        if code < 0:
            return f"{self.name} (pid {self.process.pid}) was killed by {_signal(-code)}."
        return f"{self.name} (pid {self.process.pid}) failed: {self._reason()}"

    def only_noticed(self) -> bool:
        """Whether it ended because another process was gone."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return False
        return NOTICED_LINE in text and FAILED_LINE not in text

    def _reason(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        told = [line.split(mark, 1)[1] for mark in (NOTICED_LINE, FAILED_LINE) for line in lines if mark in line]
        return told[-1] if told else f"it left no message; look into {self.log}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Children:
    """Starts and stops the processes of one run."""

    def __init__(self, cfg: RunConfig, run_dir: Path, key: bytes, dataset: Path, config: Mapping[str, object]) -> None:
        self.cfg, self.run_dir, self.key, self.dataset, self.config = cfg, run_dir, key, dataset, config
        self.running: list[Child] = []
        self.buried: list[Child] = []  # gone, or taken for gone; nobody waits for them
        self.settled = False  # everybody has come: from now on the coordinator judges who may be lost
        self.coordinator = ""
        self._environments: list[dict[str, str]] = []
        self._places: list[tuple[int, int, int]] = []
        self._board: BinaryIO | None = None
        self._epochs: Counter[str] = Counter()
        self._listener: socket.socket | None = None  # the coordinator's
        self._left, self._coordinators = MOST_LIVES, 0

    @property
    def bind(self) -> str:
        """Where coordinator and rendezvous listen."""
        return self.cfg.cluster.bind

    @property
    def seats(self) -> list[Seat] | None:
        """Rank -> where it sits, for an all-reduce; None where all sit on this host."""
        return None

    def prepare(self) -> None:
        """What has to be done before anything starts."""

    def start(self, worker_environment: list[dict[str, str]]) -> None:
        """Start coordinator, servers and workers."""
        await_fork_server()
        listener = self._listener = listen(local(self.bind, self.cfg.cluster.transport))
        self.coordinator = address_of(listener)
        self._spawn("coordinator", 0, 1, {}, listener)
        if not kept(self.cfg):
            listener.close()
        for index in range(self.cfg.cluster.servers):
            self._start_server(index)
        self._start_workers(worker_environment)

    def _start_workers(self, environments: list[dict[str, str]]) -> None:
        """Workers that must share the cores get a place each (see worker/core_sharing.py)."""
        cores, self._environments = available_cores(), environments
        self._board = board = open_board(len(cores))
        self._places = places(len(environments), cores, board) if self.cfg.cluster.pin == "auto" else []
        for index in range(len(environments)):
            self._start_worker(index)

    def _start_worker(self, index: int) -> None:
        place, epoch = self._places[index] if self._places else None, self._epochs[f"W{index}"]
        self._spawn("worker", index, self.cfg.threads, self._environments[index], place=place, epoch=epoch)

    def _start_server(self, index: int) -> None:
        self._spawn("server", index, 1, {}, epoch=self._epochs[f"S{index}"])

    def bury(self, name: str, kill: bool = False) -> None:
        """A process is gone for the run: nothing that becomes of it is a failure. It may still be a process, which
        hangs: `kill` it where it could write into what others share."""
        found = [child for child in self.running if child.name == name]
        for child in found if kill else ():
            child.process.kill()
        self.buried += found
        self.running = [child for child in self.running if child.name != name]

    @property
    def revivable(self) -> bool:
        """Whether the coordinator was killed and another one can take its place."""
        code = self.running[0].process.poll() if self.running else None
        killed = code is not None and code < 0
        return killed and self.settled and self._left > 0 and kept(self.cfg) and (self.run_dir / JOURNAL).exists()

    def revive(self, failure: str, sign: float) -> None:
        """Start another coordinator, which listens where the one before did, with everybody who has dialled since.

        `sign`: when the last sign of life of that one was, by the machine's clock."""
        self.buried.append(self.running.pop(0))
        self._left -= 1
        self._coordinators += 1
        missed = (time.monotonic(), failure, sign)
        self._spawn("coordinator", 0, 1, {}, self._listener, epoch=self._coordinators, missed=missed)
        self.running.insert(0, self.running.pop())

    def revived(self) -> None:
        """It goes on."""
        self._left = MOST_LIVES

    def epoch(self, name: str) -> int:
        """Of the worker or server that has a place now."""
        return self._epochs[name]

    def succeed(self, name: str, again: bool = False) -> None:
        """Start a worker or a server in the place of one that is buried; `again`: which was a successor itself, and has
        not come."""
        self._epochs[name] += 1
        start = self._start_server if name[0] == "S" else self._start_worker
        start(int(name[1:]))

    def _spawn(
        self, role: str, index: int, threads: int, environment: dict[str, str],
        listener: socket.socket | None = None, place: tuple[int, int, int] | None = None, epoch: int = 0,
        missed: tuple[float, str, float] = (0.0, "", 0.0),
    ) -> None:  # fmt: skip
        fd = -1 if listener is None else listener.fileno()
        boot = Bootstrap(
            role, index, self.key.hex(), self.coordinator, str(self.run_dir), str(self.dataset),
            dict(self.config), fd, place, epoch, missed=missed,
        )  # fmt: skip
        log = self.run_dir / "logs" / f"{boot.log_name}.log"
        self._begin(boot, {**thread_environment(threads), **environment}, log)

    def _begin(self, boot: Bootstrap, environment: dict[str, str], log: Path) -> None:
        """Start a process of this host."""
        fds = [fd for fd in (boot.listener, *(boot.place or ())[:1]) if fd >= 0]
        with whole():  # or nobody would end what was just started
            process = start_node(environment, log, fds)
            self.running.append(Child(str(boot.peer), process, log))
        tell(process, boot.dumps())

    def failure(self) -> tuple[str, bool] | None:
        """(sentence, whether it is the cause) of a child that ended badly: killed, failed, or only noticed.

        None while only those did that the coordinator may do without, or gets another one for.
        """
        ended = [(child, sentence) for child in self.running if (sentence := child.exit_sentence())]
        goes_on = self.revivable  # asked last: who has just been killed is not judged as if nobody could take its place
        if goes_on:
            ended = [(child, sentence) for child, sentence in ended if child is not self.running[0]]
        spared = "W" * (self.cfg.cluster.lost_worker != "end") + "S" * self.cfg.server_returns
        if self.settled and spared and not self.ended():
            coordinator_lives = goes_on or self.running[0].process.poll() is None
            if coordinator_lives and all(child.name[0] in spared for child, _ in ended):
                return None
        sentences = sorted((child.only_noticed(), "was killed by" not in s, s) for child, s in ended)
        return (sentences[0][2], not sentences[0][0]) if sentences else None

    def ended(self) -> bool:
        """Whether every child has ended."""
        return all(child.process.poll() is not None for child in self.running)

    def wait(self, seconds: float) -> bool:
        """Wait until every child has ended; False if some have not."""
        deadline = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.ended()

    def stop(self) -> None:
        """Terminate, then kill, whatever still runs; reap all."""
        for child in self.buried:
            child.process.kill()
        for child in self.running:
            if child.process.poll() is None:
                child.process.terminate()
        if not self.wait(GRACE_SECONDS):
            for child in self.running:
                if child.process.poll() is None:
                    child.process.kill()
        for child in (*self.running, *self.buried):
            child.process.wait()
        if self._board is not None:
            self._board.close()
        if self._listener is not None:
            self._listener.close()

"""Processes of a run on this host, started by its launcher; also the interface of the launcher to an engine.

An engine of several hosts extends `RunProcesses` (remote_processes.py). To add an engine: engine/NAME.py with its
ENGINE (config/engine_interface.py), conf/cluster/NAME.yaml, one test. tests/integration/test_additions.py does it.
"""

from __future__ import annotations

import dataclasses
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gbactl.collective.base import RankSlot
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator.state import JOURNAL_FILE, writes_journal
from gbactl.cpu import available_cores, open_turn_counters, place_of
from gbactl.data.dataset import Dataset
from gbactl.engine.fork_server import (
    ProcessHandle,
    await_fork_server,
    end_processes,
    send_startup_document,
    start_node,
    thread_environment,
)
from gbactl.engine.stop_signals import deferred
from gbactl.nodes.child_main import ENDS_RUN, NOTICED
from gbactl.wire.auth import Peer
from gbactl.wire.listener import address_of, listen, local
from gbactl.wire.messages import Event
from gbactl.wire.startup_document import StartupDocument

GRACE_SECONDS = 3.0
MOST_COORDINATOR_TRIES = 3  # replacement coordinators in a row that may be killed before they continue the run


class LaunchContext(Protocol):
    """Interface of the launcher to an engine: configuration, data and callbacks of one run (launch/training_run.py).

    `key`: the run's key for authentication."""

    cfg: RunConfig
    dataset: Dataset
    run_dir: Path
    key: bytes
    show: Any

    def follow(self, children: RunProcesses) -> None:
        """Watch the run's processes until there is a result. Raises GbactlError if one of them fails."""

    def on_event(self, event: Event) -> None:
        """Handle an event of a coordinator that runs within the launcher."""

    def look_at_signals(self, tell: Callable[[Event], None]) -> None:
        """Pass on a received stop signal to a coordinator in the launcher's process; engines call it repeatedly."""


@dataclass
class ChildProcess:
    """Started child process, with its name (W3, S0, C) and log."""

    name: str
    process: ProcessHandle
    log: Path

    def exit_sentence(self) -> str | None:
        """Describe in one sentence why a child failed; None while it runs or if it ended without an error."""
        code = self.process.poll()
        if code is None or code == 0:
            return None
        if code < 0:
            return f"{self.name} (pid {self.process.pid}) was killed by {_signal(-code)}."
        return f"{self.name} (pid {self.process.pid}) failed: {self._reason()}"

    @property
    def ends_run(self) -> bool:
        """Whether a replacement would repeat a child's failure, such as an error in the user's own code."""
        return self.process.poll() == ENDS_RUN

    @property
    def only_noticed(self) -> bool:
        """Whether a child ended only as a consequence of another process's failure."""
        return self.process.poll() == NOTICED

    def _reason(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        messages = re.findall(rf"^\S+ {re.escape(self.log.stem)} CRITICAL (.*)", text, re.MULTILINE)
        return messages[-1] if messages else f"it left no message; look into {self.log}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RunProcesses:
    """Processes of one run on this host: start, watch, replace and stop them."""

    def __init__(self, launch: LaunchContext) -> None:
        self.cfg, self.dataset, self.run_dir, self.key = launch.cfg, launch.dataset, launch.run_dir, launch.key
        self.running: list[ChildProcess] = []
        self.abandoned: list[ChildProcess] = []  # processes that failed or are taken as failed; no longer waited for
        # every process is ready; from then on the coordinator decides which failures the run survives
        self.all_ready = False
        self.rank_slots: list[RankSlot] | None = None  # of an all-reduce over several hosts
        self.coordinator = ""
        self._environments: list[dict[str, str]] = []
        self._turn_counters: BinaryIO | None = None
        self.incarnations: Counter[str] = Counter()  # current incarnation numbers by process name
        self._listener: socket.socket | None = None  # listening socket of the coordinator
        self._coordinator_tries = MOST_COORDINATOR_TRIES

    def prepare(self) -> None:
        """Prepare the hosts before any process starts; this host needs no preparation."""

    @property
    def save_obstacle(self) -> str:
        """Why no checkpoint of a stopped run can be saved; "" if it can. Known once the hosts are prepared."""
        return ""

    def start(self, worker_environment: list[dict[str, str]]) -> None:
        """Start coordinator, servers and workers."""
        await_fork_server()
        listener = self._listener = listen(local(self.cfg.cluster.bind, self.cfg.cluster.transport))
        self.coordinator = address_of(listener)
        self._spawn("coordinator", 0)
        if not writes_journal(self.cfg):
            listener.close()
        for index in range(self.cfg.cluster.servers):
            self._spawn("server", index)
        self._environments = worker_environment
        for index in range(len(worker_environment)):
            self._spawn("worker", index)

    def stop_watching(self, name: str, kill: bool = False) -> None:
        """Stop watching a failed process, so that its exit does not count as a failure of the run.

        It may still run and hang: `kill` it where it could write into memory that others share."""
        failed = [child for child in self.running if child.name == name]
        for child in failed if kill else ():
            child.process.kill()
        self.abandoned += failed
        self.running = [child for child in self.running if child.name != name]

    @property
    def coordinator_killed(self) -> bool:
        """Whether the coordinator's process was killed by a signal."""
        code = self.running[0].process.poll() if self.running else None
        return code is not None and code < 0

    @property
    def coordinator_replaceable(self) -> bool:
        """Whether the coordinator was killed and can be replaced."""
        saved = writes_journal(self.cfg) and (self.run_dir / JOURNAL_FILE).exists()
        return self.coordinator_killed and self.all_ready and self._coordinator_tries > 0 and saved

    def replace_coordinator(self, failure: str, last_sign: float) -> None:
        """Start a replacement coordinator on the same listening socket.

        Nodes may already have dialled it again. `last_sign`: when the failed one last sent something, by the machine's
        clock."""
        self.abandoned.append(self.running.pop(0))
        self._coordinator_tries -= 1
        self.incarnations["C"] += 1
        self._spawn("coordinator", 0, (time.monotonic(), failure, last_sign))
        self.running.insert(0, self.running.pop())

    def coordinator_continues(self) -> None:
        """Record that the replacement coordinator continues the run; resets the count of failed replacements."""
        self._coordinator_tries = MOST_COORDINATOR_TRIES

    def replace(self, name: str, again: bool = False) -> None:
        """Start a replacement for a failed worker or server.

        `again`: the failed one was a replacement itself, and never became ready."""
        self.incarnations[name] += 1
        self._spawn("server" if name[0] == "S" else "worker", int(name[1:]))

    def _spawn(self, role: str, index: int, coordinator_failure: tuple[float, str, float] = (0.0, "", 0.0)) -> None:
        """Start a process of the run; a coordinator inherits the listening socket."""
        threads, environment = (self.cfg.threads, self._environments[index]) if role == "worker" else (1, {})
        fd = self._listener.fileno() if role == "coordinator" and self._listener is not None else -1
        boot = StartupDocument(
            role, index, self.key.hex(), self.coordinator, str(self.run_dir), str(self.dataset.path),
            to_dict(self.cfg), fd, incarnation=self.incarnations[str(Peer(role, index))],
            coordinator_failure=coordinator_failure,
        )  # fmt: skip
        log = self.run_dir / "logs" / f"{boot.log_name}.log"
        self._begin(boot, {**thread_environment(threads), **environment}, log)

    def _begin(self, boot: StartupDocument, environment: dict[str, str], log: Path) -> None:
        """Start a process on this host and send it its start-up document; pin a worker that shares its core."""
        if boot.role == "worker" and self.cfg.cluster.pin == "auto":
            self._turn_counters = self._turn_counters or open_turn_counters(len(available_cores()))
            place = place_of(boot.index, len(self._environments), self._turn_counters)
            boot = dataclasses.replace(boot, place=place)
        fds = [fd for fd in (boot.listener, *(boot.place or ())[:1]) if fd >= 0]
        with deferred():  # else a signal could leave the started process without an owner
            process = start_node(environment, log, fds)
            self.running.append(ChildProcess(str(boot.peer), process, log))
        send_startup_document(process, boot.dumps())

    def failure(self) -> tuple[str, bool] | None:
        """Return (sentence, whether it is the root cause) of the failure that ends the run, or None.

        A child failed if it was killed, ended with an error, or noticed a failure. None also while only processes
        failed that the coordinator can do without or replaces."""
        for child in self.abandoned:
            if (sentence := child.exit_sentence()) and child.ends_run:
                return sentence, True
        ended = [(child, sentence) for child in self.running if (sentence := child.exit_sentence())]
        coordinator_returns = self.coordinator_replaceable  # after `ended`: a coordinator killed in between counts too
        if coordinator_returns:
            ended = [(child, sentence) for child, sentence in ended if child is not self.running[0]]
        replaceable = "W" * (self.cfg.cluster.lost_worker != "end") + "S" * self.cfg.server_returns
        if self.all_ready and replaceable and not self.ended() and not any(child.ends_run for child, _ in ended):
            coordinator_alive = coordinator_returns or self.running[0].process.poll() is None
            if coordinator_alive and all(child.name[0] in replaceable for child, _ in ended):
                return None
        sentences = sorted((child.only_noticed, "was killed by" not in s, s) for child, s in ended)
        return (sentences[0][2], not sentences[0][0]) if sentences else None

    def ended(self) -> bool:
        """Return whether every child has ended."""
        return all(child.process.poll() is not None for child in self.running)

    def wait(self, seconds: float) -> bool:
        """Wait until every child has ended; returns False at the time-out."""
        deadline = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.ended()

    def stop(self) -> None:
        """Terminate all running processes, kill those that do not end in time, and reap all."""
        for child in self.abandoned:
            child.process.kill()
        end_processes([child.process for child in self.running], GRACE_SECONDS)
        for child in self.abandoned:
            child.process.wait()
        if self._turn_counters is not None:
            self._turn_counters.close()
        if self._listener is not None:
            self._listener.close()

"""Processes of a run on an agent's host: start, signal, watch, and forward their logs."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gbactl.engine.agent_protocol import PIECE
from gbactl.engine.fork_server import Started, start_node, tell
from gbactl.errors import WireError
from gbactl.processor import available_cores
from gbactl.worker.core_sharing import open_board, places

NODE = re.compile(r"[SW][0-9]{1,6}(-[0-9]{1,6})?")
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
GRACE_SECONDS = 2.0
Tell = Callable[[str, dict[str, Any]], None]


@dataclass
class AgentProcess:
    """Process on this host, named as its log (W3, W3-1)."""

    name: str
    process: Started
    log: Path
    sent: int = 0
    told: bool = False


class AgentProcesses:
    """Processes of a run on an agent's host. `tell` sends to the launcher.

    Any thread may look and kill; the other methods are for the thread that reads the agent's input."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.all: dict[str, AgentProcess] = {}
        self._folder: Path | None = None
        self._shared = False
        self._board: BinaryIO | None = None
        self._looking = threading.Lock()

    def settle(self, run_dir: Path | None, token: str) -> bool:
        """Choose the folder for logs: the launcher's run directory if this host sees it, else one of its own.

        Returns whether it sees the launcher's."""
        with contextlib.suppress(OSError):
            self._shared = run_dir is not None and (run_dir / mark(token)).is_file()
        if self._shared:
            self._folder = run_dir
        elif run_dir is not None:
            self._folder = Path(tempfile.mkdtemp(prefix="gbactl-host-"))
            (self._folder / "logs").mkdir()
        return self._shared

    def start(self, name: str, boot: dict[str, Any], environment: dict[str, str], seat: list[int] | None) -> int:
        """Start a process and return its pid. Raises WireError for an invalid name.

        `seat`: (which, of how many) workers of this host it is, where they are pinned to cores."""
        if not NODE.fullmatch(name) or name in self.all or self._folder is None:
            raise WireError(f"A host is asked to start {name[:20]!r}, which cannot be.")
        log, place = self._folder / "logs" / f"{name}.log", self._place(seat)
        line = json.dumps({**boot, "run_dir": str(self._folder), "place": place}).encode() + b"\n"
        process = start_node(environment, log, [] if place is None else place[:1])
        self.all[name] = AgentProcess(name, process, log)
        tell(process, line)
        return process.pid

    def _place(self, seat: list[int] | None) -> tuple[int, int, int] | None:
        """Return a worker's share of the cores (core_sharing.Place); None where workers need not share cores."""
        if seat is None:
            return None
        cores = available_cores()
        if self._board is None:
            self._board = open_board(len(cores))
        own = places(seat[1], cores, self._board)
        return own[seat[0]] if seat[0] < len(own) else None

    def signal(self, name: str, number: int) -> None:
        """Signal a process, if it exists. Raises WireError for a signal that is not in SIGNALS."""
        if number not in SIGNALS:
            raise WireError(f"A host is asked to send signal {number}.")
        node = self.all.get(name)
        if node is not None:
            node.process.send_signal(number)

    def look(self) -> None:
        """Forward new log output and report processes that have ended."""
        with self._looking:
            for node in list(self.all.values()):
                if not node.told:
                    self._look_at(node)

    def _look_at(self, node: AgentProcess) -> None:
        code = node.process.poll()
        self._send_log(node)
        if code is not None:
            node.told = True
            self.tell("exited", {"name": node.name, "code": code})

    def _send_log(self, node: AgentProcess) -> None:
        if self._shared:
            return
        with contextlib.suppress(OSError), node.log.open("rb") as file:
            file.seek(node.sent)
            while data := file.read(PIECE):
                node.sent += len(data)
                self.tell("log", {"name": node.name, "data": data})

    def kill(self) -> None:
        """Kill all processes of this host at once."""
        for node in list(self.all.values()):
            node.process.kill()

    def end(self) -> None:
        """Terminate all processes, kill the rest, and remove this host's own folder."""
        running = [node.process for node in self.all.values() if node.process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        for node in self.all.values():
            node.process.wait()
        self.look()
        self.clear()

    def clear(self) -> None:
        """Remove this host's own folder."""
        if self._folder is not None and not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)


def mark(token: str) -> str:
    """Return the name of a file by which a host recognises the launcher's run directory."""
    return f".seen-{token[:16]}"

"""Fork server and the start of node processes on this host, by the launcher or by a host's agent.

The fork server has imported torch once for all nodes that it forks; without it each node is started separately. This
module imports little, so that the fork server starts before the launcher's own imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from gbactl.errors import ConfigError
from gbactl.nodes.child_main import FORK_SERVER, READY

if TYPE_CHECKING:
    from gbactl.models import ModelConfig

PR_SET_CHILD_SUBREAPER = 36
FORK_SECONDS = 60.0  # time-out for an answer of the fork server
NO_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # for pyarrow, which comes with scikit-learn


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that fix thread counts and make idle threads wait passively.

    Two pools of spinning threads on the same cores would cost most of the speed."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


class ProcessHandle(Protocol):
    """Handle of a process on this host (subprocess.Popen) or on another host."""

    @property
    def pid(self) -> int:
        """Process id on the host where the process runs."""

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that killed the process; None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal to the process if it still runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended and return its exit code. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self.send_signal(signal.SIGKILL)


def end_processes(processes: Sequence[ProcessHandle | subprocess.Popen[bytes]], seconds: float) -> None:
    """Terminate processes, kill those that do not end within `seconds`, and wait for the end of all."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


class ForkedProcess(ProcessHandle):
    """Child that the fork server has forked."""

    pid: int = 0

    def __init__(self, pid: int, stdin: BinaryIO) -> None:
        self.pid, self.stdin = pid, stdin
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            return self._poll()

    def _poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, sig: int, /) -> None:
        with self._lock:
            if self._poll() is None:
                os.kill(self.pid, sig)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return code


class ForkServer:
    """Launcher's end of the fork server, a process that forks nodes (see nodes/child_main.py).

    A node is orphaned at once and adopted by this process, its nearest subreaper. It therefore ends with this process,
    is reaped like any child, and survives the end of the fork server."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.owner = os.getpid()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(FORK_SECONDS)
        with theirs:
            self.process = self._start(theirs)
        self._ready = False

    def _start(self, line: socket.socket) -> ProcessHandle:
        """Start the fork server's process, with the socket `line` as its standard input."""
        return subprocess.Popen(
            [sys.executable, "-m", "gbactl.nodes.child_main", FORK_SERVER, str(self.owner)],
            stdin=line.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **thread_environment(1), **NO_THREAD},
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until the fork server has finished its imports. Raises OSError if it has ended."""
        if not self._ready and self._line.recv(len(READY)) != READY:
            raise OSError("The fork server has ended.")
        self._ready = True

    def fork(self, environment: Mapping[str, str], log: Path, fds: Sequence[int]) -> ForkedProcess:
        """Fork a node's process (see start_node). Raises OSError, also if the fork server has ended."""
        read, write = os.pipe()
        stdin = os.fdopen(write, "wb")
        try:
            with os.fdopen(read), log.open("ab") as output:
                asked = {"name": log.stem, "folder": os.getcwd(), "environment": dict(environment), "fds": list(fds)}
                return ForkedProcess(self._ask(asked, [read, output.fileno(), output.fileno(), *fds]), stdin)
        except OSError:
            stdin.close()
            raise

    def dense_size(self, cfg: ModelConfig, numeric: int, fields: int, list_targets: Sequence[int | None] = ()) -> int:
        """Have the fork server count a model's dense values. Raises OSError if the fork server has ended."""
        found = self._ask({"model": dataclasses.asdict(cfg), "shape": [numeric, fields, list_targets]})
        if isinstance(found, str):
            raise ConfigError(found)
        return int(found)

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> Any:
        """Send a request and return the answer. Raises OSError if the fork server has ended or cannot fork."""
        self.ready()
        socket.send_fds(self._line, [json.dumps(request).encode()], fds)
        answer = self._line.recv(1 << 16)
        if not answer:
            raise OSError("The fork server has ended, or could not fork.")
        return json.loads(answer)

    def close(self) -> None:
        """End the fork server; nodes that it forked continue."""
        self._line.close()
        self.process.kill()
        self.process.wait()


Started = subprocess.Popen[bytes] | ForkedProcess
_server: ForkServer | None = None


def _own_server() -> ForkServer | None:
    """Return the fork server that this process has started; None without one, as in a process that was forked."""
    return _server if _server is not None and _server.owner == os.getpid() else None


def open_fork_server() -> None:
    """Start this process's fork server, which imports what nodes need, unless it is running."""
    global _server
    if _own_server() is None:
        _server = ForkServer()


def await_fork_server() -> None:
    """Wait until the fork server is ready; if it fails, nodes are started without it."""
    open_fork_server()
    try:
        if server := _own_server():
            server.ready()
    except OSError:
        close_fork_server()


@atexit.register
def close_fork_server() -> None:
    """End the fork server; later nodes are started without it."""
    global _server
    if server := _own_server():
        server.close()
    _server = None


def dense_size(cfg: ModelConfig, numeric: int, fields: int, list_targets: Sequence[int | None] = ()) -> int:
    """Count a model's dense values in the fork server, which has imported torch, or else in this process.

    Raises ConfigError where the model cannot be built."""
    if "torch" not in sys.modules and (server := _own_server()):
        with contextlib.suppress(OSError):
            return server.dense_size(cfg, numeric, fields, list_targets)
    from gbactl import models

    return models.dense_size(cfg, numeric, fields, list_targets)


def start_node(environment: Mapping[str, str], log: Path, fds: Sequence[int]) -> Started:
    """Start a node's process, which waits for its start-up document (see `send_startup_document`).

    It inherits `fds`, appends its output to `log`, and, if this process forked it, ends with the thread that started
    it."""
    environment = {**os.environ, **environment}
    if server := _own_server():
        try:
            return server.fork(environment, log, fds)
        except OSError:
            close_fork_server()
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gbactl.nodes.child_main", str(os.getpid()), log.stem],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env=environment, pass_fds=fds,
        )  # fmt: skip


def send_startup_document(process: Started, boot: bytes) -> None:
    """Write the start-up document to a new process.

    A process that ended at once is ignored here: its exit code tells why."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(boot)

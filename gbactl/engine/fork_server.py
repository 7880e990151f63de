"""Starting a node's process on this host: what the launcher and a host's agent have in common.

A launcher has nodes forked by a process that has imported torch once for all of them; without one they are started one
by one. This module imports little, so that the fork server begins before the launcher's own imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
from typing import BinaryIO

from gbactl.nodes.process import FORK_SERVER, READY

PR_SET_CHILD_SUBREAPER = 36
FORK_SECONDS = 60.0  # how long a fork server that does not answer is waited for
NO_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # of pyarrow, which comes with scikit-learn


def thread_environment(threads: int) -> dict[str, str]:
    """Two pools of spinning threads on the same cores cost most of the speed: fixed counts, passive waiting."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


class Forked:
    """A child that the fork server has forked: what subprocess.Popen is for one that was started."""

    def __init__(self, pid: int, stdin: BinaryIO) -> None:
        self.pid, self.stdin = pid, stdin
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """None while it runs; else its exit code, or minus the signal that killed it."""
        with self._lock:
            return self._poll()

    def _poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, sig: int, /) -> None:
        """Signal it, if it still runs."""
        with self._lock:
            if self._poll() is None:
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return code


class ForkServer:
    """The launcher's end of a process that forks nodes (see nodes/process.py).

    A node is orphaned at once and adopted by this process, its nearest subreaper: then it dies with this process and
    is waited for like any child, and a fork server that dies takes nobody with it.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.owner = os.getpid()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(FORK_SECONDS)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gbactl.nodes.process", FORK_SERVER, str(self.owner)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **thread_environment(1), **NO_THREAD},
            )  # fmt: skip
        self._ready = False

    def ready(self) -> None:
        """Wait until it has imported everything. Raises OSError if it has ended."""
        if not self._ready and self._line.recv(len(READY)) != READY:
            raise OSError("The fork server has ended.")
        self._ready = True

    def fork(self, environment: Mapping[str, str], log: Path, fds: Sequence[int]) -> Forked:
        """See start_node. Raises OSError, also if it has ended."""
        self.ready()
        read, write = os.pipe()
        stdin = os.fdopen(write, "wb")
        try:
            with os.fdopen(read), log.open("ab") as output:
                asked = {"name": log.stem, "folder": os.getcwd(), "environment": dict(environment), "fds": list(fds)}
                inherited = [read, output.fileno(), output.fileno(), *fds]
                socket.send_fds(self._line, [json.dumps(asked).encode()], inherited)
            answer = self._line.recv(20)
            if not answer:
                raise OSError("The fork server has ended, or could not fork.")
        except OSError:
            stdin.close()
            raise
        return Forked(int(answer), stdin)

    def close(self) -> None:
        """End it; the nodes live on."""
        self._line.close()
        self.process.kill()
        self.process.wait()


Started = subprocess.Popen[bytes] | Forked
_server: ForkServer | None = None


def open_fork_server() -> None:
    """Start importing what nodes need, if this process has no fork server yet. Linux only."""
    global _server
    if sys.platform == "linux" and (_server is None or _server.owner != os.getpid()):
        _server = ForkServer()


def await_fork_server() -> None:
    """Wait until nodes can be forked; where that cannot be, they are started one by one."""
    open_fork_server()
    try:
        if _server is not None:
            _server.ready()
    except OSError:
        close_fork_server()


@atexit.register
def close_fork_server() -> None:
    """Have nodes started one by one from now on."""
    global _server
    if _server is not None and _server.owner == os.getpid():
        _server.close()
    _server = None


def start_node(environment: Mapping[str, str], log: Path, fds: Sequence[int]) -> Started:
    """A process that inherits `fds`, writes what it prints to the end of `log`, waits for what it is to be (see `tell`)
    and dies with the thread that has started it, if it was forked with this process."""
    environment = {**os.environ, **environment}
    if _server is not None and _server.owner == os.getpid():
        try:
            return _server.fork(environment, log, fds)
        except OSError:
            close_fork_server()
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gbactl.nodes.process", str(os.getpid()), log.stem],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env=environment, pass_fds=fds,
        )  # fmt: skip


def tell(process: Started, boot: bytes) -> None:
    """Hand over the bootstrap. One that died at once has an exit code that tells why."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(boot)

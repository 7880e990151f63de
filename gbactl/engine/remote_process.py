"""Process on another host, with the interface of subprocess.Popen, for the launcher."""

from __future__ import annotations

import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

from gbactl.engine.agent_link import AgentConnection
from gbactl.engine.base import ChildProcess
from gbactl.errors import ClusterError

START_SECONDS, WAIT_SECONDS = 20.0, 2.0
FAILED = 1  # exit code of a process that could not be started


class RemoteProcess:
    """Process on another host. `name`: that of its log (W3, W3-1), by which its agent knows it."""

    def __init__(self, link: AgentConnection, name: str, **asked: Any) -> None:
        """Start the process through its agent; one that cannot be started counts as failed."""
        self.link, self.name, self.pid = link, name, 0
        self.why = ""  # why it could not be started
        self._code: int | None = None
        self._over = threading.Event()
        try:
            self.pid = int(link.ask("start", START_SECONDS, name=name, **asked)["pid"])
        except ClusterError as error:
            self.why = str(error)
            self.ended(FAILED)

    def ended(self, code: int) -> None:
        """Record the process's exit code, as its agent reports it."""
        if self._code is None:
            self._code = code
            self._over.set()

    def poll(self) -> int | None:
        """See Process.poll. A process whose host is lost counts as killed."""
        if self._code is None and self.link.gone is not None:
            self.ended(-signal.SIGKILL)
        return self._code

    def send_signal(self, sig: int, /) -> None:
        """See Process.send_signal."""
        if self.poll() is None:
            self.link.tell("signal", name=self.name, number=int(sig))

    def terminate(self) -> None:
        """See Process.terminate."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """See Process.kill."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """See Process.wait. Without a `timeout`, a host that does not answer for some seconds counts as lost."""
        if self.poll() is None and not self._over.wait(WAIT_SECONDS if timeout is None else timeout):
            if timeout is not None:
                raise subprocess.TimeoutExpired(self.name, timeout)
            self.link.lose("it does not say that its processes have ended")
        code = self.poll()
        assert code is not None
        return code


@dataclass
class StartedRemoteProcess(ChildProcess):
    """Started process on another host."""

    process: RemoteProcess

    def exit_sentence(self) -> str | None:
        """See ChildProcess.exit_sentence: the loss of its host is named as the cause."""
        process = self.process
        if process.why:
            return f"{self.name} could not be started: {process.why}"
        if process.link.gone is not None and process.poll() == -signal.SIGKILL:
            return f"{self.name} was killed by the loss of host {process.link.host}: {process.link.gone}."
        told = super().exit_sentence()
        pid = f"(pid {process.pid}"
        return None if told is None else told.replace(f"{pid})", f"{pid} on {process.link.host})", 1)

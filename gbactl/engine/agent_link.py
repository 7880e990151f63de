"""Launcher's connection to one host's agent: requests with answers, and reports of the agent.

Two threads a host: one reads, one sends heartbeats. A host whose agent is silent for too long is taken as failed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.engine.agent_protocol import MessageDecoder, field, pack, write_all
from gbactl.errors import ClusterError, WireError

LOOK_SECONDS = 0.25
END_SECONDS = 4.0
LAST_WORDS_SECONDS = 1.0  # wait for ssh's error message when it ends
READ_BYTES = 1 << 18
Told = Callable[[str, dict[str, Any]], None]


class AgentConnection:
    """Connection to a host's agent, started by `command`, which is split as a shell would.

    Error output goes to the file `errors`. `patience`: seconds of silence after which the host is taken as failed."""

    def __init__(self, host: str, command: str, errors: Path, patience: float) -> None:
        self.host, self.errors, self.patience = host, errors, patience
        self.gone: str | None = None  # why
        self.told: Told = lambda name, fields: None
        self.on_lost: Callable[[str], None] = lambda why: None
        with errors.open("ab") as output:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._heard = time.monotonic()
        self._writing, self._state = threading.Lock(), threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._asked, self._ending = 0, False
        loops = (self._read, self._pulse)
        self._threads = [threading.Thread(target=loop, name=f"host {host}", daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    # -- to the agent -------------------------------------------------------------------------------

    def tell(self, name: str, /, **fields: Any) -> None:
        """Send a message to the agent without waiting for an answer; does nothing where the host is gone."""
        data = pack(name, fields)
        try:
            with self._writing:
                write_all(self._in, data)
        except OSError:
            self.lose("its agent is gone")

    def ask(self, name: str, seconds: float, /, **fields: Any) -> dict[str, Any]:
        """Send a request to the agent and wait for its answer. Raises ClusterError, which names the host."""
        answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._state:
            self._asked += 1
            number = self._asked
            self._answers[number] = answers
            if self.gone is not None:
                answers.put(None)
        try:
            self.tell(name, ask=number, **fields)
            found = answers.get(timeout=seconds)
        except queue.Empty:
            raise ClusterError(f"Host {self.host} did not answer within {seconds:.0f} s; is it overloaded?") from None
        finally:
            with self._state:
                del self._answers[number]
        if found is None:
            raise ClusterError(f"Host {self.host} is gone: {self.gone}.")
        if "error" in found:
            raise ClusterError(f"Host {self.host}: {str(found['error']).rstrip('.')}.")
        return found

    def _pulse(self) -> None:
        while self.gone is None and not self._ending:
            self.tell("pulse")
            time.sleep(min(1.0, self.patience / 8))

    # -- from the agent -----------------------------------------------------------------------------

    def _read(self) -> None:
        reader, poll = MessageDecoder(greeted=False), select.poll()
        poll.register(self._out, select.POLLIN)
        try:
            while self.gone is None:
                if not poll.poll(1000 * LOOK_SECONDS):
                    if time.monotonic() - self._heard > self.patience:
                        self.lose(f"it has said nothing for {self.patience:g} s")
                    continue
                data = os.read(self._out, READ_BYTES)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(LAST_WORDS_SECONDS)
                    self.lose("its agent has ended")
                    return
                self._heard = time.monotonic()
                for name, fields in reader.feed(data):
                    self._take(name, fields)
        except (OSError, WireError) as error:
            self.lose(str(error).rstrip("."))

    def _take(self, name: str, fields: dict[str, Any]) -> None:
        if name == "answer":
            with self._state:
                waiting = self._answers.get(field(fields, "ask", int))
            if waiting is not None:
                waiting.put(fields)
        elif name != "pulse":
            self.told(name, fields)

    def lose(self, why: str) -> None:
        """Take the host as failed and end the connection, which ends its processes. Only the first call counts."""
        with self._state:
            if self.gone is not None:
                return
            self.gone = why
            waiting = list(self._answers.values())
        for answers in waiting:
            answers.put(None)
        self._kill()
        if not self._ending:
            self.on_lost(why)

    # -- the end ------------------------------------------------------------------------------------

    def said(self) -> str:
        """Return the last line of the error output of ssh or the agent."""
        try:
            lines = self.errors.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip() if lines else ""

    def end(self) -> None:
        """Tell the agent to end with all processes it has started; `close` waits for that."""
        self._ending = True
        if self.gone is None:
            threading.Thread(target=lambda: self.tell("end"), daemon=True).start()  # a full pipe must not block

    def close(self) -> None:
        """Wait until the agent has ended, a few seconds at most."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self.lose("the run has ended")
        self._kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(2 * LOOK_SECONDS + 1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _kill(self) -> None:
        """Kill ssh, which closes the agent's standard input, or the local agent."""
        with contextlib.suppress(OSError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

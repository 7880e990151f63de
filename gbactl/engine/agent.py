"""Agent of a run on one host, which talks to the launcher on standard input and output.

Started as `python -m gbactl.engine.agent`. It ends, with every process that it has started, when its input ends (the
launcher or ssh has ended), and when it has heard nothing for as long as the launcher has set: then this host is cut
off, and the run continues without it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl import shared_names
from gbactl.engine.agent_processes import AgentProcesses
from gbactl.engine.agent_protocol import MAGIC, MessageDecoder, field, pack, write_all
from gbactl.engine.bandwidth_probe import ReachabilityProbe, dial
from gbactl.engine.data_sync import HostData
from gbactl.engine.host_info import facts
from gbactl.engine.network_interface import interface_to
from gbactl.errors import GbactlError, WireError

LOOK_SECONDS, PULSE_SECONDS = 0.05, 0.5
FIRST_PATIENCE = 60.0  # until the launcher has set the limit
READ_BYTES = 1 << 18
Handler = Callable[[dict[str, Any]], dict[str, Any]]


class HostAgent:
    """Agent of one host.

    It reads and starts processes in the main thread: they end with the thread that started them."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = read_fd, write_fd
        self._lock = threading.Lock()
        self._heard, self._patience = time.monotonic(), FIRST_PATIENCE
        self.nodes, self.holding = AgentProcesses(self.tell), HostData()
        self.probe: ReachabilityProbe | None = None
        self.token, self.address = b"", ""
        self._forwarded: dict[str, str] = {}
        self._handlers: dict[str, Handler] = {
            "facts": lambda _: facts(), "settle": self._settle, "start": self._start,
            "listen": self._listen, "unlisten": self._unlisten,
        }  # fmt: skip
        self._slow: dict[str, Handler] = {"find": self._find, "whole": self._whole, "dial": self._dial}

    def run(self) -> None:
        """Handle the launcher's requests until the input ends."""
        write_all(self._write, MAGIC)
        for loop in (self._watch, self._fence):
            threading.Thread(target=loop, daemon=True).start()
        reader = MessageDecoder()
        while data := os.read(self._read, READ_BYTES):
            self._heard = time.monotonic()
            for name, fields in reader.feed(data):
                if name == "end":
                    return
                self._handle(name, fields)

    def end(self) -> None:
        """End all processes of this host and remove their files."""
        self.nodes.end()
        self.holding.drop()
        self._unlisten({})

    def tell(self, name: str, fields: dict[str, Any]) -> None:
        """Send a message to the launcher; errors are ignored, as the end of the input shows that it is gone."""
        try:
            with self._lock:
                write_all(self._write, pack(name, fields))
        except OSError:
            pass

    # -- threads ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Report logs and ended processes, and send heartbeats."""
        due = 0.0
        while True:
            self.nodes.look()
            if time.monotonic() >= due:
                self.tell("pulse", {})
                due = time.monotonic() + PULSE_SECONDS
            time.sleep(LOOK_SECONDS)

    def _fence(self) -> None:
        """Kill every process once the host is cut off; in a thread of its own, as a full pipe blocks the others."""
        looked = time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now - looked > 1.0:  # this host itself was suspended; messages sent meanwhile are still unread
                self._heard = max(self._heard, now - self._patience / 2)
            looked = now
            if now - self._heard > self._patience:
                self.nodes.kill()
                self.nodes.clear()
                os._exit(1)

    # -- what is asked ------------------------------------------------------------------------------

    def _handle(self, name: str, fields: dict[str, Any]) -> None:
        if name in self._slow:
            threading.Thread(target=self._answer, args=(self._slow[name], fields), daemon=True).start()
        elif name in self._handlers:
            self._answer(self._handlers[name], fields)
        elif name == "signal":
            self.nodes.signal(field(fields, "name", str), field(fields, "number", int))
        elif name == "piece":
            self._piece(fields)
        elif name != "pulse":
            raise WireError(f"An agent is asked for {name[:20]!r}.")

    def _answer(self, handler: Handler, fields: dict[str, Any]) -> None:
        try:
            found = handler(fields)
        except (GbactlError, OSError) as error:
            found = {"error": str(error)}
        self.tell("answer", {"ask": field(fields, "ask", int), **found})

    def _settle(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._patience = float(field(fields, "hang_seconds", float))
        self.token = bytes.fromhex(field(fields, "token", str))
        self._forwarded = {str(key): str(value) for key, value in field(fields, "environment", dict).items()}
        os.environ.update(self._forwarded)
        self.address, interface = interface_to(field(fields, "launcher", str))
        run_dir = fields.get("run_dir")
        shared = self.nodes.settle(None if run_dir is None else Path(run_dir), self.token.hex())
        sees = {path: Path(path).exists() for path in field(fields, "paths", list)}
        return {"address": self.address, "interface": interface, "shared": shared, "sees": sees}

    def _listen(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.probe is None:
            self.probe = ReachabilityProbe(self.address, self.token)
        return {"address": self.probe.address}

    def _unlisten(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.probe is not None:
            self.probe.close()
            self.probe = None
        return {}

    def _dial(self, fields: dict[str, Any]) -> dict[str, Any]:
        measure = bool(fields.get("measure"))
        targets = field(fields, "targets", dict)
        return {"lines": {name: dial(str(where), self.token, measure).plain() for name, where in targets.items()}}

    def _find(self, fields: dict[str, Any]) -> dict[str, Any]:
        found = self.holding.find(field(fields, "path", str), field(fields, "fingerprint", str), fields.get("cache"))
        return {"found": found}

    def _piece(self, fields: dict[str, Any]) -> None:
        """Write a piece of the data. Errors are reported by `whole`, as no answer is awaited."""
        try:
            name, data = field(fields, "name", str), field(fields, "data", bytes)
            self.holding.take(name, data, bool(fields.get("first")))
        except OSError:
            self.holding.drop()

    def _whole(self, _: dict[str, Any]) -> dict[str, Any]:
        self.holding.whole()
        return {}

    def _start(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.holding.place is None:
            raise WireError("This host has no data yet.")
        boot = {**field(fields, "boot", dict), "host": self.address, "dataset": str(self.holding.place)}
        environment = field(fields, "environment", dict)
        return {"pid": self.nodes.start(field(fields, "name", str), boot, environment, fields.get("seat"))}


def main() -> None:
    """Run an agent on standard input and output; any other output goes to standard error."""
    write_fd = os.dup(1)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.close(0))  # as if the input had ended
    shared_names.sweep()
    agent = HostAgent(0, write_fd)
    try:
        agent.run()
    except (OSError, WireError) as error:
        print(f"gbactl agent: {error}", file=sys.stderr, flush=True)
    finally:
        agent.end()
        shared_names.sweep()
    os._exit(0)


if __name__ == "__main__":
    main()

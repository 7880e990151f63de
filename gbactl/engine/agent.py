"""Agent of a run on one host: it starts, kills and reports the processes of the host, and receives the prepared data.

Started as `python -m gbactl.engine.agent`, it talks to the launcher on standard input and output; with an address as
argument it dials that one instead, and reads only a key from standard input. It ends, with every
process that it has started, when its input ends (the launcher or ssh has ended), and when it has heard nothing for as
long as the launcher has set: then this host is cut off, and the run continues without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from gbactl import shared_memory_names
from gbactl.cpu import available_cores, open_turn_counters, place_of
from gbactl.data.cache import cache_root
from gbactl.data.dataset import EVERY_ARRAY, META, open_dataset
from gbactl.engine.agent_connection import MAGIC, PIECE, MessageDecoder, field, pack, write_all
from gbactl.engine.fork_server import Started, end_processes, send_startup_document, start_node
from gbactl.engine.host_and_network_facts import ReachabilityProbe, dial, facts, import_error, interface_to
from gbactl.errors import DataError, GbactlError, WireError
from gbactl.wire import listener
from gbactl.wire.auth import TlsContexts, relay
from gbactl.wire.node_measurements import TRACE_DIR, trace_part

NODE = re.compile(r"[SW][0-9]{1,6}(-[0-9]{1,6})?")
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
FILES = (*(f"{name}.npy" for name in EVERY_ARRAY), META)  # files of a prepared data set
GRACE_SECONDS, DIAL_SECONDS = 2.0, 10.0
LOOK_SECONDS, PULSE_SECONDS = 0.05, 0.5
FIRST_PATIENCE = 60.0  # seconds of silence allowed until the launcher has set the limit
READ_BYTES = 1 << 18
Handler = Callable[[dict[str, Any]], dict[str, Any]]
Tell = Callable[[str, dict[str, Any]], None]


@dataclass
class AgentProcess:
    """Process that this agent has started; `name`: its log's name, W3, or W3-1 for the first replacement."""

    name: str
    process: Started
    reported: bool = False


class AgentProcesses:
    """A run's processes on an agent's host; `tell` sends a message to the launcher.

    Any thread may look and kill; the other methods are for the thread that reads the agent's input."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.processes: dict[str, AgentProcess] = {}
        self._folder: Path | None = None
        self._bytes_sent = Counter[Path]()
        self._shared = False
        self._turn_counters = open_turn_counters(len(available_cores()))
        self._poll_lock = threading.Lock()

    def choose_log_folder(self, run_dir: Path, token: str, traced: bool) -> bool:
        """Choose the log folder: the launcher's run directory if it is visible on this host, else a temporary folder.

        The temporary folder of a `traced` run has a trace directory, which makes the processes write their parts of
        the trace. Returns whether this host sees the launcher's directory."""
        with contextlib.suppress(OSError):
            self._shared = (run_dir / mark(token)).is_file()
        if self._shared:
            self._folder = run_dir
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="gbactl-host-"))
            for name in ["logs", *[TRACE_DIR] * traced]:
                (self._folder / name).mkdir()
        return self._shared

    def start(self, name: str, boot: dict[str, Any], environment: dict[str, str], seat: list[int] | None) -> int:
        """Start a process of the run and return its pid. Raises WireError for an invalid name.

        `seat`: (which, of how many) workers of this host it is, where they are pinned to cores."""
        if not NODE.fullmatch(name) or name in self.processes or self._folder is None:
            raise WireError(
                f"A host cannot start {name[:20]!r}: the name is invalid or taken, or it has no log folder."
            )
        log = files_of(self._folder, name)["log"]
        place = None if seat is None else place_of(seat[0], seat[1], self._turn_counters)
        line = json.dumps({**boot, "run_dir": str(self._folder), "place": place}).encode() + b"\n"
        process = start_node(environment, log, [] if place is None else place[:1])
        self.processes[name] = AgentProcess(name, process)
        send_startup_document(process, line)
        return process.pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process if it exists. Raises WireError for a signal that is not in SIGNALS."""
        if number not in SIGNALS:
            raise WireError(f"A host is asked to send signal {number}, which is not allowed.")
        node = self.processes.get(name)
        if node is not None:
            node.process.send_signal(number)

    def poll(self) -> None:
        """Send new log output and traces to the launcher, and report processes that have ended."""
        with self._poll_lock:
            for node in list(self.processes.values()):
                if node.reported:
                    continue
                code = node.process.poll()
                self._send_files(node)
                if code is not None:
                    node.reported = True
                    self.tell("exited", {"name": node.name, "code": code})

    def _send_files(self, node: AgentProcess) -> None:
        if self._shared or self._folder is None:
            return
        for kind, path in files_of(self._folder, node.name).items():
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(self._bytes_sent[path])
                while data := file.read(PIECE):
                    self._bytes_sent[path] += len(data)
                    self.tell(kind, {"name": node.name, "data": data})

    def kill(self) -> None:
        """Kill all of the run's processes on this host at once."""
        for node in list(self.processes.values()):
            node.process.kill()

    def end(self) -> None:
        """Terminate all processes, kill those that do not end in time, and remove this host's log folder."""
        end_processes([node.process for node in self.processes.values()], GRACE_SECONDS)
        self.poll()
        self.clear()

    def clear(self) -> None:
        """Remove this host's log folder, unless it is the launcher's run directory."""
        if self._folder is not None and not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)


def files_of(folder: Path, name: str) -> dict[str, Path]:
    """Return a process's log, and its part of the trace (written at its end), by the names of the agent's messages."""
    return {"log": folder / "logs" / f"{name}.log", "trace": trace_part(folder, name)}


def mark(token: str) -> str:
    """Return the name of the marker file that shows a host whether it sees the launcher's run directory."""
    return f".seen-{token[:16]}"


class HostData:
    """Prepared data on one host: an existing copy, or one received from the launcher."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._partial: Path | None = None
        self._write_error: OSError | None = None
        self._target, self._fingerprint = Path(), ""  # place in this host's cache; what is to arrive there

    def find(self, path: str, fingerprint: str, cache: str | None) -> bool:
        """Find the data where the launcher has them (a shared file system), or in this host's cache.

        Returns whether they were found."""
        self._target, self._fingerprint = cache_root({"cache": cache}) / Path(path).name, fingerprint
        for candidate in (Path(path), self._target):
            with contextlib.suppress(DataError, KeyError, TypeError, ValueError):
                if open_dataset(candidate).fingerprint == fingerprint:
                    self.path = candidate
                    return True
        return False

    def take(self, name: str, data: bytes, first: bool) -> None:
        """Write a received piece of a data file to disk. Raises WireError for an unknown file name.

        No answer is awaited for a piece: an error in writing is reported by `publish`, and later pieces are skipped."""
        if name not in FILES:
            raise WireError(f"A host is given a file {name[:40]!r}, which no data cache has.")
        if self._write_error is not None:
            return
        try:
            if self._partial is None:
                self._partial = self._begin()
            with (self._partial / name).open("wb" if first else "ab") as file:
                file.write(data)
        except OSError as error:
            self._write_error = error
            self.drop()

    def _begin(self) -> Path:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        partial = self._target.with_name(f"{self._target.name}.partial-{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        return partial

    def publish(self) -> None:
        """Verify the received data and move them into the cache.

        Raises DataError if they could not be written, are damaged, or are others than announced."""
        partial, self._partial, target = self._partial, None, self._target
        if self._write_error is not None:
            raise DataError(
                f"the data cannot be written to {target.parent} ({self._write_error.strerror}); make room there, or "
                "type another data.cache="
            )
        if partial is None:
            raise DataError("nothing of the data has arrived")
        try:
            dataset = open_dataset(partial, full=True)
            if dataset.fingerprint != self._fingerprint:
                raise DataError("other data arrived than were announced")
            del dataset
            with FileLock(target.with_name(f"{target.name}.lock")):
                shutil.rmtree(target, ignore_errors=True)
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.path = target

    def drop(self) -> None:
        """Delete data files that were only partly received."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)


class HostAgent:
    """Agent of a run on one host, which handles the launcher's requests.

    It reads and starts processes in the main thread: they end with the thread that started them."""

    def __init__(self, read_fd: int, write_fd: int, launcher: str) -> None:
        """Set up an agent; `launcher`: address at which this host sees the launcher; "": from ssh, or unknown."""
        self._read, self._write = read_fd, write_fd
        self._lock = threading.Lock()
        self._last_message, self._patience = time.monotonic(), FIRST_PATIENCE
        self.nodes, self.data = AgentProcesses(self.send), HostData()
        self.probe: ReachabilityProbe | None = None
        self.token, self.address = b"", ""
        self._handlers: dict[str, Handler] = {
            "facts": lambda _: {**facts(), **({"client": launcher} if launcher else {})},
            "settle": self._set_up, "start": self._start,
            "listen": self._listen, "unlisten": self._unlisten,
        }  # fmt: skip
        self._slow_handlers: dict[str, Handler] = {
            "find": self._find, "whole": self._publish_data, "dial": self._dial, "import": self._import,
        }  # fmt: skip

    def run(self) -> None:
        """Handle the launcher's requests until standard input ends."""
        write_all(self._write, MAGIC)
        for loop in (self._watch, self._fence):
            threading.Thread(target=loop, daemon=True).start()
        reader = MessageDecoder()
        while data := os.read(self._read, READ_BYTES):
            self._last_message = time.monotonic()
            for name, fields in reader.feed(data):
                if name == "end":
                    return
                self._handle(name, fields)

    def end(self) -> None:
        """End the run's processes on this host and remove their files."""
        self.nodes.end()
        self.data.drop()
        self._unlisten({})

    def send(self, name: str, fields: dict[str, Any]) -> None:
        """Send a message to the launcher, ignoring errors.

        The end of the input shows that the launcher is gone."""
        with contextlib.suppress(OSError), self._lock:
            write_all(self._write, pack(name, fields))

    # -- threads ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Report logs and ended processes to the launcher, and send heartbeats, in a loop."""
        due = 0.0
        while True:
            self.nodes.poll()
            if time.monotonic() >= due:
                self.send("pulse", {})
                due = time.monotonic() + PULSE_SECONDS
            time.sleep(LOOK_SECONDS)

    def _fence(self) -> None:
        """Kill all processes of the run on this host if the launcher has been silent for too long.

        A thread of its own does this, as a full pipe blocks the others."""
        last_check = time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now - last_check > 1.0:  # this host itself was suspended; messages sent meanwhile are still unread
                self._last_message = max(self._last_message, now - self._patience / 2)
            last_check = now
            if now - self._last_message > self._patience:
                self.nodes.kill()
                self.nodes.clear()
                os._exit(1)

    # -- what is asked ------------------------------------------------------------------------------

    def _handle(self, name: str, fields: dict[str, Any]) -> None:
        if name in self._slow_handlers:
            threading.Thread(target=self._answer, args=(self._slow_handlers[name], fields), daemon=True).start()
        elif name in self._handlers:
            self._answer(self._handlers[name], fields)
        elif name == "signal":
            self.nodes.signal(field(fields, "name", str), field(fields, "number", int))
        elif name == "piece":
            self._piece(fields)
        elif name != "pulse":
            raise WireError(f"An agent does not know the request {name[:20]!r}.")

    def _answer(self, handler: Handler, fields: dict[str, Any]) -> None:
        try:
            answer = handler(fields)
        except (GbactlError, OSError) as error:
            answer = {"error": str(error)}
        self.send("answer", {"ask": field(fields, "ask", int), **answer})

    def _set_up(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._patience = float(field(fields, "hang_seconds", float))
        self.token = bytes.fromhex(field(fields, "token", str))
        os.environ.update({str(key): str(value) for key, value in field(fields, "environment", dict).items()})
        self.address, interface = interface_to(field(fields, "launcher", str))
        run_dir, traced = Path(field(fields, "run_dir", str)), field(fields, "traced", bool)
        shared = self.nodes.choose_log_folder(run_dir, self.token.hex(), traced)
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
        return {"lines": {name: asdict(dial(str(where), self.token, measure)) for name, where in targets.items()}}

    def _import(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Import each class in a new process with the run's environment; return the import errors by class."""
        return {"errors": {str(target): import_error(str(target)) for target in field(fields, "targets", list)}}

    def _find(self, fields: dict[str, Any]) -> dict[str, Any]:
        found = self.data.find(field(fields, "path", str), field(fields, "fingerprint", str), fields.get("cache"))
        return {"found": found}

    def _piece(self, fields: dict[str, Any]) -> None:
        """Write a received piece of a data file; an error is reported in the answer to the request `whole`."""
        self.data.take(field(fields, "name", str), field(fields, "data", bytes), bool(fields.get("first")))

    def _publish_data(self, _: dict[str, Any]) -> dict[str, Any]:
        self.data.publish()
        return {}

    def _start(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.data.path is None:
            raise WireError("This host has no data yet.")
        boot = {**field(fields, "boot", dict), "host": self.address, "dataset": str(self.data.path)}
        environment = field(fields, "environment", dict)
        return {"pid": self.nodes.start(field(fields, "name", str), boot, environment, fields.get("seat"))}


def dial_back(address: str, key: bytes) -> tuple[int, int]:
    """Connect to an address, encrypted; both ends prove that they know the key. Returns pipes to read and to write.

    Raises OSError or WireError."""
    connection = TlsContexts(key).dial(listener.dial(address, DIAL_SECONDS))
    (incoming, sink), (source, outgoing) = os.pipe(), os.pipe()
    threading.Thread(target=relay, args=(connection, source, sink), daemon=True).start()
    return incoming, outgoing


def main() -> None:
    """Run an agent that communicates over standard input and output, or over a connection to the address given.

    Other output is redirected to standard error."""
    read_fd, write_fd, launcher = 0, os.dup(1), ""
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.argv[1:]:
        read_fd, write_fd = dial_back(sys.argv[1], bytes.fromhex(sys.stdin.readline()))
        launcher = sys.argv[1].rpartition(":")[0]
    signal.signal(signal.SIGTERM, lambda *_: os.close(read_fd))  # as if the input had ended
    shared_memory_names.sweep()
    agent = HostAgent(read_fd, write_fd, launcher)
    try:
        agent.run()
    except (OSError, WireError) as error:
        print(f"gbactl agent: {error}", file=sys.stderr, flush=True)
    finally:
        agent.end()
        shared_memory_names.sweep()
    os._exit(0)


if __name__ == "__main__":
    main()

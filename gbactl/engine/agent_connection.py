"""Launcher's connection to one host's agent: the protocol, the command that starts the agent, requests and reports.

A message is a length and a msgpack pair (name, fields), on a pipe that ssh carries. Nothing is unpickled, and no
message above `LONGEST` bytes is read. A remote shell may print a greeting before the agent starts: everything before
`MAGIC` is skipped. A host whose agent is silent for too long is taken as failed. A host costs two threads: one reads,
one sends heartbeats.

The command is built as Horovod's launcher builds it. gbactl uses Horovod's code for three things: which hosts are this
machine (`network`), the command over ssh or Kubeflow's shell (`remote.get_remote_command`), and the placement of ranks
(`hosts.get_host_assignments`). It does not use `launch_gloo` and `safe_shell_exec.execute`. According to its source,
the first opens a rendezvous without a key on every interface, puts the environment on the ssh command line and ends the
job with the first process that ends. The second starts commands through multiprocessing, which gives them an empty
standard input, the only safe way to pass a secret key, and decodes their output as text. Horovod's ssh also accepts any
host key (StrictHostKeyChecking=no); gbactl keeps ssh's own rule unless `cluster.ssh` says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from gbactl.collective.horovod import missing_horovod_error
from gbactl.errors import ClusterError, WireError

MAGIC = b"\0gbactl-agent-1\n"
LONGEST = 1 << 23
MOST_GREETING = 1 << 16
PIECE = 1 << 20  # bytes of a file in one message
_LENGTH = struct.Struct("<I")
Message = tuple[str, dict[str, Any]]
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
AGENT = "gbactl.engine.agent"
LOOK_SECONDS = 0.25
END_SECONDS = 4.0
LAST_WORDS_SECONDS = 1.0  # time that ssh's last error message may take after ssh has ended
READ_BYTES = 1 << 18
OnReport = Callable[[str, dict[str, Any]], None]


def pack(name: str, fields: dict[str, Any]) -> bytes:
    """Encode one message to or from an agent. Raises WireError if it is too long."""
    body = msgspec.msgpack.encode((name, fields))
    if len(body) > LONGEST:
        raise WireError(f"A message {name} of {len(body)} bytes is too long for a host's pipe.")
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Decoder of a byte stream into messages; `greeted`: the prefix MAGIC was received or is not expected."""

    def __init__(self, greeted: bool = True) -> None:
        self._buffer = bytearray()
        self._greeted = greeted

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes and return the messages that they complete. Raises WireError for malformed data."""
        self._buffer += data
        if not self._greeted and not self._past_greeting():
            return []
        found = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LONGEST:
                raise WireError(f"A host's pipe announces a message of {length} bytes, which is too long.")
            if len(self._buffer) < _LENGTH.size + length:
                break
            found.append(_message(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])))
            del self._buffer[: _LENGTH.size + length]
        return found

    def _past_greeting(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at < 0:
            if len(self._buffer) > MOST_GREETING:
                raise WireError("What answers is no gbactl agent.")
            return False
        del self._buffer[: at + len(MAGIC)]
        self._greeted = True
        return True


def _message(body: bytes) -> Message:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise WireError("A message on a host's pipe is not a name with fields.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError("A message on a host's pipe cannot be read.") from error


def field(fields: dict[str, Any], key: str, kind: Any) -> Any:
    """Return a message's field. Raises WireError if it is missing or of another type."""
    value = fields.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"A message on a host's pipe lacks {key}.")
    return value


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a pipe. Raises OSError when the other end is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def horovod_launcher() -> tuple[Any, Any, Any]:
    """Import three modules of Horovod's launcher: (network, remote, hosts). Raises MissingDependencyError."""
    try:
        from horovod.runner.common.util import hosts
        from horovod.runner.util import network, remote
    except ImportError as error:
        raise missing_horovod_error(error) from error
    return network, remote, hosts


def address_of_host(host: str) -> str | None:
    """Resolve a host's name to its IPv4 address; None if only ssh knows it. Raises MissingDependencyError."""
    found: str | None = horovod_launcher()[0].resolve_host_address(host)
    return found


def is_here(host: str) -> bool:
    """Return whether a host name means this machine, so that no ssh is needed. Raises MissingDependencyError."""
    network = horovod_launcher()[0]
    address = network.resolve_host_address(host)
    return address in network.get_local_host_addresses() or bool(address and address.startswith("127."))


def agent_command(python: str | None) -> str:
    """Return the shell-quoted command that starts an agent on the machine that runs it.

    `python`: None is the same path as here."""
    return f"{quote(python or sys.executable)} -m {AGENT}"


def command(host: str, ssh: str, python: str | None) -> str:
    """Build the local command that starts an agent on a host, quoted as for a shell, without secrets and environment.

    `ssh`: the command that reaches the host, with its options. Raises MissingDependencyError."""
    start = agent_command(python)
    if is_here(host):
        return start
    remote = horovod_launcher()[1]
    remote_command = quote(f"cd {quote(os.getcwd())} > /dev/null 2>&1 ; exec {start}")
    made: str = remote.get_remote_command(remote_command, host=host)
    return made.replace(remote.SSH_COMMAND_PREFIX, ssh, 1)


class AgentConnection:
    """Connection to a host's agent, which `command` (split as by a shell) starts.

    Error output goes to the file `errors`. `patience`: seconds of silence after which the host is taken as failed."""

    def __init__(self, host: str, command: str, errors: Path, patience: float) -> None:
        self.host, self.errors, self.patience = host, errors, patience
        self.lost_reason: str | None = None  # reason why the host is lost
        self.on_report: OnReport = lambda name, fields: None
        self.on_lost: Callable[[str], None] = lambda why: None
        with errors.open("ab") as output:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._last_message = time.monotonic()
        self._writing, self._state = threading.Lock(), threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._requests, self._ending = 0, False
        loops = (self._read, self._pulse)
        self._threads = [threading.Thread(target=loop, name=f"host {host}", daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    # -- to the agent -------------------------------------------------------------------------------

    def send(self, name: str, /, **fields: Any) -> None:
        """Send a message to the agent without waiting for an answer; does nothing if the host is lost."""
        data = pack(name, fields)
        try:
            with self._writing:
                write_all(self._in, data)
        except OSError:
            self.mark_lost("its agent is gone")

    def request(self, name: str, seconds: float, /, **fields: Any) -> dict[str, Any]:
        """Send a request to the agent and wait for its answer. Raises ClusterError with the host's name."""
        answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._state:
            self._requests += 1
            number = self._requests
            self._answers[number] = answers
            if self.lost_reason is not None:
                answers.put(None)
        try:
            self.send(name, ask=number, **fields)
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise ClusterError(f"Host {self.host} did not answer within {seconds:.0f} s; check its load.") from None
        finally:
            with self._state:
                del self._answers[number]
        if answer is None:
            raise ClusterError(f"Host {self.host} is gone: {self.lost_reason}.")
        if "error" in answer:
            raise ClusterError(f"Host {self.host}: {str(answer['error']).rstrip('.')}.")
        return answer

    def _pulse(self) -> None:
        while self.lost_reason is None and not self._ending:
            self.send("pulse")
            time.sleep(min(1.0, self.patience / 8))

    # -- from the agent -----------------------------------------------------------------------------

    def _read(self) -> None:
        reader, poll = MessageDecoder(greeted=False), select.poll()
        poll.register(self._out, select.POLLIN)
        try:
            while self.lost_reason is None:
                if not poll.poll(1000 * LOOK_SECONDS):
                    if time.monotonic() - self._last_message > self.patience:
                        self.mark_lost(f"it has said nothing for {self.patience:g} s")
                    continue
                data = os.read(self._out, READ_BYTES)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(LAST_WORDS_SECONDS)
                    self.mark_lost("its agent has ended")
                    return
                self._last_message = time.monotonic()
                for name, fields in reader.feed(data):
                    self._take(name, fields)
        except (OSError, WireError) as error:
            self.mark_lost(str(error).rstrip("."))

    def _take(self, name: str, fields: dict[str, Any]) -> None:
        if name == "answer":
            with self._state:
                waiting = self._answers.get(field(fields, "ask", int))
            if waiting is not None:
                waiting.put(fields)
        elif name != "pulse":
            self.on_report(name, fields)

    def mark_lost(self, why: str) -> None:
        """Mark the host as lost and close the connection, which ends the host's processes.

        Only the first call has an effect."""
        with self._state:
            if self.lost_reason is not None:
                return
            self.lost_reason = why
            waiting = list(self._answers.values())
        for answers in waiting:
            answers.put(None)
        with contextlib.suppress(OSError):  # of ssh, which closes the remote agent's input, or of the local agent
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        if not self._ending:
            self.on_lost(why)

    # -- the end ------------------------------------------------------------------------------------

    def last_error(self) -> str:
        """Return the last line with an error, else the last line, that ssh or the agent wrote to standard error."""
        try:
            lines = self.errors.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return next(iter([line for line in reversed(lines) if "error:" in line] + lines[-1:]), "").strip()

    def end(self) -> None:
        """Ask the agent to end with all processes that it has started; `close` waits for the end."""
        self._ending = True
        if self.lost_reason is None:
            threading.Thread(target=lambda: self.send("end"), daemon=True).start()  # a full pipe must not block

    def close(self) -> None:
        """Terminate the agent and wait a few seconds at most for its end."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self.mark_lost("the run has ended")
        self._process.wait()
        for thread in self._threads:
            thread.join(2 * LOOK_SECONDS + 1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

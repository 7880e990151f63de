"""Control of a running job: its control socket, and the client `gbactl switch`.

The launcher forwards requests to the coordinator. The socket listens on this host alone. A file in the run directory
has the socket's address and a key that is valid for this socket alone; only the run's user can read the file. The
socket costs one thread, which sleeps until a client connects.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.atomic_files import CONFIG, RESULT, replacing
from gbactl.config.engine_interface import engine_named
from gbactl.errors import ConfigError, GbactlError, UsageError, WireError
from gbactl.launch.run_dir import LOG, find, lock
from gbactl.policies.policy import names
from gbactl.switching.switch_texts import answer, status
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.listener import local
from gbactl.wire.messages import Event, decode
from gbactl.wire.node_connections import SocketHub

FILE = "control.json"
ROLE = "control"
FINAL_STATES = ("same", "refused", "stayed", "done")  # final states of a switch request
_LOOK_SECONDS = 0.2
MOST_FAILURES = 20


class ControlSocket:
    """Control socket of a run, which answers requests for a mode switch or for the run's status.

    `forward` sends a request to the coordinator; `on_event` must be called with every event of the coordinator."""

    def __init__(self, run_dir: Path, forward: Callable[[Event], None]) -> None:
        key = new_key()
        self.path, self.forward = run_dir / FILE, forward
        self.hub = SocketHub(key, Peer("launcher", 0), bind=local("127.0.0.1", "shm"))
        self.progress: dict[str, Any] = {}
        self.switches: list[dict[str, Any]] = []
        self.failures: deque[str] = deque(maxlen=MOST_FAILURES)  # sentences
        self._clients: dict[int, Channel] = {}
        self.requests = 0
        self._closed = False
        _write(self.path, {"address": self.hub.address, "key": key.hex(), "pid": os.getpid()})
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def on_event(self, event: Event) -> None:
        """Handle a coordinator's event: record progress, or send a switch's outcome to the client that requested it."""
        if event.name == "progress":
            self.progress = event.fields
        elif event.name == "switch":
            self._on_switch(event)

    def _on_switch(self, event: Event) -> None:
        fields = event.fields
        if fields["state"] in ("done", "stayed"):
            self.switches = [*self.switches, {key: value for key, value in fields.items() if key != "id"}]
        channel = self._clients.get(fields.get("id", 0))
        if channel is not None:
            channel.send(event)
            if fields["state"] in FINAL_STATES:
                self._clients.pop(fields["id"], None)

    def interrupted(self) -> None:
        """Refuse all open switch requests, as the coordinator that was handling them has failed."""
        refusal = {"state": "refused", "why": "the coordinator was killed; ask again"}
        for number in list(self._clients):
            self._on_switch(Event("switch", {"id": number, **refusal}))

    def close(self) -> None:
        """Close the control socket and the connections of waiting clients."""
        self._closed = True
        self._thread.join(5 * _LOOK_SECONDS)
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.hub.close()

    def _serve(self) -> None:
        while not self._closed:
            for channel, frame in self.hub.poll(_LOOK_SECONDS):
                try:
                    self._handle(channel, frame)
                except WireError:
                    channel.close()
                finally:
                    frame.release()

    def _handle(self, channel: Channel, frame: Frame) -> None:
        if frame.kind == CLOSED:
            self._clients = {number: client for number, client in self._clients.items() if client is not channel}
            return
        message = decode(frame)
        if channel.peer.role != ROLE or not isinstance(message, Event):
            raise WireError(f"{channel.peer} may not control this run.")
        if message.name == "status":
            channel.send(Event("status", {**self.progress, "switches": self.switches, "failures": list(self.failures)}))
        elif message.name == "switch":
            self.requests += 1
            self._clients[self.requests] = channel
            self.forward(Event("switch", {**message.fields, "id": self.requests}))


def _write(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON file atomically, readable only by this user."""
    with replacing(path) as partial:
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(fields, file)


ANSWER_SECONDS = 15.0


def ask(run: str, to: str, changes: tuple[str, ...], wait: bool, as_json: bool, uri: str | None) -> None:
    """Ask a running job to switch to another mode, and print its answer. Raises GbactlError if it does not switch."""
    mode = mode_with(to, changes)
    with ControlClient(find(run, uri, holding=CONFIG)) as client:
        fields = client.switch(mode, wait)
    if as_json:
        print(json.dumps(fields), flush=True)
    text = answer(fields)
    if not as_json:
        print(text, flush=True)


def tell_status(run: str, as_json: bool, uri: str | None) -> None:
    """Print the status of a running job."""
    run_dir = find(run, uri, holding=CONFIG)
    with ControlClient(run_dir) as client:
        fields = client.status()
    print(json.dumps(fields) if as_json else status(run_dir, fields), flush=True)


class ControlClient:
    """Client's connection to a run's control socket; the constructor raises UsageError if the run does not listen."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        address, key = _address_and_key(run_dir)
        self.hub = SocketHub(key, Peer(ROLE, 0))
        self._frames: deque[Frame] = deque()
        try:
            self.channel = self.hub.connect(address, peer=Peer("launcher", 0))
        except WireError as error:
            self.hub.close()
            raise UsageError(_gone(run_dir)) from error

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.close()

    def status(self) -> dict[str, Any]:
        """Request the run's latest progress and its list of switches."""
        self.channel.send(Event("status", {}))
        return self._receive(ANSWER_SECONDS)

    def switch(self, mode: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Request a switch to a mode (all keys of its configuration), and return the run's final answer.

        `wait`: until the first gradient in it. Raises GbactlError if the run ends without an answer."""
        self.channel.send(Event("switch", {"mode": mode}))
        limit: float | None = ANSWER_SECONDS
        while True:
            answer = self._receive(limit)
            if answer["state"] in FINAL_STATES or not wait:
                return answer
            limit = None

    def _receive(self, seconds: float | None) -> dict[str, Any]:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._frames:
            if deadline is not None and time.monotonic() > deadline:
                raise GbactlError(f"The run in {self.run_dir} does not answer; look into its logs.")
            self._frames.extend(frame for _, frame in self.hub.poll(0.5))
        frame = self._frames.popleft()
        if frame.kind == CLOSED:
            raise GbactlError(f"The run in {self.run_dir} ended before it answered.")
        message = decode(frame)
        assert isinstance(message, Event)
        return message.fields


def _address_and_key(run_dir: Path) -> tuple[str, bytes]:
    """Read the address and the key of a run's control socket from its run directory. Raises UsageError."""
    try:
        fields = json.loads((run_dir / FILE).read_text())
        return str(fields["address"]), bytes.fromhex(fields["key"])
    except FileNotFoundError:
        raise UsageError(_gone(run_dir)) from None
    except PermissionError:
        raise UsageError(f"{run_dir / FILE} belongs to somebody else; only who started a run may switch it.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{run_dir / FILE} cannot be read ({error}).") from error


def locked(run_dir: Path) -> bool:
    """Return whether a launcher holds a run directory's lock."""
    try:
        lock(run_dir).release()
    except UsageError:
        return True
    return False


def _gone(run_dir: Path) -> str:
    if (run_dir / RESULT).is_file():
        return f"The run in {run_dir} has ended; type gbactl train to start another."
    if _virtual(run_dir):
        return f"The run in {run_dir} is virtual: it follows its switch.schedule, or switch=auto, and cannot be asked."
    if locked(run_dir):
        if (run_dir / LOG).is_file():
            return f"The run in {run_dir} has trained and writes its result; wait for {run_dir / RESULT}."
        return f"The run in {run_dir} is about to start; ask again in a few seconds."
    return f"The run in {run_dir} is not running: it ended without a result, for instance because it was killed."


def _virtual(run_dir: Path) -> bool:
    import yaml

    try:
        config = yaml.safe_load((run_dir / CONFIG).read_text())
        return not engine_named(str(config["cluster"]["name"])).real
    except (OSError, yaml.YAMLError, KeyError, TypeError, ConfigError):
        return False


def mode_with(to: str, changes: tuple[str, ...]) -> dict[str, Any]:
    """Load all keys of a mode from conf/mode/TO.yaml and apply KEY=VALUE changes, written as Hydra's overrides are.

    Raises UsageError for an unknown mode, and for a change that is not KEY=VALUE."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from gbactl.launch.hydra_config import mode_file

    if to not in names() and not any(change.startswith(("target=", "mode.target=")) for change in changes):
        raise UsageError(f"--to {to} is no mode; type --to one of: {', '.join(names())}.")
    values, parser = mode_file(to), OverridesParser.create()
    for change in changes:
        with contextlib.suppress(HydraException):
            override = parser.parse_override(change)
            if override.key_or_group and not override.is_sweep_override() and change[0] not in "+~":
                values[override.key_or_group.removeprefix("mode.")] = override.value()
                continue
        raise UsageError(f"--set {change} is no KEY=VALUE; type for instance --set iota=4.")
    return {**values, "name": to}

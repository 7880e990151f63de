"""Control socket of a running job, through which `gbactl switch --run` sends requests to its launcher.

The launcher forwards them to the coordinator. The socket listens on this host alone. Its address and a key for it only
are in a file of the run directory that only its owner can read. Costs one thread, which sleeps until somebody connects.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.errors import WireError
from gbactl.wire.addresses import local
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.channel import Channel
from gbactl.wire.event_loop import SocketHub
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.messages import Event, decode

FILE = "control.json"
ROLE = "control"
LAST = ("same", "refused", "stayed", "done")  # final states of a switch request
_LOOK_SECONDS = 0.2


class ControlSocket:
    """Control socket of a run, which answers requests for a switch or the status.

    `forward` sends a request to the coordinator; `heard` must be called with every event of the coordinator."""

    def __init__(self, run_dir: Path, forward: Callable[[Event], None]) -> None:
        key = new_key()
        self.path, self.forward = run_dir / FILE, forward
        self.hub = SocketHub(key, Peer("launcher", 0), bind=local("127.0.0.1", "shm"))
        self.progress: dict[str, Any] = {}
        self.switches: list[dict[str, Any]] = []
        self._asking: dict[int, Channel] = {}
        self._last = 0
        self._closed = False
        _write(self.path, {"address": self.hub.address, "key": key.hex(), "pid": os.getpid()})
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def heard(self, event: Event) -> None:
        """Handle an event of the coordinator, and answer the request that it belongs to."""
        if event.name == "progress":
            self.progress = event.fields
        elif event.name == "switch":
            self._told(event)

    def _told(self, event: Event) -> None:
        fields = event.fields
        if fields["state"] in ("done", "stayed"):
            self.switches = [*self.switches, {key: value for key, value in fields.items() if key != "id"}]
        channel = self._asking.get(fields.get("id", 0))
        if channel is not None:
            channel.send(event)
            if fields["state"] in LAST:
                self._asking.pop(fields["id"], None)

    def interrupted(self) -> None:
        """Refuse all open requests, which were lost with a failed coordinator."""
        told = {"state": "refused", "why": "the coordinator was killed; ask again"}
        for number in list(self._asking):
            self._told(Event("switch", {"id": number, **told}))

    def close(self) -> None:
        """Close the control socket; clients that wait see their connection end."""
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
            self._asking = {number: each for number, each in self._asking.items() if each is not channel}
            return
        message = decode(frame)
        if channel.peer.role != ROLE or not isinstance(message, Event):
            raise WireError(f"{channel.peer} may not control this run.")
        if message.name == "status":
            channel.send(Event("status", {**self.progress, "switches": self.switches}))
        elif message.name == "switch":
            self._last += 1
            self._asking[self._last] = channel
            self.forward(Event("switch", {**message.fields, "id": self._last}))


def _write(path: Path, fields: dict[str, Any]) -> None:
    """Write a file that is complete once it exists, and never readable by other users."""
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        partial.unlink()
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(fields, file)
    partial.replace(path)

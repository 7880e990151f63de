"""The door of a running job: `gbactl switch --run` talks to its launcher, which hands wishes on to the coordinator.

It listens on this host alone; the address and a key that opens nothing else stand in a file in the run directory
that its owner alone can read. One thread, which sleeps until somebody comes.
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
LAST = ("same", "refused", "stayed", "done")  # states of a switch after which nothing more is said
_LOOK_SECONDS = 0.2


class Control:
    """`forward` hands a wish to the coordinator; call `heard` with everything that the coordinator tells."""

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
        """The coordinator told something: remember it, and answer who asked for it."""
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
        """The coordinator is gone, and with it what it was asked."""
        told = {"state": "refused", "why": "the coordinator was killed; ask again"}
        for number in list(self._asking):
            self._told(Event("switch", {"id": number, **told}))

    def close(self) -> None:
        """Nobody can ask any more; whoever waits is told so by the end of the connection."""
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
    """The file is complete when it is there, and never readable by others."""
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        partial.unlink()
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(fields, file)
    partial.replace(path)

"""Launcher's connection to the coordinator, and to its replacement when it is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gbactl.coordinator.state import kept
from gbactl.engine.base import RunProcesses
from gbactl.errors import WireError
from gbactl.wire.event_loop import SocketHub
from gbactl.wire.messages import Event, Hello
from gbactl.wire.socket_channel import SocketChannel

LOOK_SECONDS, AWAY_SECONDS = 0.1, 2.0
Check = Callable[[RunProcesses, tuple[str, bool] | None, bool], None]


class CoordinatorConnection:
    """Launcher's connection to the current coordinator. `say` shows a sentence.

    A `Check` raises where a child's end ends the run."""

    def __init__(self, children: RunProcesses, hub: SocketHub, say: Callable[[str], None]) -> None:
        self.children, self.hub, self.say = children, hub, say
        self._channel: SocketChannel | None = None
        self._heard = self._looked = time.monotonic()
        self._failure = "death"
        self._error: WireError | None = None

    def meet(self, check: Check) -> None:
        """Connect to the coordinator; where that fails, raise the error of the failed process if there is one.

        The dial runs in a thread: a pending connection to a failed coordinator stays open, as its replacement may
        accept it."""
        self.hub.patience, self._error = self.children.cfg.cluster.start_timeout, None
        dialling = threading.Thread(target=self._dial, name="dial", daemon=True)
        dialling.start()
        while dialling.is_alive():
            dialling.join(LOOK_SECONDS)
            if self.children.revivable:
                self.children.revive("death", self._heard)
            check(self.children, self.children.failure(), self.children.ended())
        if self._error is not None:
            self.children.wait(1.0)
            check(self.children, self.children.failure(), self.children.ended())
            raise self._error
        self._heard = self._looked = time.monotonic()

    def _dial(self) -> None:
        try:
            self._channel = self.hub.connect(self.children.coordinator)
            self._channel.send(Hello("launcher", 0, "", 0))
        except WireError as error:
            self._error = error

    def tell(self, event: Event) -> None:
        """Send an event to the coordinator."""
        if self._channel is not None:
            self._channel.send(event)

    @property
    def gone(self) -> bool:
        """Whether the coordinator was killed by a signal."""
        code = self.children.running[0].process.poll()
        return code is not None and code < 0

    def missed(self) -> bool:
        """Return whether the coordinator has failed and can be replaced; kills one that hangs."""
        self._failure = "hang" if self._silent() else "death"
        return self.children.revivable

    def replace(self, check: Check) -> None:
        """Start a replacement coordinator and wait until it listens."""
        self.say("  C is gone; another one goes on from its journal.")
        self.children.revive(self._failure, self._heard)
        self.meet(check)

    def _silent(self) -> bool:
        """Kill a coordinator that was silent for too long while this process was running; returns whether it did."""
        now, child = time.monotonic(), self.children.running[0]
        if now - self._looked > AWAY_SECONDS:
            self._heard += now - self._looked
        self._looked = now
        cluster = self.children.cfg.cluster
        hangs = kept(self.children.cfg) and self.children.settled and now - self._heard > cluster.hang_seconds
        if hangs and child.process.poll() is None:
            child.process.kill()
            child.process.wait()
            return True
        return False

    def heard(self, event: Event) -> None:
        """Note that the coordinator is alive, and its success as a replacement."""
        self._heard = time.monotonic()
        if event.name == "joined" and event.fields.get("process") == "C":
            self.children.revived()

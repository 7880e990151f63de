"""Coordinator of a virtual cluster: the real one, with a hub whose `poll` advances virtual time.

It reports progress by samples instead of seconds: virtual seconds may be too few or too many between reports, and real
ones would differ from run to run.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from gbactl.coordinator.message_loop import Coordinator
from gbactl.coordinator.run_context import WaitCondition
from gbactl.errors import ClusterError, WireError
from gbactl.simulation.discrete_events import EventQueue, SerialProcess
from gbactl.simulation.network import Host, VirtualChannel
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import COORDINATOR, Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Event
from gbactl.wire.node_measurements import TrafficCounter


class VirtualHub:
    """Hub of the coordinator: its `poll` advances virtual time."""

    address = "C"

    def __init__(self, events: EventQueue, host: Host, seconds: float) -> None:
        """Make the hub. `seconds`: time that the coordinator's process needs for each message."""
        self.events, self.host, self.peer = events, host, COORDINATOR
        self.process = SerialProcess(host.cores)
        self.refused: Counter[str] = Counter()
        self.traffic = TrafficCounter()  # traffic of the whole cluster
        self.counts: Counter[str] = Counter()  # message faults that the fault plan caused
        self.waits = 0.0  # seconds without events to wait for, where a node may hang
        self._waited = 0.0
        self.away = 0.0  # seconds for which the coordinator was absent
        self._left: float | None = None
        self._seconds = seconds
        self._inbox: deque[tuple[Channel, Frame]] = deque()

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """Queue an arrived frame for the coordinator's process (Endpoint.receive)."""
        self.process.submit(lambda _: self._seconds, self._inbox.append, (channel, frame))

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """Advance virtual time to the next frame, returned alone (Hub.poll). Raises ClusterError without events."""
        events = self.events
        if self.is_down:
            while self.is_down:
                events.step()
            return []
        deadline = math.inf if timeout is None else events.now + timeout
        if timeout and deadline == events.now:  # shorter than the clock's resolution: the clock would never advance
            deadline = math.nextafter(deadline, math.inf)
        events.run(deadline, self._inbox)
        if not self._inbox:
            if not len(events):
                if self._waited >= self.waits or deadline == math.inf:
                    raise ClusterError(
                        "Nothing is left to happen in the virtual cluster; this is a bug, please report it."
                    )
                self._waited += deadline - events.now
            events.wait(deadline)
            return []
        self._waited = 0.0
        return [self._inbox.popleft()]

    @property
    def is_down(self) -> bool:
        """Whether the coordinator has failed or hangs, and handles no messages."""
        return self._left is not None

    def go_down(self) -> None:
        """Stop the coordinator, as by a failure: messages to it wait from now on."""
        self._left = self.now()
        self.process.hold()

    def come_back(self) -> None:
        """Resume the coordinator after `go_down`, with the messages that waited."""
        assert self._left is not None
        self.away, self._left = self.away + self.now() - self._left, None
        self.process.release()

    def now(self) -> float:
        """Virtual wall-clock time in seconds."""
        return self.events.clock

    def connect(self, address: str, segment_bytes: tuple[int, int] = (0, 0), peer: Peer = COORDINATOR) -> Channel:
        """Raise WireError: nodes connect to the coordinator; it connects to none."""
        raise WireError(f"The virtual coordinator cannot connect to {address}.")

    def close(self) -> None:
        """Do nothing: there is no socket."""


class VirtualCoordinator(Coordinator):
    """Real coordinator on a virtual clock; reports progress by samples, not by seconds."""

    hub: VirtualHub
    progress_seconds = math.inf
    look: Callable[[Callable[[Event], None]], None] | None = None  # called between two messages

    def _wait(self, until: WaitCondition) -> bool:
        """Wait for a condition, with the deadline extended by the time for which the coordinator was absent."""
        away = self.hub.away
        while not super()._wait(until):
            if until.deadline is None or self.hub.away == away:
                return False
            until, away = until._replace(deadline=until.deadline + self.hub.away - away), self.hub.away
        return True

    def _handle(self, channel: Channel, frame: Frame) -> None:
        """Handle a frame; before that, call `look`, which may request a switch or checkpoint."""
        if self.look is not None:
            self.look(self.core.on_launcher_request)
        super()._handle(channel, frame)

    def add_virtual_time(self, checkpoint_fields: Callable[[float], dict[str, Any]]) -> None:
        """Add the virtual time passed to the run's result, and the `checkpoint_fields` to its entry `checkpoint`."""

        def amend(result: dict[str, Any]) -> None:
            result["virtual_seconds"] = self.hub.now()
            if "checkpoint" in result:
                record = self.context.record
                result["checkpoint"] |= checkpoint_fields(record.seconds - record.seconds_at_resume)

        self.flow.amend_result = amend

"""Exactly-once, ordered delivery over a connection that loses, delays, duplicates and reorders messages.

Used between a worker and a server or the coordinator where a fault plan has the kind `messages`, during the whole run.
Every message is numbered, kept until it is acknowledged, and sent again until then. Duplicates are dropped, early
messages wait. The protocol above therefore sees each message exactly once. A lost connection is reported as without
this layer. Each message costs a copy of its payload and one more message.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gbactl.errors import WireError
from gbactl.faults.fault_plan import FaultPlan
from gbactl.faults.message_faults import MessageFaultStream
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import NO_BYTES, Channel, ChannelWrapper, Hub, HubWrapper
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import KIND, Acknowledged, Granted, NumberedMessage, Rows, Staged, decode, kind_of, pack

RETRY_SECONDS, TICK_SECONDS = 0.05, 0.005
MOST_EARLY = 4096  # messages received ahead of a missing one that are kept
#: messages that show training's progress to a worker, a server and the coordinator, with the field of the step
_STEPS: dict[type[Any], str | None] = {Granted: None, Rows: "version", Staged: "row_version"}
_PROGRESS_KINDS = frozenset(KIND[message] for message in _STEPS)


class TrainingProgress:
    """Training progress as one node sees it: the highest step number in its messages, and the time training began.

    With it each end knows when a message fault is active, without a message for that. A replacement process
    counts from its own start, as for its slow-downs. Thread-safe."""

    def __init__(self, plan: FaultPlan, now: Callable[[], float]) -> None:
        self.now, self._fault_periods, self._lock = now, plan.fault_periods(), threading.Lock()
        self._began, self._step = math.inf, -1

    def on_message(self, message: Any) -> None:
        """Update the highest step number and the start time of training from a sent or received message."""
        if type(message) in _STEPS:
            name = _STEPS[type(message)]
            with self._lock:
                self._began = min(self._began, self.now())
                self._step = max(self._step, 0 if name is None else getattr(message, name))

    def on_frame(self, frame: Frame) -> Frame:
        """Update the TrainingProgress from a received frame and return the frame, also one that cannot be decoded."""
        if frame.kind in _PROGRESS_KINDS:
            with contextlib.suppress(WireError):
                frame.message = decode(frame)
                self.on_message(frame.message)
        return frame

    @property
    def active_faults(self) -> frozenset[int]:
        """Indexes, in the fault plan, of the periods of message faults that are active now."""
        with self._lock:
            return self._fault_periods.active_indexes(self._step, self.now() - self._began)


@dataclass
class _Sent:
    """Message that the peer has not acknowledged; it is sent again at time `due`."""

    message: NumberedMessage
    payload: Bytes | None
    due: float


class ReliableChannel(ChannelWrapper):
    """Channel with exactly-once delivery over `inner`; `message_faults` are drawn for every transmission."""

    def __init__(
        self, inner: Channel, message_faults: MessageFaultStream, progress: TrainingProgress, counts: Counter[str]
    ) -> None:
        super().__init__(inner)
        self.message_faults, self.progress, self.counts = message_faults, progress, counts
        self.now = progress.now
        self._lock = threading.RLock()
        self._next = self._expected = 0
        self._sent: dict[int, _Sent] = {}
        self._delayed: list[tuple[float, Any, Bytes | None]] = []
        self._out_of_order: dict[int, Frame] = {}

    def reserve(self, nbytes: int) -> Bytes:
        """Allocate memory that stays unchanged until the message is acknowledged."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        self.progress.on_message(message)
        with self._lock:
            numbered = NumberedMessage(self._next, kind_of(message), pack(message))
            self._sent[self._next] = sent = _Sent(numbered, None if payload is None else payload.copy(), 0.0)
            self._next += 1
            self._transmit(sent)

    def close(self) -> None:
        with self._lock:
            self._sent.clear()
            self._delayed.clear()
        self.inner.close()

    def tick(self) -> None:
        """Send delayed messages, and resend unacknowledged ones that are due."""
        with self._lock:
            now = self.now()
            due = [delayed for delayed in self._delayed if delayed[0] <= now]
            self._delayed = [delayed for delayed in self._delayed if delayed[0] > now]
            for _, message, payload in due:
                self.inner.send(message, payload)
            for sent in [sent for sent in self._sent.values() if sent.due <= now]:
                self.counts["retried"] += 1
                self._transmit(sent)

    def _transmit(self, sent: _Sent) -> None:
        sent.due = self.now() + RETRY_SECONDS
        self._send_with_faults(sent.message, sent.payload)

    def _send_with_faults(self, message: Any, payload: Bytes | None) -> None:
        """Send a message once, exposed to the loss, delay or duplication drawn from the fault plan."""
        outcome = self.message_faults.draw(self.progress.active_faults)
        self.counts.update(outcome.names)
        for delay in outcome.delays:
            if delay:
                self._delayed.append((self.now() + delay, message, payload))
            else:
                self.inner.send(message, payload)

    def received(self, frame: Frame) -> list[Frame]:
        """Process a received frame; returns the frames now deliverable in order.

        Raises WireError for a message that should be numbered and is not."""
        message = decode(frame)
        with self._lock:
            if isinstance(message, Acknowledged):
                for number in [number for number in self._sent if number < message.below]:
                    del self._sent[number]
                return []
            if not isinstance(message, NumberedMessage) or message.number > self._expected + MOST_EARLY:
                raise WireError(f"{self.peer} sent {type(message).__name__} without a number, or far too early.")
            ready = self._take_in_order(message, frame)
            self._send_with_faults(Acknowledged(self._expected), None)
        return ready

    def _take_in_order(self, message: NumberedMessage, frame: Frame) -> list[Frame]:
        if message.number < self._expected or message.number in self._out_of_order:
            frame.release()
            return []
        self._out_of_order[message.number] = Frame(message.kind, message.descriptor, frame.payload, frame.on_release)
        ready = []
        while self._expected in self._out_of_order:
            ready.append(self._out_of_order.pop(self._expected))
            self._expected += 1
        return ready


class ReliableHub(HubWrapper[ReliableChannel]):
    """Hub that injects a fault plan's message faults, and delivers exactly once in spite of them.

    It does so on connections with workers (for a worker: with all nodes)."""

    def __init__(self, hub: Hub, me: Peer, plan: FaultPlan) -> None:
        super().__init__(hub)
        self.me, self.plan = me, plan
        self.counts: Counter[str] = Counter()
        self.progress = TrainingProgress(plan, hub.now)

    def wrap(self, inner: Channel) -> ReliableChannel | None:
        faults = message_faults_of(self.plan, self.me, inner.peer)
        return None if faults is None else ReliableChannel(inner, faults, self.progress, self.counts)

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        deadline = None if timeout is None else self.hub.now() + timeout
        while True:
            left = TICK_SECONDS if deadline is None else min(TICK_SECONDS, max(0.0, deadline - self.hub.now()))
            found = [each for inner, frame in self.hub.poll(left) for each in self._received(inner, frame)]
            for channel in list(self._wrappers.values()):
                channel.tick()
            if found or (deadline is not None and self.hub.now() >= deadline):
                return found

    def _received(self, inner: Channel, frame: Frame) -> list[tuple[Channel, Frame]]:
        channel = self.wrapper_of(inner)
        if channel is None:
            return [(inner, self.progress.on_frame(frame))]
        if frame.kind != frames.CLOSED:
            try:
                return [(channel, self.progress.on_frame(ready)) for ready in channel.received(frame)]
            except WireError as error:
                self.refused[type(error).__name__] += 1
                frame.release()
        channel.close()
        self.forget(inner)
        return [(channel, Frame(frames.CLOSED, b"", NO_BYTES))]


def message_faults_of(plan: FaultPlan, me: Peer, peer: Peer) -> MessageFaultStream | None:
    """Build the random faults of messages from `me` to `peer`; None if the plan has none for them."""
    roles = {me.role, peer.role}
    if "worker" not in roles or not roles & {"server", "coordinator"}:
        return None
    outward = me.role == "worker"
    worker, other = (me, peer) if outward else (peer, me)
    faults = plan.messages(worker.index)
    return MessageFaultStream(faults, str(other), outward) if faults else None


def with_message_faults(hub: Hub, me: Peer, plan: FaultPlan) -> Hub:
    """Wrap a hub in a ReliableHub if the plan has message faults; else return the hub."""
    return ReliableHub(hub, me, plan) if plan.has_message_faults else hub

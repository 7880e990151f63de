"""Message loop of the coordinator: reads channels and the clock in one thread, which no node can block.

The coordinator sends events to the launcher, which alone logs and shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.atomic_files import room_needed
from gbactl.config import RunConfig
from gbactl.coordinator.coordinator_failover import Failover
from gbactl.coordinator.event_log import CHECKSUM
from gbactl.coordinator.event_routing import CoordinatorCore
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.run_context import RunContext, WaitCondition
from gbactl.coordinator.run_flow import RunFlow
from gbactl.coordinator.state import JournalState
from gbactl.data.dataset import Dataset
from gbactl.errors import ClusterError, DivergedError, NoRoomError, PeerGoneError, WireError
from gbactl.wire import frames
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    CheckpointLoaded,
    ClosedReplicas,
    DenseMoved,
    DenseSaved,
    Event,
    Fenced,
    GradientNorms,
    Hello,
    Inspected,
    Pong,
    Predictions,
    Reached,
    Ready,
    RingBroken,
    Saved,
    ServerState,
    Staged,
    StepChecksum,
    SummandsLost,
    TakeBatch,
    WorkerState,
    decode,
)
from gbactl.wire.node_measurements import NodeTimes

PROGRESS_SECONDS = 0.5  # longest time between two reports of progress
PROGRESS_POINTS = 50  # reports of progress per phase at least, where it has so many steps
log = logging.getLogger(__name__)


class Coordinator:
    """Coordinator of one run. `run()` returns when the run is over; the launcher then stops the processes."""

    progress_seconds, progress_points = PROGRESS_SECONDS, PROGRESS_POINTS

    def __init__(
        self, hub: Hub, cfg: RunConfig, dataset: Dataset, run_dir: Path, header: dict[str, Any],
        journal: JournalState | None = None,
    ) -> None:  # fmt: skip
        """Set up a coordinator. `journal`: state of the failed coordinator that this one replaces, if any."""
        self.hub = hub
        self.context = RunContext(hub, cfg, dataset, run_dir, header, journal)
        self.core = CoordinatorCore(self.context, 0 if journal is None else journal.term)
        self.failover = None if journal is None else Failover(self.core, journal)
        self.flow = RunFlow(self.core, self.failover)
        self._next_progress, self._reported = 0.0, (0, 0)
        core = self.core
        self._handlers: dict[type[Any], Callable[[Channel, Any, Frame], None]] = {
            Hello: self._on_hello, Ready: self._on_ready, TakeBatch: self._on_take, Predictions: self._on_predictions,
            GradientNorms: self._on_norms, Inspected: self._on_inspected, Event: self._on_event, Pong: self._on_pong,
            DenseSaved: self._on_dense_saved, SummandsLost: self._on_sums, RingBroken: self._on_sums,
            CheckpointLoaded: lambda channel, message, _: core.on_server_loaded(channel, message),
            Staged: self._checked("server", core.on_staged), Fenced: self._checked("server", core.on_fenced),
            Reached: self._checked("server", lambda message: core.requests.on_answer(message.shard)),
            Saved: self._checked("server", core.checkpoints.on_saved),
            StepChecksum: self._checked("server", lambda message: self.context.log.info(CHECKSUM, message._asdict())),
            DenseMoved: self._checked("worker", core.migration.on_moved),
            ClosedReplicas: self._checked("worker", core.replicas.on_closed),
        }  # fmt: skip
        if self.failover is not None:
            self._handlers[ServerState] = self._checked("server", self.failover.server_state)
            self._handlers[WorkerState] = self._checked("worker", self.failover.worker_state)

    def _checked(self, role: str, handle: Callable[[Any], None]) -> Callable[[Channel, Any, Frame], None]:
        """Make a message handler that first checks that the sender is the node which the message names."""

        def checked(channel: Channel, message: Any, _: Frame) -> None:
            self.context.members.authentic(channel, role, message.shard if role == "server" else message.worker)
            handle(message)

        return checked

    # -- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Drive the run to its end.

        Raises GbactlError; where the model diverged or the disk is full, it names the checkpoint to resume from."""
        checkpoints = self.core.checkpoints
        try:
            with room_needed(self.context.run_dir):
                self._loop()
        except DivergedError as error:
            self.context.send_progress()
            self.context.log.flush()
            key = f"optim.lr={self.context.cfg.optim.lr / 10:g}"
            raise DivergedError(f"{error} {checkpoints.resume_hint(key)}".rstrip()) from error
        except NoRoomError as error:
            raise NoRoomError(f"{error} {checkpoints.resume_hint()}".rstrip()) from error

    def _loop(self) -> None:
        flow = self.flow.run_all()
        condition_held: bool | None = None
        while True:
            try:
                until = next(flow) if condition_held is None else flow.send(condition_held)
            except StopIteration:
                return
            condition_held = self._wait(until)

    def _wait(self, until: WaitCondition) -> bool:
        """Handle messages until a condition holds; False when its deadline passes first."""
        condition, deadline = until
        handle = self._handle if NodeTimes.trace is None else self._handle_traced
        while not condition():
            left = PROGRESS_SECONDS if deadline is None else min(PROGRESS_SECONDS, deadline - self.hub.now())
            for channel, frame in self.hub.poll(self.core.workers.shorten_wait(max(0.0, left))):
                handle(channel, frame)
            self.core.poll()
            if self.context.training is not None and self._progress_due(self.context.training):
                self.context.send_progress()
            if deadline is not None and self.hub.now() >= deadline:
                return condition()
        return True

    def _progress_due(self, training: LivePhase) -> bool:
        """Whether to report the progress of a phase: some seconds have passed, or a share of its samples is done."""
        now, policy = self.hub.now(), training.policy
        point = training.number, policy.ledger.finished * self.progress_points // max(1, policy.phase.samples)
        if now < self._next_progress and point <= self._reported:
            return False
        self._next_progress, self._reported = now + self.progress_seconds, max(point, self._reported)
        return True

    def _handle_traced(self, channel: Channel, frame: Frame) -> None:
        trace, began = NodeTimes.trace, self.hub.now()
        self._handle(channel, frame)
        assert trace is not None
        trace.add_interval("messages", began, self.hub.now())
        trace.step(self.context.step_now)

    def _handle(self, channel: Channel, frame: Frame) -> None:
        if frame.kind == frames.CLOSED:
            self._lost(channel)
            return
        self.context.failures.record_sign_of_life(str(channel.peer))
        try:
            message = decode(frame)
            handler = self._handlers.get(type(message))
            if handler is None:
                raise WireError(f"{channel.peer} may not send {type(message).__name__} to the coordinator.")
            if (failover := self._failover_under_way) is not None and failover.holds_back(channel, message):
                return
            handler(channel, message, frame)
        except WireError as error:
            self._refuse(channel, error)
        finally:
            frame.release()

    @property
    def _failover_under_way(self) -> Failover | None:
        """Failover in progress; None if there is none."""
        return self.failover if self.context.taking_over else None

    def _refuse(self, channel: Channel, error: WireError) -> None:
        """Close the channel that sent an invalid message. Raises ClusterError if it belongs to a node of the run."""
        self.hub.refused[type(error).__name__] += 1
        log.warning("refused a frame from %s: %s", channel.peer, error)
        channel.close()
        if self.context.members.forget(channel) and not self.context.stopped:
            raise ClusterError(f"{channel.peer} was turned away: {error}") from error

    def _lost(self, channel: Channel) -> None:
        """Handle a lost connection. Raises PeerGoneError if the run cannot go on without the node."""
        run, core, peer = self.context, self.core, channel.peer
        if channel is run.launcher:
            raise PeerGoneError("The launcher is gone.")
        if (failover := self._failover_under_way) is not None and failover.on_lost(channel):
            return
        if run.members.forget_successor(channel) or not run.members.forget(channel) or run.stopped:
            return
        if not core.on_node_lost(peer):
            raise PeerGoneError(f"{peer} is gone.")

    # -- messages -----------------------------------------------------------------------------------

    def _on_hello(self, channel: Channel, hello: Hello, _: Frame) -> None:
        if hello.role == "launcher":
            self.context.launcher = channel
        elif (failover := self._failover_under_way) is not None:
            failover.hello(channel, hello)
        else:
            self.context.members.hello(channel, hello)

    def _on_pong(self, channel: Channel, pong: Pong, _: Frame) -> None:
        role = "server" if channel.peer.role == "server" else "worker"
        self.context.members.authentic(channel, role, pong.worker)
        (self.core.servers if role == "server" else self.core.workers).heartbeat.on_answer(pong)
        if role == "server":
            self.context.record.statistics.times.on_heartbeat(f"S{pong.worker}", pong.times)

    def _on_ready(self, channel: Channel, ready: Ready, _: Frame) -> None:
        members = self.context.members
        if (successor := members.successor(channel, "worker", ready.number)) is not None:
            successor.ready = True
            return
        members.authentic(channel, ready.role, ready.number)
        members.ready.add((ready.role, ready.number))

    def _on_take(self, channel: Channel, take: TakeBatch, _: Frame) -> None:
        if (successor := self.context.members.successor(channel, "worker", take.worker)) is not None:
            successor.requests += 1
            return
        self.context.members.authentic(channel, "worker", take.worker)
        self.context.hand_out(take.worker)

    def _on_sums(self, channel: Channel, message: SummandsLost | RingBroken, _: Frame) -> None:
        if channel.peer.role != "server":
            raise WireError(f"{channel.peer} is no server and may not send {type(message).__name__}.")
        self.core.on_summed(message)

    def _on_predictions(self, channel: Channel, message: Predictions, frame: Frame) -> None:
        self.context.members.authentic(channel, "worker", message.worker)
        if self.context.evaluation is not None and message.phase == self.context.phase_number:
            self.context.evaluation.store(message, frame.payload)
            self.context.failures.record_useful_work("C", str(channel.peer))

    def _on_inspected(self, channel: Channel, message: Inspected, _: Frame) -> None:
        self.context.members.member(channel)
        self.core.requests.on_checksums(channel, message)

    def _on_dense_saved(self, channel: Channel, message: DenseSaved, frame: Frame) -> None:
        self.context.members.authentic(channel, "worker", channel.peer.index)
        self.core.checkpoints.on_dense(message, frame.floats(), channel.peer.index)

    def _on_norms(self, channel: Channel, message: GradientNorms, _: Frame) -> None:
        self.context.members.member(channel)
        if message.square < 0:
            raise WireError(f"{channel.peer} sent a negative square of a norm, {message.square}.")
        run, node = self.context, "W" if channel.peer.role == "worker" else str(channel.peer)
        run.norms.add(run.current.mode.name, node, message, run.cfg.cluster.servers + (run.home == "workers"))

    def _on_event(self, channel: Channel, event: Event, _: Frame) -> None:
        if channel is not self.context.launcher or event.name not in ("switch", "stop"):
            raise WireError(f"{channel.peer} may not send an event {event.name} to the coordinator.")
        self.core.on_launcher_request(event)

"""Parameter server: one shard behind a hub. One thread handles all messages; the shard's kernels do the computation.

Pulls wait here until the shard has reached the version they ask for, so nobody polls. Gradient slices stay in the
sender's shared memory until they are applied, or are copied out when the sender runs short. A push or a pull costs
about 0.1 ms of Python beside the kernels. A failed server's successor alone loads its shard's checkpoint, or all
servers load theirs, which costs as much as reading the files.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.checkpoint.restore import BEGINNING, chain_at, load_newest, load_shard
from gbactl.cpu import settle_garbage
from gbactl.errors import WireError
from gbactl.faults.slowdown_waits import ServerSlowdown
from gbactl.server.allreduce_fallback import SumHandlers
from gbactl.server.checkpoint_writer import ShardSaver
from gbactl.server.replica_averaging import EasgdHandlers
from gbactl.store.gradient_slice import GradientSlice
from gbactl.store.optimizer_settings import due
from gbactl.store.shard import Shard
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    KIND,
    Ack,
    AdoptVersion,
    Barrier,
    BeginPhase,
    CheckpointLoaded,
    DenseState,
    DropSlice,
    Fence,
    Fenced,
    GetDense,
    GradientNorms,
    Inspect,
    Inspected,
    OrderStep,
    Ping,
    Pong,
    Pull,
    Push,
    PutDense,
    Reached,
    ReloadCheckpoint,
    ResetOptimizer,
    Rows,
    Save,
    ServerState,
    Staged,
    StepChecksum,
    Stop,
    Takeover,
    decode,
)
from gbactl.wire.node_measurements import BUSY, KERNELS, ServerTimes

HELD_SLOTS = 2  # slices of one worker left in its shared memory before the oldest is copied out
FROM_WORKERS = (Pull, Push, GetDense, PutDense)
SLOWED = frozenset(KIND[message] for message in (Pull, Push, OrderStep))  # messages that a fault plan slows down
log = logging.getLogger(__name__)


class Server:
    """Server of one shard, until the coordinator stops it or is gone."""

    def __init__(self, hub: Hub, coordinator: Channel, shard: Shard, norms_every: int, saver: ShardSaver) -> None:
        self.norms_every, self.saver = norms_every, saver
        self.hub, self.coordinator, self.shard = hub, coordinator, shard
        self.index = shard.spec.shard
        low, high = shard.dense_range
        self.dense_size = high - low
        self.phase, self.served_dense = -1, True
        self.refused: Counter[str] = Counter()
        self.stopped = False
        self.times = ServerTimes()
        self.fenced_frames = 0
        self.slowdown: ServerSlowdown | None = None
        self._waiting_pulls: list[tuple[Channel, Pull, Frame]] = []
        self._early_pushes: list[tuple[Channel, Frame]] = []  # of phases not announced here yet
        self._barriers: list[int] = []
        self._slices_in_slots: dict[int, deque[GradientSlice]] = {}
        self._fenced: dict[int, int] = {}  # worker -> its last incarnation that has ended
        centre, self._sums = EasgdHandlers(shard), SumHandlers(shard, coordinator)
        self._from_workers = (*FROM_WORKERS, *centre.from_workers, *self._sums.from_workers)
        self._handlers: dict[type[Any], Any] = {
            **centre.handlers, **self._sums.from_workers,
            Pull: self._pull, Push: self._push, OrderStep: self._order, Barrier: self._barrier,
            DropSlice: self._drop, GetDense: self._get_dense, PutDense: self._put_dense,
            ResetOptimizer: self._reset_optimizer, BeginPhase: self._begin_phase, Inspect: self._inspect,
            Stop: self._stop, Fence: self._fence, Save: self._save, Takeover: self._on_takeover,
            AdoptVersion: self._adopt, ReloadCheckpoint: self._reload, Ping: self._ping,
        }  # fmt: skip

    def run(self) -> None:
        """Handle messages until the coordinator stops this server."""
        settle_garbage()
        while not self.stopped:
            for channel, frame in self.hub.poll(self.saver.patience):
                with self.times.activity(BUSY):
                    if self.slowdown is not None and frame.kind in SLOWED:
                        self.slowdown.handle(frame.kind, self.handle, channel, frame)
                    else:
                        self.handle(channel, frame)
                    self.saver.advance()
            self.saver.advance()

    def handle(self, channel: Channel, frame: Frame) -> None:
        """Handle one message; a malformed one is refused, counted and logged."""
        if frame.kind == frames.CLOSED:
            self.stopped |= channel is self.coordinator
            return
        if self._is_fenced(channel.peer):
            frame.release()
            self.fenced_frames += 1
            channel.close()  # a failed worker that is still alive learns that it is excluded
            return
        try:
            message = decode(frame)
            handler = self._handlers.get(type(message))
            if handler is None or (channel is not self.coordinator and type(message) not in self._from_workers):
                raise WireError(f"{channel.peer} may not send {type(message).__name__}.")
            handler(channel, message, frame)
        except (WireError, ValueError) as error:
            frame.release()
            self.refused[type(error).__name__] += 1
            log.warning("refused a frame from %s: %s", channel.peer, error)
            if channel is self.coordinator:
                raise WireError(f"S{self.index} cannot follow the coordinator: {error}") from error
            channel.close()

    def _pull(self, channel: Channel, pull: Pull, frame: Frame) -> None:
        if frame.payload.size != 4 * pull.rows or pull.rows < 0:
            raise WireError(f"a pull of {pull.rows} rows has {frame.payload.size} bytes, not {4 * pull.rows}")
        if pull.after > self.shard.version:
            # it is served while an order is handled, so an error must be found now
            index = frame.payload.view(np.int32)
            if len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.shard.spec.local_rows:
                raise WireError("a pull asks for a row that this shard does not have")
            self._waiting_pulls.append((channel, pull, frame))
        else:
            self._serve(channel, pull, frame)

    def _serve(self, channel: Channel, pull: Pull, frame: Frame) -> None:
        shard, width, dense = self.shard, self.shard.spec.width, self._dense_floats(pull)
        out = channel.reserve(4 * (pull.rows * width + dense))
        values = out.view(np.float32)
        index = frame.payload.view(np.int32)
        with self.times.activity(KERNELS):
            shard.note_pull(pull.batch, index)
            shard.pull_rows(index, values[dense:].reshape(pull.rows, width))
            if dense:
                shard.pull_dense(values[:dense])
        frame.release()
        channel.send(Rows(pull.request, shard.version, pull.rows, dense), out)

    def _dense_floats(self, pull: Pull) -> int:
        """Number of floats of the dense slice in the answer to a pull."""
        return self.dense_size if pull.dense and pull.have_dense != self.shard.version else 0

    def _push(self, channel: Channel, push: Push, frame: Frame) -> None:
        width, n = self.shard.spec.width, max(0, push.rows)
        expected = 4 * (n + n * width + push.dense)
        if push.dense < 0 or frame.payload.size != expected:
            raise WireError(f"a push of {n} rows has {frame.payload.size} bytes, not {expected}")
        if push.dense not in (0, self.dense_size):
            raise WireError(f"a push has {push.dense} dense values, but this shard has {self.dense_size}")
        if push.phase > self.phase:  # to a successor, whose messages from the coordinator are still on their way
            self._early_pushes.append((channel, frame))
            return
        staged = Staged(self.index, channel.peer.index, push.phase, push.batch, *push[4:9], push.rows, *push[9:])
        if push.phase == self.phase:
            self._stage(channel, push, frame, staged)
        else:
            frame.release()
        # one of an earlier phase was given up at a switch: it is reported nevertheless, since its worker wants a batch
        self.coordinator.send(staged)

    def _stage(self, channel: Channel, push: Push, frame: Frame, report: Staged) -> None:
        if push.rows < 0:
            frame.release()
            empty = GradientSlice.empty(self.shard.spec.width)
            empty.report = report
            self.shard.stage(push.batch, empty)
            return
        values, n = frame.payload.view(np.float32), push.rows
        end = n + n * self.shard.spec.width
        part = GradientSlice(
            frame.payload[: 4 * n].view(np.int32),
            values[n:end].reshape(n, self.shard.spec.width),
            values[end:] if push.dense else None,
            frame.release,
            report=report,
        )
        if not self.shard.stage(push.batch, part):
            frame.release()
            return
        slices = self._slices_in_slots.setdefault(channel.peer.index, deque())
        slices.append(part)
        if len(slices) > HELD_SLOTS:
            slices.popleft().detach()

    def _order(self, _: Channel, message: OrderStep, frame: Frame) -> None:
        order = message.order
        if due(self.norms_every, order.step):
            self.coordinator.send(GradientNorms(order.step, *self.shard.gradient_norms(order)))
        touched = self.shard.touched_rows(order) if message.checksum else None
        with self.times.activity(KERNELS):
            self.shard.apply(order)
        if self.times.trace is not None:
            self.times.trace.step(self.shard.version)
        if touched is not None:
            self.coordinator.send(StepChecksum(self.index, order.step, self.shard.step_digest(touched)))
        self.on_step()

    def on_step(self) -> None:
        """Answer the pulls and all-reduce sums that waited for the shard's new version."""
        self._sums.on_step()
        self._answer_waiting()

    def _get_dense(self, channel: Channel, _: GetDense, frame: Frame) -> None:
        block = self.shard.dense_block()
        channel.send(DenseState(block.step), block.packed(*self.shard.dense_range).view(np.uint8))

    def _put_dense(self, channel: Channel, put: PutDense, frame: Frame) -> None:
        self.shard.dense_block().unpack(*self.shard.dense_range, frame.payload.view(np.float32), put.step)
        frame.release()
        channel.send(Ack())

    def _reset_optimizer(self, _: Channel, __: ResetOptimizer, frame: Frame) -> None:
        self.shard.reset_optimizer()

    def _drop(self, _: Channel, drop: DropSlice, frame: Frame) -> None:
        if drop.phase == self.phase:
            self.shard.drop(drop.batch)

    def _fence(self, _: Channel, fence: Fence, frame: Frame) -> None:
        """Refuse a failed worker's messages from now on, also those still in transit."""
        self._fenced[fence.worker] = fence.incarnation
        self._waiting_pulls = [entry for entry in self._waiting_pulls if not self._is_fenced(entry[0].peer)]
        if fence.phase == self.phase:
            for batch in fence.batches:
                self.shard.drop(batch)
        self.coordinator.send(Fenced(self.index, fence.worker))

    def _is_fenced(self, peer: Peer) -> bool:
        return peer.role == "worker" and peer.incarnation <= self._fenced.get(peer.index, -1)

    def _answer_waiting(self) -> None:
        version = self.shard.version
        if self._waiting_pulls:
            due = [entry for entry in self._waiting_pulls if entry[1].after <= version]
            self._waiting_pulls = [entry for entry in self._waiting_pulls if entry[1].after > version]
            for entry in due:
                self._serve(*entry)
        while self._barriers and self._barriers[0] <= version:
            self.coordinator.send(Reached(self.index, self._barriers.pop(0)))

    def _barrier(self, _: Channel, barrier: Barrier, frame: Frame) -> None:
        self._barriers = sorted([*self._barriers, barrier.version])
        self._answer_waiting()

    def _begin_phase(self, _: Channel, phase: BeginPhase, frame: Frame) -> None:
        self.times.total(self.hub.traffic.training)
        self.phase, self.served_dense = phase.number, phase.served_dense
        self.hub.traffic.training = phase.training
        for batch in self.shard.staged:  # this batch was given up at a switch
            self.shard.drop(batch)
        self.shard.begin_phase()
        early, self._early_pushes = self._early_pushes, []
        for push in early:
            self.handle(*push)

    def _inspect(self, _: Channel, inspect: Inspect, frame: Frame) -> None:
        counters = {"fenced": self.fenced_frames} if self.fenced_frames else {}
        counters |= getattr(self.hub, "counts", {})
        counters |= self._traffic_counters()
        counters |= {} if self.slowdown is None else self.slowdown.counters
        if inspect.what == "dense":
            block = self.shard.dense if self.served_dense else None
            checksum, model_sum = "", str(0 if block is None else block.model_sum())
        else:
            total = self.shard.model_sum(self.served_dense)
            checksum, model_sum = self.shard.checksum(), "" if total is None else str(total)
        refused = dict(self.refused + self.hub.refused)
        times = self.times.total(self.hub.traffic.training)
        self.coordinator.send(
            Inspected(f"S{self.index}", checksum, model_sum, self.shard.nbytes, counters, refused, times)
        )

    def _traffic_counters(self) -> dict[str, int]:
        """Traffic counters of this node."""
        return self.hub.traffic.counters()

    def _save(self, _: Channel, save: Save, frame: Frame) -> None:
        self.saver.begin(save)

    def _adopt(self, _: Channel, message: AdoptVersion, frame: Frame) -> None:
        """Continue a failed server's shard at the step that the other shards have reached."""
        if message.fresh:
            self.shard.reset_optimizer()
        self.shard.take_over(message.version, message.lost)
        self.on_step()  # workers may have asked before

    def _reload(self, channel: Channel, message: ReloadCheckpoint, frame: Frame) -> None:
        """Load a checkpoint, in a rollback of all nodes."""
        shard = self.shard
        self.saver.give_up()
        shard.restart()
        if message.path:
            load_shard(shard, chain_at(Path(message.path)), shard.dense is not None)
        channel.send(CheckpointLoaded(self.index, shard.version if message.path else BEGINNING))

    def _ping(self, channel: Channel, ping: Ping, frame: Frame) -> None:
        channel.send(Pong(self.index, ping.beat, self.times.total(self.hub.traffic.training)))

    def _on_takeover(self, _: Channel, takeover: Takeover, frame: Frame) -> None:
        """Answer a new coordinator with the server's state; drop open requests of its predecessor."""
        self._barriers.clear()
        self.coordinator.send(ServerState(self.index, takeover.term, self.shard.version, self.phase))
        self._sums.on_takeover()
        for report in self.shard.reports:
            self.coordinator.send(report)

    def _stop(self, _: Channel, stop: Stop, frame: Frame) -> None:
        self.stopped = True


def load_last(shard: Shard, folder: CheckpointFolder, resumed: Path | None) -> int:
    """Load the newest checkpoint, or else the checkpoint `resumed`; return its step (BEGINNING: none)."""
    found = load_newest(shard, folder, lambda why: log.warning("%s", why))
    if found is not None:
        return found.step
    if resumed is None:
        return BEGINNING
    load_shard(shard, chain_at(resumed), shard.dense is not None)
    return shard.version

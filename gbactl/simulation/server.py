"""Parameter server on the virtual network: the real server, whose jobs queue for its process and its host's cores.

Frames are handled in order of arrival; the rows of a pull are read at the moment it is served. Pulls that a
step makes ready are served before anything else, as on the real server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gbactl.checkpoint.restore import take_over
from gbactl.faults.slowdown_waits import ServerSlowdown
from gbactl.kernels.base import Floats, aligned_copy
from gbactl.kernels.half_precision import round_here
from gbactl.server.checkpoint_writer import ShardSaver
from gbactl.server.shard_server import SLOWED, Server
from gbactl.simulation.coordinator import VirtualHub
from gbactl.simulation.discrete_events import SerialProcess
from gbactl.simulation.network import Host, Network, VirtualChannel
from gbactl.store.shard import Shard
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import NO_BYTES
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    AddReplica,
    BeginPhase,
    DenseState,
    EasgdUpdate,
    GetDense,
    OrderStep,
    Pull,
    PutDense,
    ReloadCheckpoint,
    ResetOptimizer,
    Rows,
    Save,
    kind_of,
)
from gbactl.wire.node_measurements import BUSY, KERNELS, ServerTimes


@dataclass(slots=True)
class PullAnswer(Frame):
    """Answer to a pull: `rows` float32[n, width], and `dense`, the slice of that version.

    The slice is there even where the message says that it is not sent: all pulls of one version share it."""

    rows: Floats | None = None
    dense: Floats | None = None


class VirtualServer(Server):
    """Virtual server of one shard, and an Endpoint of the network."""

    def __init__(
        self, hub: VirtualHub, shard: Shard, host: Host, network: Network, norms_every: int,
        saver_of: Callable[[Callable[[Any], None]], ShardSaver], on_save: Callable[[Save, float], None],
    ) -> None:  # fmt: skip
        """Make a server. `on_save` is called at each checkpoint with the fraction of all rows that it saves."""
        self._on_save = on_save
        self.host, self.cost, self.peer = host, network.cost, Peer("server", shard.spec.shard)
        self.network = network
        channel = network.connect(self, hub)
        self._make_saver = partial(saver_of, channel.send)
        super().__init__(hub, channel, shard, norms_every, self._make_saver())
        self.times = ServerTimes(lambda: network.events.now)  # its kernels' time is what the cost model says
        self.process = SerialProcess(host.cores)
        self._charged_pull: Pull | None = None
        self._dense_copy: tuple[int, Floats] | None = None
        self._packed_state: tuple[int, Floats] | None = None
        self._slowed = False

    def slow(self, slowness: ServerSlowdown | None) -> None:
        """Slow pulls, pushes and orders down as a fault plan says; the added time uses no core."""
        self.slowdown = slowness
        self.process.stretch = None if slowness is None else self._stretch

    def _stretch(self, busy: float) -> float:
        if self.slowdown is None or not self._slowed:
            return 0.0
        self._slowed = False
        factor = self.slowdown.factor(self.network.events.now - busy)
        self.slowdown.count(factor, busy, (factor - 1.0) * busy)
        return self._count_busy((factor - 1.0) * busy, 0.0)

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """Queue an arrived frame as a job of the server's process (Endpoint.receive)."""
        self.process.submit(self._seconds, self.handle, channel, frame)

    def _seconds(self, _: VirtualChannel, frame: Frame) -> float:
        """Count and return the seconds that handling a frame takes; for a pull that must wait, without the answer's."""
        message, seconds = frame.message, self.cost.server_message
        self._slowed = frame.kind in SLOWED
        if isinstance(message, Pull):
            if message.after <= self.shard.version:
                self._charged_pull = message
                seconds += self.cost.pull(message.rows, self._dense_floats(message))
        elif isinstance(message, OrderStep):
            live = [self.shard.staged_slice(batch) for batch, weight in message.order.members if weight > 0]
            if live:  # no dense gradients, and no step, where workers or replicas hold the parameters
                dense = self.dense_size if any(part.dense is not None for part in live) else 0
                seconds += self.cost.apply(sum(len(part.index) for part in live), len(live), dense)
        elif isinstance(message, EasgdUpdate):
            seconds += self.cost.elastic(self.dense_size)
        elif isinstance(message, (GetDense, PutDense, AddReplica)):
            moments = 0 if self.shard.dense is None else len(self.shard.dense.moments)
            seconds += self.cost.pull(0, self.dense_size * (1 + moments))
        return self._count_busy(seconds, seconds - self.cost.server_message)

    def _count_busy(self, busy: float, kernels: float) -> float:
        """Count a job's seconds as busy, and `kernels` of them as time in kernels; return the job's seconds."""
        self.times.activity(BUSY).seconds += busy
        self.times.activity(KERNELS).seconds += kernels
        return busy

    def _begin_phase(self, channel: Any, phase: BeginPhase, frame: Frame) -> None:
        super()._begin_phase(channel, phase, frame)
        self._dense_copy = self._packed_state = None  # the dense slice may have been moved

    def _reset_optimizer(self, channel: Any, afresh: ResetOptimizer, frame: Frame) -> None:
        super()._reset_optimizer(channel, afresh, frame)
        self._packed_state = None

    def _traffic_counters(self) -> dict[str, int]:
        """Return no traffic counters: the virtual network counts the traffic of all nodes."""
        return {}

    def _save(self, channel: Any, save: Save, frame: Frame) -> None:
        self._on_save(save, self.saver.chooser.largest_fraction(save.kind))
        super()._save(channel, save, frame)

    def _reload(self, channel: Any, message: ReloadCheckpoint, frame: Frame) -> None:
        self._dense_copy = self._packed_state = None
        super()._reload(channel, message, frame)

    def go_back(self, state: Shard, with_dense: bool) -> None:
        """Load the state that a failed server's successor would hold: `state`, without row priorities.

        Messages in flight are kept, since they would be sent again."""
        take_over(self.shard, state, with_dense)
        self._dense_copy = self._packed_state = None
        self.saver = self._make_saver()

    def _get_dense(self, channel: Any, _: GetDense, frame: Frame) -> None:
        """Send the dense slice; all workers get the same copy."""
        block, version = self.shard.dense_block(), self.shard.version
        if self._packed_state is None or self._packed_state[0] != version:
            self._packed_state = (version, block.packed(*self.shard.dense_range))
        channel.send(DenseState(block.step), self._packed_state[1].view(np.uint8))

    def _serve(self, channel: Any, pull: Pull, frame: Frame) -> None:
        if pull is self._charged_pull:
            self._answer(channel, pull, frame)
        else:
            self.process.first(self._late_cost, self._answer, channel, pull, frame)

    def _late_cost(self, _: VirtualChannel, pull: Pull, __: Frame) -> float:
        """Cost of answering a pull that had to wait for a step."""
        self._slowed = True
        seconds = self.cost.pull(pull.rows, self._dense_floats(pull))
        return self._count_busy(seconds, seconds)

    def _answer(self, channel: VirtualChannel, pull: Pull, frame: Frame) -> None:
        dense = self._dense_floats(pull)
        index = frame.payload.view(np.int32)
        rows = np.empty((pull.rows, self.shard.spec.width), np.float32)
        self.shard.note_pull(pull.batch, index)
        self.shard.pull_rows(index, rows)
        rows = self.network.arrived(rows)
        message = Rows(pull.request, self.shard.version, pull.rows, dense)
        dense_copy = self._snapshot() if pull.dense else None
        channel.carry(
            PullAnswer(kind_of(message), b"", NO_BYTES, None, message, rows, dense_copy), rows.nbytes + 4 * dense
        )

    def _snapshot(self) -> Floats:
        """Copy of the dense slice as it is now, made once per version."""
        if self._dense_copy is None or self._dense_copy[0] != self.shard.version:
            values = aligned_copy(self.shard.dense_block().value)
            round_here(self.network.codec, values)
            self._dense_copy = (self.shard.version, values)
        return self._dense_copy[1]

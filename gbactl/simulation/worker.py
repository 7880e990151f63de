"""Worker as a chain of events around the worker's core: what worker/client.py and worker/loop.py do with threads.

The core decides when it takes, prefetches, pulls and computes, as in a real worker. Computing is a job on the host's
cores, and the fault plan's slowdown is a delay after it; DensePlacement hides what is computed, and where dense
gradients go. A worker can die or hang: its events are dropped, or deferred until it wakes up. A batch costs about 0.1
ms beside its gradient.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gbactl.faults.fault_plan import FaultPlan
from gbactl.kernels.base import Floats
from gbactl.kernels.half_precision import Codec
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.gradient_compute import SharedCompute
from gbactl.simulation.network import Host, VirtualChannel
from gbactl.wire.auth import Peer
from gbactl.wire.frames import CLOSED, Bytes, Frame
from gbactl.wire.messages import (
    WAITS,
    Ack,
    AddReplica,
    BeginPhase,
    DenseMoved,
    DenseSaved,
    DenseState,
    EasgdCentre,
    GetDense,
    Granted,
    Inspect,
    Inspected,
    MoveDense,
    OpenReplicas,
    Predictions,
    PutDense,
    Rows,
    SaveDense,
    SaveReplica,
    ShardRelocated,
    Stop,
)
from gbactl.wire.node_measurements import ALL_REDUCE, BATCH, ROWS, TURN
from gbactl.worker.client import BatchSource
from gbactl.worker.worker_core import (
    NOT_HERE,
    BatchComplete,
    BatchInProgress,
    Command,
    ComputeNext,
    CoordinatorMessage,
    DenseTransfer,
    PullRows,
    Question,
    TellCoordinator,
    WorkerCore,
)

State = tuple[int, Floats]


class DenseTransfers:
    """Fetches and sends the dense state of every shard: its optimizer's step count and its float32 values.

    `servers`: channels to the servers that have a slice, in shard order."""

    def __init__(self, servers: Mapping[int, VirtualChannel]) -> None:
        self.servers = servers
        self._transfer = DenseTransfer()
        self._then: Callable[[], None] = lambda: None

    def fetch(self, then: Callable[[list[State]], None]) -> None:
        """Fetch the dense state of all shards; call `then` with the list of states."""
        ask = (GetDense(), None)
        self._begin(dict.fromkeys(self.servers, ask), lambda: then([*self._transfer.take_received().values()]))

    def give(
        self, states: list[State], then: Callable[[], None], how: Callable[[int], PutDense | AddReplica] = PutDense
    ) -> None:
        """Send each shard its dense state (or none, if empty); call `then` when all shards have it."""
        each = zip(self.servers, states, strict=False)
        self._begin({shard: (how(step), values.view(np.uint8)) for shard, (step, values) in each}, then)
        if not states:
            then()

    def _begin(self, requests: dict[int, tuple[Any, Bytes | None]], then: Callable[[], None]) -> None:
        self._then = then
        self._transfer.begin(requests)
        for shard, request in requests.items():
            self.servers[shard].send(*request)

    def on_answer(self, shard: int, message: DenseState | Ack, frame: Frame) -> None:
        """Record a server's answer: its dense state, or the acknowledgement of a dense state sent to it."""
        self._transfer.on_answer(shard, message, frame)
        if self._transfer.done:
            self._then()


@dataclass(frozen=True)
class ClusterShared:
    """Objects that all workers of a cluster share."""

    events: EventQueue
    cost: CostModel
    plan: FaultPlan
    compute: SharedCompute
    source: BatchSource
    placements: Placements
    codec: Codec | None = None


class DensePlacement:
    """Base of the dense placements in a virtual cluster (implementations: dense_placements.py)."""

    def __init__(self, compute: SharedCompute) -> None:
        self.compute, self.flat = compute, compute.flat

    def begin(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Called when a worker begins to compute a batch; does nothing. A subclass may compute the gradient now."""

    def finish(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Push a computed gradient, and free the worker when it may continue."""
        raise NotImplementedError

    def resume(self, worker: VirtualWorker) -> None:
        """Let a waiting worker continue if it has another batch of the same step."""

    def checksum(self) -> tuple[str, str]:
        """Compute (checksum, model sum) of the parameters that all workers hold; empty if they hold none."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """Pack parameters and optimizer state as of `after` steps; here NOT_HERE, as no worker holds any."""
        return NOT_HERE

    def leave(self) -> None:
        """Release the dense vector when the run moves to another placement."""
        self.compute.use_own_memory()

    def hand_over(self) -> list[State]:
        """Return the dense state to send to the servers when the run moves to them; [] if the servers hold it."""
        return []

    def add_worker(self, index: int, first: bool) -> None:
        """Add a worker that has moved to this placement; `first`: it is the first one."""

    def take_over(self, worker: VirtualWorker, states: list[State]) -> None:
        """Load the dense state from the servers for a worker that has moved here: (optimizer steps, float32) by shard.

        Raises NotImplementedError where the servers hold it."""
        raise NotImplementedError

    def remove_worker(self, index: int) -> None:
        """Stop waiting for a failed worker."""


class Placements:
    """Dense placements that a run uses, by holder of the dense parameters, and the current one."""

    def __init__(self, placements: Mapping[str, DensePlacement], first: str) -> None:
        self.placements, self._home = placements, first

    @property
    def now(self) -> DensePlacement:
        """Placement in the current mode."""
        return self.placements[self._home]

    def remove_worker(self, index: int) -> None:
        """Remove a failed worker from all placements."""
        for placement in self.placements.values():
            placement.remove_worker(index)

    def move(self, home: str, index: int) -> list[State]:
        """Move worker `index` to another placement, while no batch is in flight.

        The first call returns what that worker has to give to the servers: (optimizer steps, float32) for every shard;
        nothing where they have it, or were given it."""
        first = home != self._home
        given = self.now.hand_over() if first and home == "servers" else []
        if first:
            self.now.leave()
            self._home = home
        self.now.add_worker(index, first)
        return given


class VirtualWorker:
    """Virtual worker, and an Endpoint of the network. `dead`: killed, or told to stop."""

    def __init__(self, index: int, host: Host, shared: ClusterShared, incarnation: int = 0) -> None:
        self.index, self.peer, self.host, self.shared = index, Peer("worker", index, incarnation), host, shared
        self.slot = host.slots[index % len(host.slots)] if host.slots else None
        self.coordinator: VirtualChannel
        self._batches = 0  # number of computed batches
        self._training_began: float | None = None
        self._waits = [0.0] * len(WAITS)
        self._idle: deque[float] = deque()  # since when each idle compute thread waits for its next batch
        self._pushing: deque[float] = deque()  # when each other one had computed the gradient that it pushes
        self.dead = self._hung = self._in_slot = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def connect(self, coordinator: VirtualChannel, servers: list[VirtualChannel]) -> None:
        """Set the channels to the coordinator and, in shard order, to the servers."""
        self.coordinator, self.servers = coordinator, servers
        self.core = WorkerCore(self.index, len(servers))
        self.moves = DenseTransfers({shard: servers[shard] for shard in self.shared.compute.held})

    def start(self, ahead: int) -> None:
        """Send the first requests for batches: one to compute and `ahead` to prefetch."""
        self._carry_out(self.core.start(ahead))

    def take(self, item: BatchInProgress) -> None:
        """Return a batch without announcing a gradient, and ask for another one (an announcement would also ask)."""
        self._carry_out(self.core.request_another(item))

    @property
    def trainer(self) -> Any:
        """Trainer of this worker, made at the first use (see replica_trainer.py)."""
        replicas: Any = self.shared.placements.placements["replicas"]
        return replicas.trainer(self)

    # -- failures -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the worker: its pending events are dropped; messages already sent still arrive."""
        self.dead = True
        self._leave_slot()
        for channel in (*self.servers, self.coordinator):
            channel.close()

    def hang(self) -> None:
        """Hang the worker: its events are deferred until `wake`."""
        self._hung = True

    def wake(self) -> None:
        """End the worker's hang: carry out the events that were deferred since `hang`."""
        self._hung = False
        deferred, self._deferred = self._deferred, []
        for call, args in deferred:
            call(*args)

    def withholds(self, call: Callable[..., None], *args: Any) -> bool:
        """Whether a call must be withheld: the worker is dead, or hangs and makes the call when it resumes."""
        if self._hung:
            self._deferred.append((call, args))
        return self._hung or self.dead

    # -- messages -----------------------------------------------------------------------------------

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """Handle a frame that has arrived (Endpoint.receive)."""
        if self.withholds(self.receive, channel, frame):
            return
        message = frame.message
        if isinstance(message, Rows):
            self._carry_out(self.core.rows(channel.peer.index, message, frame))
        elif isinstance(message, Granted):
            self._granted(message)
        elif isinstance(message, Stop) or frame.kind == CLOSED:
            self.kill()
        elif isinstance(message, CoordinatorMessage):
            self._on_coordinator_message(message)
        elif isinstance(message, EasgdCentre):
            self.trainer.centre(channel.peer.index, message, frame)
        elif isinstance(message, SaveReplica):
            self.trainer.save(message)
        elif isinstance(message, (DenseState, Ack)):
            self.moves.on_answer(channel.peer.index, message, frame)
        elif isinstance(message, ShardRelocated):
            self.core.forget_dense(message.shard)

    def _granted(self, grant: Granted) -> None:
        data = self.core.data_of(grant) or self.shared.source.prepare(grant)
        self._carry_out(self.core.granted(grant, *data))

    def _on_coordinator_message(self, message: CoordinatorMessage) -> None:
        source = self.shared.source
        if isinstance(message, BeginPhase):
            source.begin(message)
            if self.core.begins_training(message):
                self._idle = deque([self.shared.events.now] * len(self._idle))
        self._carry_out(self.core.handle(message))
        early = self.core.to_prepare
        if early is not None:  # preparing takes no virtual time
            self.core.prepared(early, *source.prepare(early))

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if type(command) is PullRows:
                self.servers[command.shard].send(command.pull, command.index.view(np.uint8))
            elif type(command) is TellCoordinator:
                self.coordinator.send(command.message)
            elif type(command) is ComputeNext:
                command.item.became_next_at = self.shared.events.now
                if not command.item.pulled:  # otherwise it begins when its rows have arrived
                    self.shared.placements.now.resume(self)
            else:
                if type(command) is BatchComplete:
                    self.shared.placements.now.resume(self)
                self._go_on()

    # -- computing ----------------------------------------------------------------------------------

    def free_thread(self) -> None:
        """Free a compute thread for its next batch."""
        if not self.withholds(self.free_thread):
            now = self.shared.events.now
            if self._pushing:
                self._waits[ALL_REDUCE] += now - self._pushing.popleft()
            self._idle.append(now)
            self._carry_out(self.core.done())
            self._go_on()

    def finish_request(self) -> None:
        """Finish the coordinator's current request, whose answer took time, and handle its next request."""
        if not self.withholds(self.finish_request):
            self._idle = deque([self.shared.events.now] * len(self._idle))
            self._carry_out(self.core.on_question_answered())
            self._go_on()

    def pull_ahead(self) -> None:
        """Pull the next batch's rows now if the batch is known.

        A shard answers once it has the version that the batch's grant names (`after`)."""
        self._carry_out(self.core.pull_ahead())

    def _go_on(self) -> None:
        if self.dead:
            return
        while self.core.must_answer():
            self._answer(self.core.question())
        while self.core.ready() and not (self.core.threads > 1 and self.trainer.is_paused):
            self._begin(self.core.begin())

    def _answer(self, question: Question) -> None:
        """Answer a coordinator's request; one that takes time keeps the worker busy until it is answered."""
        if isinstance(question, Inspect):
            self.coordinator.send(self._inspected())
            self._carry_out(self.core.on_question_answered())
        elif isinstance(question, SaveDense):
            self._save_dense(question)
        elif isinstance(question, MoveDense):
            self._move(question)
        elif isinstance(question, OpenReplicas):
            self.core.threads = int(question.values.get("hogwild_threads", 1))
            self.trainer.open(question, self.finish_request)
        elif not question.last:
            self.trainer.idle()
        else:
            self.core.threads = 1
            self.shared.compute.use_own_memory()
            self.trainer.close(question)

    def _save_dense(self, question: SaveDense) -> None:
        found = self.shared.placements.now.packed(question.step)
        if found is not None:
            self.coordinator.send(DenseSaved(question.number, *found[:2]), found[2].view(np.uint8))
        self._carry_out(self.core.on_question_answered(later=found is None))

    def _inspected(self) -> Inspected:
        checksum, total = self.shared.placements.now.checksum()
        return Inspected(str(self.peer), checksum, total, {}, {})

    def _move(self, question: MoveDense) -> None:
        """Do this worker's part in a migration of the dense vector."""
        placements = self.shared.placements

        def moved() -> None:
            self.coordinator.send(DenseMoved(self.index, question.request))
            self.finish_request()

        def taken(states: list[State]) -> None:
            placements.now.take_over(self, states)
            moved()

        given = placements.move(question.home, self.index)
        if question.home == "servers":
            self.moves.give(given if question.giver >= 0 else [], moved)  # giver -1: the servers have the parameters
        else:
            self.moves.fetch(taken)

    def _begin(self, item: BatchInProgress) -> None:
        shared, samples, now = self.shared, item.grant.samples, self.shared.events.now
        idle = self._idle.popleft() if self._idle else now
        granted = max(idle, item.became_next_at)
        self._waits[BATCH] += granted - idle
        self._waits[ROWS] += now - granted
        if not item.phase.training:
            self.host.cores.run(shared.cost.predict(self.index, samples), self._evaluated, item)
            return
        if samples == 0:
            self._pushing.append(now)
            shared.placements.now.begin(self, item)
            shared.placements.now.finish(self, item)
        elif self.slot is None:
            self._differentiate(item)
        else:
            item.became_next_at = now
            self.slot.take(self._differentiate_in_slot, item)

    def _differentiate_in_slot(self, item: BatchInProgress) -> None:
        self._in_slot = True
        self._waits[TURN] += self.shared.events.now - item.became_next_at
        if self.dead:
            self._leave_slot()
        else:
            self._differentiate(item)

    def _leave_slot(self) -> None:
        if self._in_slot and self.slot is not None:
            self._in_slot = False
            self.slot.end()

    def _differentiate(self, item: BatchInProgress) -> None:
        """Begin to compute a gradient."""
        shared, began = self.shared, self.shared.events.now
        shared.placements.now.begin(self, item)
        seconds = shared.cost.gradient(self.index, self._batches, item.grant.samples)
        if item.phase.served_dense and not (item.phase.prefetch_rows or shared.plan.slows(self.index)):
            rest = min(seconds, shared.cost.push(self.index))
            self.host.cores.run(seconds - rest, self._differentiated, item, began, rest)
        else:
            self.host.cores.run(seconds, self._computed, item, began)

    def _differentiated(self, item: BatchInProgress, began: float, rest: float) -> None:
        """Pull the next batch's rows after the backward pass; `rest`: core time until the gradient can be pushed."""
        if not self.withholds(self._differentiated, item, began, rest):
            self.pull_ahead()
            self.host.cores.run(rest, self._computed, item, began)

    def _evaluated(self, item: BatchInProgress) -> None:
        if self.withholds(self._evaluated, item):
            return
        self._waits = [0.0] * len(WAITS)  # only the waits of training count
        grant, compute = item.grant, self.shared.compute
        compute.load(item)
        message = Predictions(grant.phase, self.index, grant.batch, grant.samples)
        predictions = np.ascontiguousarray(compute.predict(item), np.float32)
        self.coordinator.send(message, predictions.view(np.uint8))
        self.take(item)
        self.free_thread()

    def _computed(self, item: BatchInProgress, began: float) -> None:
        """Finish a batch's computation, after the delay that the fault plan adds."""
        self._leave_slot()
        if self.withholds(self._computed, item, began):
            return
        events = self.shared.events
        self._training_began = began if self._training_began is None else self._training_began
        item.slowdown = self.shared.plan.factor(self.index, self._batches, began - self._training_began)
        self._batches += 1
        if item.slowdown > 1.0:
            events.schedule_after((item.slowdown - 1.0) * (events.now - began), self._finish, item, began)
        else:
            self._finish(item, began)

    def _finish(self, item: BatchInProgress, began: float) -> None:
        if self.withholds(self._finish, item, began):
            return
        item.seconds = self.shared.events.now - began
        item.waits, self._waits = self._waits, [0.0] * len(WAITS)
        self._pushing.append(self.shared.events.now)
        self.shared.placements.now.finish(self, item)

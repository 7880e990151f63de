"""A worker as a chain of events: what cluster/exchange.py and cluster/worker.py do with threads.

Takes, prefetches, pulls and pushes at the same points as those; computing is a job on the host's cores, and what
the fault plan adds is a delay after it. Costs about 0.1 ms a batch beside the gradient.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gbactl.cluster.auth import Peer
from gbactl.cluster.exchange import Source
from gbactl.cluster.frames import CLOSED, Frame
from gbactl.cluster.messages import (
    Abandon,
    Ack,
    BeginPhase,
    DenseSaved,
    DenseState,
    GetDense,
    Granted,
    Inspect,
    Inspected,
    Moved,
    MoveDense,
    Ping,
    Pong,
    Predictions,
    Pull,
    PutDense,
    Rows,
    SaveDense,
    Stop,
    Take,
)
from gbactl.faults.plan import FaultPlan
from gbactl.kernels.base import Floats
from gbactl.virtual.compute import Compute
from gbactl.virtual.cost import CostModel
from gbactl.virtual.events import Events
from gbactl.virtual.item import Item
from gbactl.virtual.mortal import Mortal
from gbactl.virtual.network import Host, VirtualChannel
from gbactl.virtual.server import Answer


@dataclass(frozen=True)
class Crew:
    """What all workers of a cluster share. `sides` knows who holds the dense vector."""

    events: Events
    cost: CostModel
    plan: FaultPlan
    compute: Compute
    source: Source
    sides: Sides


class Side(Protocol):
    """Where dense gradients go (see dense.py)."""

    def begin(self, worker: VirtualWorker, item: Item) -> None:
        """A worker begins to compute."""

    def finish(self, worker: VirtualWorker, item: Item) -> None:
        """A worker has computed: push, and free the worker when it may go on."""

    def checksum(self) -> tuple[str, str]:
        """(checksum, model sum) of what a worker holds."""

    def packed(self) -> tuple[int, int, Floats]:
        """(optimizer steps, P, DenseBlock.packed) of what workers hold, for a checkpoint."""

    def leave(self) -> None:
        """Somebody else holds the dense vector from now on."""


class Sides(Protocol):
    """The ways a run has to keep its dense vector (see dense.py)."""

    @property
    def now(self) -> Side:
        """The one in use."""

    def move(self, home: str) -> list[tuple[int, Floats]]:
        """Nothing is in flight: use another. What the first to call it has to give to the servers: (optimizer
        steps, float32) for every shard; nothing where they have it, or were given it."""

    def take_over(self, states: list[tuple[int, Floats]]) -> None:
        """(optimizer steps, float32) of every shard have come from the servers."""


class VirtualWorker(Mortal):
    """One worker; a Node of the network."""

    def __init__(self, index: int, host: Host, crew: Crew, epoch: int = 0) -> None:
        self.index, self.peer, self.host, self.crew = index, Peer("worker", index, epoch), host, crew
        super().__init__()
        self.coordinator: VirtualChannel
        self.servers: list[VirtualChannel] = []
        self._shard: dict[int, int] = {}
        self._queue: deque[Item] = deque()
        self._tickets: dict[int, Item] = {}
        self._ticket = self._turn = self._acks = self._move_turn = 0
        self._questions: deque[tuple[Inspect | MoveDense | SaveDense, int]] = deque()
        self._granted_items = self._gone_items = 0
        self._states: dict[int, tuple[int, Floats]] = {}
        self._have_dense: list[int] = []
        self._phase: BeginPhase | None = None
        self._busy = False
        self._first: float | None = None

    def connect(self, coordinator: VirtualChannel, servers: list[VirtualChannel]) -> None:
        """The channels to the coordinator and, in shard order, to the servers."""
        self.coordinator, self.servers = coordinator, servers
        self.connections = [*servers, coordinator]
        self._shard = {id(channel): shard for shard, channel in enumerate(servers)}
        self._have_dense = [-1] * len(servers)

    def start(self, ahead: int) -> None:
        """Ask for `ahead` batches more than the one to compute."""
        for _ in range(1 + ahead):
            self.take()

    def take(self) -> None:
        """Ask for another batch; after a push the announcement does that."""
        self.coordinator.send(Take(self.index))

    # -- messages -----------------------------------------------------------------------------------

    def receive(self, channel: VirtualChannel, frame: Frame) -> None:
        """See network.Node."""
        if self._holds(self.receive, channel, frame):
            return
        message = frame.message
        if isinstance(message, Rows):
            assert isinstance(frame, Answer)
            self._rows(self._shard[id(channel)], message, frame)
        elif isinstance(message, Granted):
            self._granted(message)
        elif isinstance(message, BeginPhase):
            self._begin_phase(message)
        elif isinstance(message, Abandon):
            self._abandon(message.phase)
        elif isinstance(message, Inspect | MoveDense | SaveDense):
            self._questions.append((message, self._granted_items))
            self._go_on()
        elif isinstance(message, DenseState):
            self._taken(self._shard[id(channel)], message, frame)
        elif isinstance(message, Ack):
            self._acks -= 1
            self._moved()
        elif isinstance(message, Ping):
            self.coordinator.send(Pong(self.index, message.beat))
        elif isinstance(message, Stop) or frame.kind == CLOSED:
            self.die()

    def _begin_phase(self, phase: BeginPhase) -> None:
        if self._phase is not None and phase.served_dense != self._phase.served_dense:
            self._have_dense = [-1] * len(self.servers)
        self._phase = phase
        self.crew.source.begin(phase)

    def _abandon(self, phase: int) -> None:
        """See Exchange."""
        given_up = [item for item in self._queue if item.phase.number == phase]
        for item in given_up:
            self._queue.remove(item)
            self._gone_items += 1
            item.abandoned = True
            self.take()
        if given_up:
            self._have_dense = [-1] * len(self.servers)
            self._go_on()

    def _granted(self, grant: Granted) -> None:
        assert self._phase is not None
        item = Item(grant, self._phase, *self.crew.source.prepare(grant))
        self._queue.append(item)
        self._granted_items += 1
        first = len(self._queue) == 1 and not self._busy
        if first or self._phase.prefetch_rows or not self._phase.training:
            self._pull(item)

    def _pull(self, item: Item) -> None:
        if item.pulled:
            return
        item.pulled, item.missing = True, len(self.servers)
        self._ticket += 1
        self._tickets[self._ticket] = item
        grant, served = item.grant, item.phase.served_dense
        batch = grant.batch if item.phase.training else -1
        for shard, low, high in item.unique.shares():
            pull = Pull(self._ticket, batch, high - low, served, grant.after, self._have_dense[shard])
            self.servers[shard].send(pull, item.unique.index[low:high].view(np.uint8))

    def _rows(self, shard: int, rows: Rows, answer: Answer) -> None:
        item = self._tickets[rows.ticket]
        if item.abandoned:
            return
        item.answers[shard] = answer
        if rows.dense:
            self._have_dense[shard] = rows.version
        item.row_versions[shard] = rows.version
        item.dense_versions[shard] = self._have_dense[shard]
        item.missing -= 1
        if item.ready:
            del self._tickets[rows.ticket]
            self._go_on()

    # -- computing ----------------------------------------------------------------------------------

    def free(self) -> None:
        """The worker can begin its next batch."""
        if self._holds(self.free):
            return
        self._busy = False
        self.pull_ahead()
        self._go_on()

    def pull_ahead(self) -> None:
        """Ask for the next batch's rows now if it is known; a shard answers once the step is applied."""
        if self._queue:
            self._pull(self._queue[0])

    def _go_on(self) -> None:
        if self._busy or self._stopped:
            return
        while self._questions and self._questions[0][1] <= self._gone_items and not self._busy:
            question, _ = self._questions.popleft()
            if isinstance(question, Inspect):
                self.coordinator.send(self._inspected())
            elif isinstance(question, SaveDense):
                step, params, values = self.crew.sides.now.packed()
                self.coordinator.send(DenseSaved(question.number, step, params), values.view(np.uint8))
            else:
                self._move(question)
        if not self._busy and self._queue and self._queue[0].ready:
            self._busy = True
            self._gone_items += 1
            self._begin(self._queue.popleft())

    def _inspected(self) -> Inspected:
        checksum, total = self.crew.sides.now.checksum()
        return Inspected(str(self.peer), checksum, total, {}, {})

    def _move(self, question: MoveDense) -> None:
        """Do this worker's part in moving the dense vector."""
        home, self._move_turn = question.home, question.turn
        self._busy = True
        given = self.crew.sides.move(home)
        self._acks = len(given)
        for channel, (step, values) in zip(self.servers, given, strict=False):
            channel.send(PutDense(step), values.view(np.uint8))
        if home == "workers":
            self._acks = len(self.servers)
            for channel in self.servers:
                channel.send(GetDense())
        self._moved()

    def _taken(self, shard: int, state: DenseState, frame: Frame) -> None:
        self._states[shard] = (state.step, frame.payload.view(np.float32))
        self._acks -= 1
        if not self._acks:
            self.crew.sides.take_over([self._states[s] for s in sorted(self._states)])
            self._states.clear()
        self._moved()

    def _moved(self) -> None:
        if not self._acks:
            self.coordinator.send(Moved(self.index, self._move_turn))
            self.free()

    def _begin(self, item: Item) -> None:
        crew, samples = self.crew, item.grant.samples
        item.began = crew.events.now
        if not item.phase.training:
            self.host.cores.run(crew.cost.predict(self.index, samples), self._evaluated, item)
            return
        crew.sides.now.begin(self, item)
        if samples == 0:
            crew.sides.now.finish(self, item)
            return
        seconds = crew.cost.gradient(self.index, self._turn, samples)
        self.host.cores.run(seconds, self._computed, item)

    def _evaluated(self, item: Item) -> None:
        if self._holds(self._evaluated, item):
            return
        grant, compute = item.grant, self.crew.compute
        compute.load(item)
        message = Predictions(grant.phase, self.index, grant.batch, grant.start, grant.samples)
        predictions = np.ascontiguousarray(compute.predict(item), np.float32)
        self.coordinator.send(message, predictions.view(np.uint8))
        self.take()
        self.free()

    def _computed(self, item: Item) -> None:
        """The job is done; what the fault plan adds comes now."""
        if self._holds(self._computed, item):
            return
        events = self.crew.events
        self._first = item.began if self._first is None else self._first
        item.slowdown = self.crew.plan.factor(self.index, self._turn, item.began - self._first)
        self._turn += 1
        if item.slowdown > 1.0:
            events.after((item.slowdown - 1.0) * (events.now - item.began), self._finish, item)
        else:
            self._finish(item)

    def _finish(self, item: Item) -> None:
        if self._holds(self._finish, item):
            return
        item.seconds = self.crew.events.now - item.began
        self.crew.sides.now.finish(self, item)


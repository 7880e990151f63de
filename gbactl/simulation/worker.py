"""A worker as a chain of events: what worker/client.py and worker/loop.py do with threads.

Takes, prefetches, pulls and pushes at the same points as those; computing is a job on the host's cores, and what
the fault plan adds is a delay after it. Costs about 0.1 ms a batch beside the gradient.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from gbactl.data.dataset import Batch
from gbactl.kernels.base import Floats, Unique
from gbactl.simulation.batch import Item
from gbactl.simulation.dense_transfer import Moves
from gbactl.simulation.network import Host, VirtualChannel
from gbactl.simulation.process import Mortal
from gbactl.simulation.server import Answer
from gbactl.simulation.shared import Crew
from gbactl.wire.auth import Peer
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.messages import (
    Abandon,
    Ack,
    BeginPhase,
    Centre,
    DenseSaved,
    DenseState,
    Granted,
    Inspect,
    Inspected,
    Moved,
    MoveDense,
    OpenReplicas,
    Ping,
    Pong,
    Predictions,
    Prepare,
    Pull,
    Rows,
    SaveDense,
    SaveReplica,
    Stop,
    Take,
)
from gbactl.worker.client import Question
from gbactl.worker.prefetch import Upcoming


class VirtualWorker(Mortal):
    """One worker; a Node of the network."""

    def __init__(self, index: int, host: Host, crew: Crew, epoch: int = 0) -> None:
        self.index, self.peer, self.host, self.crew = index, Peer("worker", index, epoch), host, crew
        super().__init__()
        self.coordinator: VirtualChannel
        self.servers: list[VirtualChannel] = []
        self.moves = Moves({})
        #: batches computed at a time, each by a thread of its own, and how many are
        self.lanes, self.busy = 1, 0
        self._shard: dict[int, int] = {}
        self._queue: Upcoming[Item] = Upcoming()
        self._tickets: dict[int, Item] = {}
        self._ticket = self._turn = 0
        self._questions: deque[tuple[Question, int]] = deque()
        self._granted_items = self._gone_items = 0
        self._have_dense: list[int] = []
        self._phase: BeginPhase | None = None
        self._prepared: dict[tuple[int, int], tuple[Batch, Unique]] = {}
        self._first: float | None = None

    def connect(self, coordinator: VirtualChannel, servers: list[VirtualChannel]) -> None:
        """The channels to the coordinator and, in shard order, to the servers."""
        self.coordinator, self.servers = coordinator, servers
        self.moves = Moves({shard: servers[shard] for shard in self.crew.compute.held})
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
        if self.holds(self.receive, channel, frame):
            return
        message = frame.message
        if isinstance(message, Rows):
            assert isinstance(frame, Answer)
            self._rows(self._shard[id(channel)], message, frame)
        elif isinstance(message, Granted):
            self._granted(message)
        elif isinstance(message, Prepare):
            self._prepared = {(message.phase, message.batch): self.crew.source.prepare(message)}
        elif isinstance(message, BeginPhase):
            self._begin_phase(message)
        elif isinstance(message, Abandon):
            self._abandon(message.phase)
        elif isinstance(message, Question):
            self._questions.append((message, self._granted_items))
            self._go_on()
        elif isinstance(message, Centre):
            self.crew.sides.trainer(self).centre(self._shard[id(channel)], message, frame)
        elif isinstance(message, SaveReplica):
            self.crew.sides.trainer(self).save(message)
        elif isinstance(message, DenseState):
            self.moves.came(self._shard[id(channel)], message, frame)
        elif isinstance(message, Ack):
            self.moves.acked()
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
        given_up = self._queue.give_up(phase)
        for item in given_up:
            self._gone_items += 1
            item.abandoned = True
            self.take()
        if given_up:
            self._have_dense = [-1] * len(self.servers)
            self._go_on()

    def _granted(self, grant: Granted) -> None:
        assert self._phase is not None
        ready = (grant.phase, grant.batch) in self._prepared
        data = self._prepared.pop((grant.phase, grant.batch)) if ready else self.crew.source.prepare(grant)
        item = Item(grant, self._phase, *data)
        self._granted_items += 1
        if self._queue.admit(item):
            self._pull(item)
            return
        self.crew.sides.now.resume(self)
        first = len(self._queue) + self.busy <= self.lanes
        if first or self._phase.prefetch_rows or not self._phase.training:
            self._pull(item)

    def has_batch_of(self, step: int) -> bool:
        """See Upcoming."""
        return self._queue.has_of(step)

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
            self.crew.sides.now.resume(self)
            self._go_on()

    # -- computing ----------------------------------------------------------------------------------

    def free(self) -> None:
        """A lane can begin its next batch."""
        if self.holds(self.free):
            return
        self.busy -= 1
        self.pull_ahead()
        self._go_on()

    def pull_ahead(self) -> None:
        """Ask for the next batch's rows now if it is known; a shard answers once the step is applied."""
        if self._queue:
            self._pull(self._queue[0])

    def _go_on(self) -> None:
        if self._stopped:
            return
        while self._questions and self._questions[0][1] <= self._gone_items and not self.busy:
            self._answer(self._questions.popleft()[0])
        while self.busy < self.lanes and self._queue and self._queue[0].ready and not self._standing:
            self.busy += 1
            self._gone_items += 1
            self._begin(self._queue.popleft())

    @property
    def _standing(self) -> bool:
        """Whether lanes stand still for an exchange in the foreground."""
        return self.lanes > 1 and self.crew.sides.trainer(self).standing

    def _answer(self, question: Question) -> None:
        """Do what is asked; what takes time keeps the worker busy until it is done."""
        if isinstance(question, Inspect):
            self.coordinator.send(self._inspected())
            return
        if isinstance(question, SaveDense):
            found = self.crew.sides.now.packed(question.step)
            if found is None:  # after the next batch
                self._questions.appendleft((question, self._gone_items + 1))
            else:
                self.coordinator.send(DenseSaved(question.number, *found[:2]), found[2].view(np.uint8))
            return
        self.busy += 1
        if isinstance(question, MoveDense):
            self._move(question)
        elif isinstance(question, OpenReplicas):
            self.lanes = int(question.values.get("hogwild_threads", 1))
            self.crew.sides.trainer(self).open(question, self.free)
        elif not question.last:
            self.crew.sides.trainer(self).idle()
        else:
            self.lanes = 1
            self.crew.compute.come_home()
            self.crew.sides.trainer(self).close(question)

    def _inspected(self) -> Inspected:
        checksum, total = self.crew.sides.now.checksum()
        return Inspected(str(self.peer), checksum, total, {}, {})

    def _move(self, question: MoveDense) -> None:
        """Do this worker's part in moving the dense vector."""
        sides = self.crew.sides

        def moved() -> None:
            self.coordinator.send(Moved(self.index, question.turn))
            self.free()

        def taken(states: list[tuple[int, Floats]]) -> None:
            if question.home == "workers":
                sides.take_over(states)
            else:
                sides.trainer(self).take_over(states)
            moved()

        given = sides.move(question.home, self.index)
        if question.home == "servers":
            self.moves.give(given, moved)
        else:
            self.moves.fetch(taken)

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
        if self.holds(self._evaluated, item):
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
        if self.holds(self._computed, item):
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
        if self.holds(self._finish, item):
            return
        item.seconds = self.crew.events.now - item.began
        self.crew.sides.now.finish(self, item)


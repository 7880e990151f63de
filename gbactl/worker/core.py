"""What a worker does, without threads, clock or connections: events in, commands out.

A worker asks for batches, pulls their rows, computes them in the order in which they were granted, and answers the
coordinator's questions between two of them. This module decides when each of these may happen. A shell carries the
commands out: with a lock, a reading thread and compute threads in a real worker (client.py), with events on a virtual
clock in a simulated one (simulation/worker.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gbactl.data.dataset import Batch
from gbactl.kernels.base import Floats, Unique
from gbactl.wire.failover_memory import Holdings
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import (
    Abandon,
    BeginPhase,
    CloseReplicas,
    DenseState,
    Granted,
    Inspect,
    MoveDense,
    OpenReplicas,
    Ping,
    Pong,
    Prepare,
    Pull,
    Push,
    Revive,
    Rows,
    SaveDense,
    Stop,
    Take,
)

Question = Inspect | MoveDense | SaveDense | OpenReplicas | CloseReplicas
Told = Question | BeginPhase | Abandon | Prepare | Ping | Revive | Stop


@dataclass(slots=True, eq=False)
class Item:
    """A granted batch on its way: its data, its distinct rows, the shards' answers, and what is said of its gradient.

    `kept`: the frame among the answers that the model computes with."""

    grant: Granted
    phase: BeginPhase
    batch: Batch
    unique: Unique
    pulled: bool = False
    abandoned: bool = False
    answers: dict[int, tuple[Rows, Frame]] = field(default_factory=dict)
    row_versions: dict[int, int] = field(default_factory=dict)
    dense_versions: dict[int, int] = field(default_factory=dict)
    kept: Frame | None = None
    loss: float = 0.0
    seconds: float = 0.0
    slowdown: float = 1.0

    @property
    def weight(self) -> float:
        """What its gradient counts, compared with that of a whole batch."""
        return self.grant.samples / self.phase.local_batch

    def push(self, shard: int, rows: int, dense: int) -> Push:
        """What a shard, and through it the coordinator, learns of the gradient."""
        grant, versions = self.grant, (self.row_versions[shard], self.dense_versions[shard])
        return Push(grant.phase, grant.batch, rows, dense, self.loss, self.seconds, self.slowdown, *versions)

    def release(self) -> None:
        """Give the answers' memory back, but for what the model computes with."""
        for _, frame in self.answers.values():
            if frame is not self.kept:
                frame.release()


def weigh(gradient: Floats, weight: float) -> None:
    """Scale a gradient in place; that of a whole batch keeps its bits."""
    if weight != 1.0:
        gradient *= np.float32(weight)


def push_views(out: Bytes, index: Any, width: int) -> tuple[Floats, Floats]:
    """Write int32[n] row numbers to a Push's payload; (float32[n, width], float32[dense]), where its values belong."""
    count = len(index)
    out[: 4 * count].view(np.int32)[:] = index
    values, cut = out.view(np.float32), count * (1 + width)
    return values[count:cut].reshape(count, width), values[cut:]


class Tell(NamedTuple):
    """Send the coordinator a message."""

    message: Any


class Ask(NamedTuple):
    """Send a shard a Pull for these rows."""

    shard: int
    pull: Pull
    index: Any


class Drop(NamedTuple):
    """Give back what an abandoned item holds."""

    item: Item


class Ahead(NamedTuple):
    """Another batch is the next one to compute. Whoever waits for other workers may have to compute it first."""

    item: Item


class Complete(NamedTuple):
    """All shards have answered for an item. Compute threads look for work."""

    item: Item


class Look(NamedTuple):
    """Compute threads look for work: a question has come, batches were given up, or the run is over."""


Command = Tell | Ask | Drop | Ahead | Complete | Look


class WorkerCore:
    """One worker's. `servers`: how many shards have to answer for a batch.

    `threads` compute threads may have a batch each at a time: 0 to threads - 1, of which 0 alone evaluates and
    answers questions. Answering takes the place of one batch."""

    def __init__(self, index: int, servers: int) -> None:
        self.index, self.servers, self.threads = index, servers, 1
        self.phase: BeginPhase | None = None
        self.stopped = False
        self.answering: Question | None = None
        self.queue: deque[Item] = deque()  # what is not begun, in the order in which it is computed
        self.pulls: dict[int, Item] = {}  # request id -> item, where shards have yet to answer
        self.questions: deque[tuple[Question, int]] = deque()  # each with the number of batches to be done before it
        self.to_prepare: Prepare | None = None  # a batch to come whose data may be got ready
        self.have_dense = [-1] * servers  # the version of each shard's dense slice that is here; -1: none
        self.computing = 0
        self._prepared: dict[tuple[int, int], tuple[Batch, Unique]] = {}
        self._requests = self._granted = self._begun = 0
        self._holdings = Holdings()

    # -- messages -----------------------------------------------------------------------------------

    def start(self, ahead: int) -> list[Command]:
        """Ask for `ahead` batches more than the one to compute."""
        return [Tell(Take(self.index)) for _ in range(1 + ahead)]

    def told(self, message: Told) -> list[Command]:
        """The coordinator says something that needs no data."""
        if isinstance(message, Question):
            self.questions.append((message, self._granted))
            return [Look()]
        if isinstance(message, Prepare):
            self.to_prepare = message
        elif isinstance(message, BeginPhase):
            self._begin(message)
        elif isinstance(message, Abandon):
            return self._abandon(message.phase)
        elif isinstance(message, Ping):
            return [Tell(Pong(self.index, message.beat))]
        elif isinstance(message, Revive):
            return self._revive(message)
        else:
            self.stopped = True
            return [Look()]
        return []

    def _begin(self, phase: BeginPhase) -> None:
        if self.phase is not None and phase.served_dense != self.phase.served_dense:
            self._forget_all_dense()
        self.phase = phase

    def _revive(self, message: Revive) -> list[Command]:
        """Tell another coordinator what is here. Whoever asked before is gone; but batches that came after the
        beginning of their phase wait for it."""
        self.questions = deque(each for each in self.questions if isinstance(each[0], OpenReplicas))
        return [Tell(self._holdings.told(self.index, message.epoch, self.phase))]

    def _abandon(self, phase: int) -> list[Command]:
        """Forget what was not begun, and ask for others. Its dense slices were never loaded: none are here."""
        given_up = [item for item in self.queue if item.phase.number == phase]
        if not given_up:
            return []
        self.queue = deque(item for item in self.queue if item.phase.number != phase)
        self._begun += len(given_up)
        self._forget_all_dense()
        commands: list[Command] = []
        for item in given_up:
            item.abandoned = True
            if not item.pulled or len(item.answers) == self.servers:
                commands.append(Drop(item))
            commands += self.give_back(item)
        return [*commands, Look()]

    # -- data and rows ------------------------------------------------------------------------------

    def prepared(self, message: Prepare, batch: Batch, unique: Unique) -> None:
        """The data of a batch to come is ready; that of one before it will not be wanted."""
        if self.to_prepare is message:
            self.to_prepare = None
        self._prepared = {(message.phase, message.batch): (batch, unique)}

    def data_of(self, grant: Granted) -> tuple[Batch, Unique] | None:
        """What was got ready for a batch, if anything was."""
        return self._prepared.pop((grant.phase, grant.batch), None)

    def granted(self, grant: Granted, batch: Batch, unique: Unique) -> list[Command]:
        """A batch is this worker's."""
        assert self.phase is not None
        self.to_prepare = None  # it is this one, or another's
        item = Item(grant, self.phase, batch, unique)
        early = self._admit(item)
        self._holdings.granted(grant, self.phase)
        self._granted += 1
        commands: list[Command] = [Ahead(item)] if self.queue[0] is item else []
        first = len(self.queue) + self.computing <= self.threads
        if early or first or self.phase.prefetch_rows or not self.phase.training:
            self._pull(item, commands)
        return commands

    def _admit(self, item: Item) -> bool:
        """Put a batch in its place; whether that is before others.

        Batches keep the order of their grants. But where workers hold the dense part, one of a step goes before those
        of later steps: it was a dead worker's, and the others wait for it."""
        if not item.phase.served_dense and item.phase.training:
            later = (n for n, other in enumerate(self.queue) if other.grant.token > item.grant.token)
            place = next(later, None)
            if place is not None:
                self.queue.insert(place, item)
                return True
        self.queue.append(item)
        return False

    def has_batch_of(self, step: int) -> bool:
        """Whether the next batch is one of a step (or of one before it) that this worker is in already."""
        queue = self.queue
        return bool(queue) and queue[0].phase.training and queue[0].grant.token <= step

    def pull_ahead(self, most: int = 1) -> list[Command]:
        """Pull the rows of the next batches now, as far as they are known. A shard answers once the step is applied."""
        commands: list[Command] = []
        for item in islice(self.queue, most):
            self._pull(item, commands)
        return commands

    def _pull(self, item: Item, commands: list[Command]) -> None:
        if not item.pulled:
            item.pulled = True
            self._requests += 1
            self.pulls[self._requests] = item
            for share in item.unique.shares():
                commands.append(self._ask(self._requests, item, *share))

    def _ask(self, request: int, item: Item, shard: int, low: int, high: int) -> Ask:
        batch = item.grant.batch if item.phase.training else -1
        have = self.have_dense[shard]
        pull = Pull(request, batch, high - low, item.phase.served_dense, item.grant.after, have)
        return Ask(shard, pull, item.unique.index[low:high])

    def rows(self, shard: int, rows: Rows, frame: Frame) -> list[Command]:
        """A shard has answered a Pull."""
        item = self.pulls[rows.ticket]
        item.answers[shard] = (rows, frame)
        complete = len(item.answers) == self.servers
        if complete:
            del self.pulls[rows.ticket]
        if item.abandoned:
            return [Drop(item)] if complete else []
        if rows.dense:
            self.have_dense[shard] = rows.version
        item.row_versions[shard], item.dense_versions[shard] = rows.version, self.have_dense[shard]
        return [Complete(item)] if complete else []

    # -- servers that are lost ----------------------------------------------------------------------

    def forget_dense(self, shard: int) -> None:
        """What a server sent before counts no more: another one serves the shard; -1: all shards' dense parts moved."""
        if shard < 0:
            self._forget_all_dense()
        else:
            self.have_dense[shard] = -1

    def _forget_all_dense(self) -> None:
        self.have_dense = [-1] * self.servers

    def ask_again(self, shard: int) -> list[Command]:
        """Another server serves a shard: ask it for all that was not answered."""
        return [
            self._ask(request, item, *next(share for share in item.unique.shares() if share[0] == shard))
            for request, item in self.pulls.items()
            if shard not in item.answers
        ]

    # -- computing ----------------------------------------------------------------------------------

    def asked(self) -> bool:
        """Whether a question is to be answered now: every batch that was granted before it is done."""
        return bool(self.questions) and not self.computing and self._due()

    def _due(self) -> bool:
        """Whether no batch may be begun before the first question is answered."""
        return bool(self.questions) and self.questions[0][1] <= self._begun

    def question(self) -> Question:
        """Take the question that is due; nothing is begun until it is `answered`."""
        self.answering, self.computing = self.questions.popleft()[0], self.computing + 1
        return self.answering

    def answered(self, later: bool = False) -> list[Command]:
        """It is answered, or, with `later`, to be asked once more after the next batch."""
        question, self.answering = self.answering, None
        if later and question is not None:
            self.questions.appendleft((question, self._begun + 1))
        return self.done()

    def ready(self, thread: int = 0) -> bool:
        """Whether a compute thread that has nothing to do may begin the next batch."""
        if not self.queue or self.answering is not None or self.computing >= self.threads or self._due():
            return False
        item = self.queue[0]
        return len(item.answers) == self.servers and (thread == 0 or (thread < self.threads and item.phase.training))

    def begin(self) -> Item:
        """Take the next batch."""
        self.computing += 1
        self._begun += 1
        return self.queue.popleft()

    def done(self) -> list[Command]:
        """A compute thread is done with its batch: it looks for work after this."""
        self.computing -= 1
        return self.pull_ahead()

    def give_back(self, item: Item) -> list[Command]:
        """Ask for another batch in the place of `item`; after a push the announcement does that."""
        self.pushed(item)
        return [Tell(Take(self.index))]

    def pushed(self, item: Item) -> None:
        """A gradient is about to be pushed."""
        self._holdings.returned(item.grant)


class DenseTransfer:
    """Dense slices that servers are asked for or given: who has yet to answer, and what has come. One at a time."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[DenseState, Frame]] = {}
        self._asked: dict[int, tuple[Any, Bytes | None]] = {}

    def begin(self, asked: Mapping[int, tuple[Any, Bytes | None]]) -> None:
        """Each of these shards is sent a message with its payload."""
        self._states, self._asked = {}, dict(asked)

    @property
    def done(self) -> bool:
        """Whether all have answered."""
        return not self._asked

    def answered(self, shard: int, state: tuple[DenseState, Frame] | None = None) -> None:
        """A shard has what it was given, or sends what it was asked for."""
        self._asked.pop(shard, None)
        if state is not None:
            self._states[shard] = state

    def again(self, shard: int) -> tuple[Any, Bytes | None] | None:
        """What another server in the place of one that has not answered is sent."""
        return self._asked.get(shard)

    def taken(self) -> dict[int, tuple[DenseState, Frame]]:
        """What has come, by shard; it is the caller's from now on."""
        states, self._states = self._states, {}
        return dict(sorted(states.items()))


class Place(NamedTuple):
    """`part` of the `parts` of a step's sum; None for a batch of no samples, which fills none."""

    part: int | None
    parts: int


class ReplicatedSteps:
    """The steps that the replicas of the dense vector have taken where all workers hold it and step together.

    A step's batches have places in its sum, `global_batch` samples in all, and any worker may fill any of them."""

    def __init__(self, global_batch: int) -> None:
        self.global_batch = global_batch
        self.taken = -1  # the last one; another worker's batches of it may still come

    def place(self, item: Item) -> Place | None:
        """The place that a batch fills; None where its step is taken, and only its rows are missing."""
        grant, phase = item.grant, item.phase
        if grant.samples and grant.token <= self.taken:
            return None
        width = self.global_batch // phase.local_batch
        first = (grant.token - phase.first_step) * width
        parts = min(width, -(-phase.samples // phase.local_batch) - first)
        return Place(grant.batch - first if grant.samples else None, parts)

    def at(self, after: int) -> bool | None:
        """Whether exactly `after` steps (0: any number) are taken; None before that."""
        if not after or self.taken == after - 1:
            return True
        return None if self.taken < after - 1 else False

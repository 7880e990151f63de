"""A worker's side of the wire: takes batches, fetches rows, pushes gradients, announces them.

One thread reads the network while the compute thread computes, so the next batch's data and rows are there
when they are wanted. A push does not block; the shards tell the coordinator that they have it.
Costs about 0.3 ms of CPU a batch, most of it deduplicating ids.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np

from gbactl.data.dataset import Batch
from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import Floats, Unique
from gbactl.wire import frames
from gbactl.wire.channel import Channel, Hub
from gbactl.wire.failover_memory import Holdings
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    Abandon,
    Absent,
    Ack,
    BeginPhase,
    CloseReplicas,
    DenseState,
    GetDense,
    GiveReplica,
    Granted,
    Inspect,
    MoveDense,
    OpenReplicas,
    Ping,
    Pong,
    Predictions,
    Prepare,
    Pull,
    Push,
    PutDense,
    Relocated,
    Revive,
    RingBroken,
    Rows,
    SaveDense,
    SaveReplica,
    Stop,
    Take,
    decode,
)
from gbactl.worker.prefetch import Upcoming
from gbactl.worker.routing import Dial, Parked, Routes

Question = Inspect | MoveDense | SaveDense | OpenReplicas | CloseReplicas

LATER = object()  # a question that cannot be answered yet


@dataclass(slots=True)
class Item:
    """A granted batch on its way: its data, its distinct rows, and the shards' answers."""

    grant: Granted
    phase: BeginPhase
    batch: Batch
    unique: Unique
    pulled: bool = False
    abandoned: bool = False
    answers: dict[int, tuple[Rows, Frame]] = field(default_factory=dict)
    dense_seen: dict[int, int] = field(default_factory=dict)
    row_versions: list[int] = field(default_factory=list)
    dense_versions: list[int] = field(default_factory=list)
    kept: Frame | None = None
    loss: float = 0.0
    seconds: float = 0.0
    slowdown: float = 1.0

    def release(self) -> None:
        """Give the answers' memory back, but for what the model computes with."""
        for _, frame in self.answers.values():
            if frame is not self.kept:
                frame.release()


class DenseParts(Protocol):
    """The dense gradient, cut for the shards."""

    def size(self, shard: int) -> int:
        """Floats of one shard's slice."""

    def write(self, shard: int, out: Floats) -> None:
        """Copy one shard's slice into float32[size]."""


class Source(Protocol):
    """Where a worker's batches come from: phases, data and deduplication (see worker.DataSource)."""

    def begin(self, phase: BeginPhase) -> None:
        """A phase starts."""

    def prepare(self, grant: Granted | Prepare) -> tuple[Batch, Unique]:
        """The batch of a grant and its distinct rows."""


class Exchange:
    """See the module."""

    def __init__(
        self, hub: Hub, coordinator: Channel, servers: list[Channel], index: int, source: Source
    ) -> None:
        self.hub, self.coordinator, self.servers, self.index = hub, coordinator, servers, index
        self.source = source
        self.error: BaseException | None = None
        self.routes = Routes(servers)
        #: connects to a server in the place of one that is gone; None where the run ends with it
        self.dial: Dial | None = None
        self.patience = 60.0  # seconds in which it comes
        self._overdue: dict[int, threading.Timer] = {}
        self._cv = threading.Condition()
        self._queue: Upcoming[Item] = Upcoming()
        self._tickets: dict[int, Item] = {}
        self._next_ticket = 0
        #: compute threads that may take batches: 0 to lanes - 1, of which 0 alone answers questions and evaluates
        self.lanes = 1
        self._busy: set[int] = set()
        self._answering = False
        self._have_dense = [-1] * len(servers)
        self._phase: BeginPhase | None = None
        self._questions: deque[tuple[Question, int]] = deque()
        #: what else servers send: message -> (its shard, message, frame), called by the reading thread
        self.more: dict[type[Any], Callable[[int, Any, Frame], None]] = {}
        self._to_prepare: Prepare | None = None
        self._prepared: dict[tuple[int, int], tuple[Batch, Unique]] = {}  # of the one to come: (phase, batch) -> data
        self._granted_items = self._gone_items = 0
        self._holdings = Holdings()
        self._states: dict[int, tuple[DenseState, Frame]] = {}
        self._acks: set[int] = set()
        self._again: Callable[[int], None] = lambda _: None  # asks a shard for what is being waited for
        self._stopped = False
        #: called by the reading thread: a batch of this step is next; another worker is gone
        self.on_more: Callable[[int], None] = lambda _: None
        self.on_absent: Callable[[int], None] = lambda _: None
        #: the same: another worker's ring is broken
        self.on_ring_broken: Callable[[], None] = lambda: None
        #: the same: a server is gone, and what it was asked for is asked again, but for what `more` is the answer to
        self.on_lost: Callable[[int], None] = lambda _: None
        #: the same: another server is there in its place
        self.on_back: Callable[[int], None] = lambda _: None
        self.on_save: Callable[[SaveReplica], None] = lambda _: None
        self._thread = threading.Thread(target=self._read, name="exchange", daemon=True)

    # -- the compute thread -------------------------------------------------------------------------

    def start(self, ahead: int) -> None:
        """Begin reading, and ask for `ahead` batches more than the one to compute."""
        self._thread.start()
        for _ in range(1 + ahead):
            self.coordinator.send(Take(self.index))

    def next(self, answer: Callable[[Any], Any], lane: int = 0) -> Item | None:
        """The next batch with its rows there; None when the run is over.

        Between batches the coordinator's questions are answered with `answer(question)`, a message or a (message,
        payload), each when every batch that was granted before it is done (a batch of no samples may be among them,
        for which nobody waits), and once more after the next one where that is LATER.
        """
        with self._cv:
            self._done(lane)
            self.pull_ahead()
            self._cv.wait_for(lambda: self._due(lane))
            while lane == 0 and self._asked() and not self.over():
                self._reply(answer, self._questions.popleft()[0])
                self._cv.wait_for(lambda: self._due(lane))
            if self.error is not None:
                raise self.error
            if self._stopped:
                return None
            self._busy.add(lane)
            return self._queue.popleft()

    def _done(self, lane: int) -> None:
        """A lane asks for a batch: it is done with the one before."""
        if lane in self._busy:
            self._busy.remove(lane)
            self._gone_items += 1
            if self.lanes > 1:
                self._cv.notify_all()

    def _reply(self, answer: Callable[[Any], Any], question: Question) -> None:
        """Nobody computes; let the reading thread in, which may bring what the answer needs."""
        self._answering = True
        self._cv.release()
        try:
            told = answer(question)
        finally:
            self._cv.acquire()
            self._answering = False
        if told is LATER:
            self._questions.appendleft((question, self._gone_items + 1))
        elif told is not None:
            self.coordinator.send(*(told if type(told) is tuple else (told,)))
        self._cv.notify_all()

    def _due(self, lane: int) -> bool:
        if self.over():
            return True
        if lane == 0 and self._asked():
            return True
        taken = self._gone_items + len(self._busy)
        if not self._queue or self._answering or (self._questions and self._questions[0][1] <= taken):
            return False
        item = self._queue[0]
        return len(item.answers) == len(self.servers) and (lane == 0 or (lane < self.lanes and item.phase.training))

    def _asked(self) -> bool:
        return bool(self._questions) and not self._busy and self._questions[0][1] <= self._gone_items

    def take(self, item: Item | None = None) -> None:
        """Ask for another batch in the place of `item`; after a push the announcement does that."""
        with self._cv:
            if item is not None:
                self._holdings.returned(item.grant)
            self.coordinator.send(Take(self.index))

    def push(self, item: Item, row_gradient: Floats, dense: DenseParts | None) -> None:
        """Send each shard its part: row_gradient float32[U, W] in the order of the item's distinct rows.

        Does not wait: no more than 1 + prefetch batches are out at a time, so no more gradients are.
        """
        width = row_gradient.shape[1]
        self._holdings.returned(item.grant)
        for s, low, high in item.unique.shares():
            count, size = high - low, dense.size(s) if dense is not None else 0
            told = self._told(item, s, count, size)
            channel = self.routes.pushing(s, told)
            out = channel.reserve(4 * (count + count * width + size))
            out[: 4 * count].view(np.int32)[:] = item.unique.index[low:high]
            values = out.view(np.float32)
            values[count : count * (1 + width)] = row_gradient[low:high].reshape(-1)
            if dense is not None:
                dense.write(s, values[count * (1 + width) :])
            channel.send(told, out)

    def _told(self, item: Item, shard: int, rows: int, dense: int) -> Push:
        """What a shard, and through it the coordinator, learns of a gradient."""
        versions = item.row_versions[shard], item.dense_versions[shard]
        grant = item.grant
        return Push(grant.phase, grant.batch, rows, dense, item.loss, item.seconds, item.slowdown, *versions)

    def get_dense(self, shards: Collection[int]) -> dict[int, tuple[DenseState, Floats]]:
        """The dense slices of some shards with their optimizer, copied. Raises what ended the run meanwhile."""
        self._ask_all(shards, lambda shard: self.servers[shard].send(GetDense()), self._states)
        found = {shard: self._states[shard] for shard in shards}
        self._states.clear()
        values = {shard: frame.payload.view(np.float32).copy() for shard, (_, frame) in found.items()}
        for _, frame in found.values():
            frame.release()
        return {shard: (state, values[shard]) for shard, (state, _) in found.items()}

    def put_dense(self, message: PutDense | GiveReplica, parts: Mapping[int, Floats]) -> None:
        """Give some shards their dense slice with its optimizer, and wait until all have it."""
        self._ask_all(parts, lambda shard: self.servers[shard].send(message, parts[shard].view(np.uint8)), self._acks)
        self._acks.clear()

    def _ask_all(self, shards: Collection[int], ask: Callable[[int], None], answers: Collection[int]) -> None:
        """Ask shards and wait until all have answered; whoever takes the place of one meanwhile is asked, too."""
        with self._cv:
            self._again = lambda shard: ask(shard) if shard in shards and shard not in answers else None
            for shard in shards:
                ask(shard)
        self.until(lambda: len(answers) == len(shards))
        self._again = lambda _: None

    @contextmanager
    def steady(self) -> Iterator[dict[int, Channel]]:
        """shard -> channel of those that are served; none is lost or comes back inside."""
        with self._cv:
            yield {shard: each for shard, each in enumerate(self.servers) if not isinstance(each, Parked)}

    def until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait for a condition, no longer than `seconds`, or for the end of the run. Raises what ended it."""
        with self._cv:
            self._cv.wait_for(lambda: condition() or self.over(), seconds)
            if self.error is not None:
                raise self.error

    def look(self) -> None:
        """Whoever waits looks again at what it waits for."""
        with self._cv:
            self._cv.notify_all()

    def pull_ahead(self) -> None:
        """Ask for the next batch's rows now if it is known; a shard answers once the step is applied."""
        with self._cv:
            for item in islice(self._queue, max(1, self.lanes - len(self._busy))):
                self._pull(item)

    def has_batch_of(self, step: int) -> bool:
        """See Upcoming."""
        return self._queue.has_of(step)

    def predictions(self, item: Item, probabilities: Any) -> None:
        """Send an evaluation batch's predictions to the coordinator."""
        grant = item.grant
        message = Predictions(grant.phase, self.index, grant.batch, grant.start, grant.samples)
        self.coordinator.send(message, np.ascontiguousarray(probabilities, np.float32).view(np.uint8))

    def fail(self, error: BaseException) -> None:
        """What goes wrong in another thread ends the compute loop."""
        with self._cv:
            self.error = self.error or error
            self._cv.notify_all()

    # -- the reading thread -------------------------------------------------------------------------

    def over(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return self._stopped or self.error is not None

    def _read(self) -> None:
        try:
            while not self._stopped:
                for channel, frame in self.hub.poll(None):
                    with self._cv:
                        self._handle(channel, frame)
                    self._prepare()
        except BaseException as error:  # handed to the compute thread
            self.fail(error)

    def _prepare(self) -> None:
        """Get a batch to come ready while the one at hand is computed: not before its rows are there."""
        message = self._to_prepare
        if message is not None and not self._tickets:
            self._to_prepare = None
            self._prepared = {(message.phase, message.batch): self.source.prepare(message)}

    def _handle(self, channel: Channel, frame: Frame) -> None:
        shard = self.routes.shard_of(channel)
        if shard is None and channel is not self.coordinator:
            frame.release()  # of a server that another one has taken the place of
            return
        if frame.kind == frames.CLOSED:
            self._closed(shard)
            return
        message = decode(frame)
        if isinstance(message, Rows):
            self._rows(self._of(shard), message, frame)
        elif isinstance(message, Granted):
            self._granted(message)
        elif isinstance(message, Prepare):
            self._to_prepare = message
        elif isinstance(message, BeginPhase):
            self._begin(message)
        elif isinstance(message, Abandon):
            self._abandon(message.phase)
        elif isinstance(message, Absent):
            self.on_absent(message.worker)
        elif isinstance(message, RingBroken):
            self.on_ring_broken()
        elif isinstance(message, Ping):
            self.coordinator.send(Pong(self.index, message.beat))
        elif isinstance(message, Revive):
            # whoever asked is gone; but batches that came after the beginning of their phase wait for it
            self._questions = deque(each for each in self._questions if isinstance(each[0], OpenReplicas))
            self.coordinator.send(self._holdings.told(self.index, message.epoch, self._phase))
        elif isinstance(message, SaveReplica):
            self.on_save(message)
        elif isinstance(message, Question):
            self._questions.append((message, self._granted_items))
            self._cv.notify_all()
        elif isinstance(message, DenseState):
            self._states[self._of(shard)] = (message, frame)
            self._cv.notify_all()
        elif isinstance(message, Ack):
            self._acks.add(self._of(shard))
            self._cv.notify_all()
        elif isinstance(message, Stop):
            self._stopped = True
            self._cv.notify_all()
        elif isinstance(message, Relocated):
            self._relocated(message)
        elif type(message) in self.more:
            self.more[type(message)](self._of(shard), message, frame)
            self._cv.notify_all()

    def _of(self, shard: int | None) -> int:
        """The shard that a server's answer is from. Raises WireError where it was none's."""
        if shard is None:
            raise WireError("The coordinator answers for a server.")
        return shard

    def _closed(self, shard: int | None) -> None:
        """A connection is lost: that to a server may come back."""
        name = "the coordinator" if shard is None else f"S{shard}"
        error = PeerGoneError(f"W{self.index} lost its connection to {name}.")
        if shard is None or self.dial is None:
            raise error
        self.routes.lose(shard)
        self._forsaken(shard)
        self._overdue[shard] = timer = threading.Timer(self.patience, self.fail, (error,))
        timer.daemon = True
        timer.start()

    def _forsaken(self, shard: int) -> None:
        self.on_lost(shard)
        self._cv.notify_all()

    def _relocated(self, message: Relocated) -> None:
        """Ask whoever serves a shard now for all that was not answered."""
        shard = message.shard
        if shard < 0:
            self._have_dense = [-1] * len(self.servers)
            return
        if self.routes.serves(shard, message.epoch):  # told again by another coordinator
            return
        self._have_dense[shard] = -1
        self._forsaken(shard)  # by one that hung, and whose connection still is
        if shard in self._overdue:
            self._overdue.pop(shard).cancel()
        if self.dial is None or self.routes.renew(message, self.dial) is None:
            return
        for ticket, item in self._tickets.items():
            if shard not in item.answers:
                self._ask(ticket, item, *next(share for share in item.unique.shares() if share[0] == shard))
        self._again(shard)
        self.on_back(shard)
        self._cv.notify_all()

    def _begin(self, phase: BeginPhase) -> None:
        if self._phase is not None and phase.served_dense != self._phase.served_dense:
            self._have_dense = [-1] * len(self.servers)
        self._phase = phase
        self.hub.traffic.training = phase.training
        self.source.begin(phase)

    def _abandon(self, phase: int) -> None:
        """Forget what was not begun, and ask for others. Its dense slices were never loaded: none are here."""
        given_up = self._queue.give_up(phase)
        for item in given_up:
            self._gone_items += 1
            item.abandoned = True
            if not item.pulled or len(item.answers) == len(self.servers):
                item.release()
            self.take(item)
        if given_up:
            self._have_dense = [-1] * len(self.servers)
            self._cv.notify_all()

    def _granted(self, grant: Granted) -> None:
        assert self._phase is not None
        ready = self._prepared.pop((grant.phase, grant.batch), None)
        batch, unique = self.source.prepare(grant) if ready is None else ready
        self._to_prepare = None  # it is this one, or another's
        item = Item(grant, self._phase, batch, unique)
        late = self._queue.admit(item)
        self._holdings.granted(grant, self._phase)
        self._granted_items += 1
        first = len(self._queue) + len(self._busy) <= self.lanes
        if self._queue[0] is item:
            self.on_more(grant.token)
        if late or first or self._phase.prefetch_rows or not self._phase.training:
            self._pull(item)

    def _pull(self, item: Item) -> None:
        if item.pulled:
            return
        item.pulled = True
        self._next_ticket += 1
        self._tickets[self._next_ticket] = item
        for share in item.unique.shares():
            self._ask(self._next_ticket, item, *share)

    def _ask(self, ticket: int, item: Item, shard: int, low: int, high: int) -> None:
        """Ask one shard for its rows of an item."""
        batch = item.grant.batch if item.phase.training else -1
        have = self._have_dense[shard]
        pull = Pull(ticket, batch, high - low, item.phase.served_dense, item.grant.after, have)
        self.servers[shard].send(pull, item.unique.index[low:high].view(np.uint8))

    def _rows(self, shard: int, rows: Rows, frame: Frame) -> None:
        item = self._tickets[rows.ticket]
        item.answers[shard] = (rows, frame)
        if item.abandoned:
            if len(item.answers) == len(self.servers):
                del self._tickets[rows.ticket]
                item.release()
            return
        if rows.dense:
            self._have_dense[shard] = rows.version
        item.dense_seen[shard] = self._have_dense[shard]
        if len(item.answers) == len(self.servers):
            del self._tickets[rows.ticket]
            shards = range(len(self.servers))
            item.row_versions = [item.answers[s][0].version for s in shards]
            item.dense_versions = [item.dense_seen[s] for s in shards]
            self._cv.notify_all()

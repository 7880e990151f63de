"""A worker's connections: takes batches, fetches rows, pushes gradients, announces them.

A lock, a reading thread and compute threads around the worker's core (core.py). The reading thread reads the network
while a compute thread computes, so the next batch's data and rows are there when they are wanted. A push does not
block; the shards tell the coordinator that they have it. Costs about 0.3 ms of CPU a batch, most of it deduplicating
ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from gbactl.data.dataset import Batch
from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import Floats, Unique
from gbactl.wire import frames
from gbactl.wire.channel import Channel, Hub
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import (
    Absent,
    Ack,
    BeginPhase,
    DenseState,
    GetDense,
    GiveReplica,
    Granted,
    Predictions,
    Prepare,
    PutDense,
    Relocated,
    RingBroken,
    Rows,
    SaveReplica,
    decode,
)
from gbactl.worker.core import (
    Ahead,
    Ask,
    Command,
    DenseTransfer,
    Drop,
    Item,
    Question,
    Tell,
    Told,
    WorkerCore,
    push_views,
)
from gbactl.worker.routing import Dial, Parked, Routes

LATER = object()  # a question that cannot be answered yet


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
        self.core = WorkerCore(index, len(servers))
        self._busy: set[int] = set()  # compute threads with a batch
        #: what else servers send: message -> (its shard, message, frame), called by the reading thread
        self.more: dict[type[Any], Callable[[int, Any, Frame], None]] = {}
        self._dense = DenseTransfer()
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
        self._carry_out(self.core.start(ahead))

    def next(self, answer: Callable[[Any], Any], thread: int = 0) -> Item | None:
        """The next batch with its rows there; None when the run is over.

        Between batches the coordinator's questions are answered with `answer(question)`, a message or a (message,
        payload), each when every batch that was granted before it is done (a batch of no samples may be among them,
        for which nobody waits), and once more after the next one where that is LATER.
        """
        with self._cv:
            self._done(thread)
            self._cv.wait_for(lambda: self._due(thread))
            while thread == 0 and self.core.asked() and not self.over():
                self._reply(answer, self.core.question())
                self._cv.wait_for(lambda: self._due(thread))
            if self.error is not None:
                raise self.error
            if self.core.stopped:
                return None
            self._busy.add(thread)
            return self.core.begin()

    def _done(self, thread: int) -> None:
        """A compute thread asks for a batch: it is done with the one before."""
        if thread in self._busy:
            self._busy.remove(thread)
            self._carry_out(self.core.done())
        if self.core.threads > 1:  # others may have nothing to compute, either
            self._carry_out(self.core.pull_ahead(self.core.threads - self.core.computing))
            self._cv.notify_all()

    def _reply(self, answer: Callable[[Any], Any], question: Question) -> None:
        """Nobody computes; let the reading thread in, which may bring what the answer needs."""
        told: Any = None
        self._cv.release()
        try:
            told = answer(question)
        finally:
            self._cv.acquire()
            self._carry_out(self.core.answered(told is LATER))
        if told is not None and told is not LATER:
            self.coordinator.send(*(told if type(told) is tuple else (told,)))
        self._cv.notify_all()

    def _due(self, thread: int) -> bool:
        return self.over() or (thread == 0 and self.core.asked()) or self.core.ready(thread)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if type(command) is Ask:
                self.servers[command.shard].send(command.pull, command.index.view(np.uint8))
            elif type(command) is Tell:
                self.coordinator.send(command.message)
            elif type(command) is Ahead:
                self.on_more(command.item.grant.token)
            elif type(command) is Drop:
                command.item.release()
            else:
                self._cv.notify_all()

    def take(self, item: Item) -> None:
        """Ask for another batch in the place of `item`; after a push the announcement does that."""
        with self._cv:
            self._carry_out(self.core.give_back(item))

    def push(self, item: Item, row_gradient: Floats, dense: DenseParts | None) -> None:
        """Send each shard its part: row_gradient float32[U, W] in the order of the item's distinct rows.

        Does not wait: no more than 1 + prefetch batches are out at a time, so no more gradients are.
        """
        width = row_gradient.shape[1]
        self.core.pushed(item)
        for s, low, high in item.unique.shares():
            count, size = high - low, dense.size(s) if dense is not None else 0
            told = item.push(s, count, size)
            channel = self.routes.pushing(s, told)
            out = channel.reserve(4 * (count * (1 + width) + size))
            rows, rest = push_views(out, item.unique.index[low:high], width)
            rows[:] = row_gradient[low:high]
            if dense is not None:
                dense.write(s, rest)
            channel.send(told, out)

    def get_dense(self, shards: Collection[int]) -> dict[int, tuple[DenseState, Floats]]:
        """The dense slices of some shards with their optimizer, copied. Raises what ended the run meanwhile."""
        self._transfer({shard: (GetDense(), None) for shard in shards})
        found = self._dense.taken()
        values = {shard: found[shard][1].payload.view(np.float32).copy() for shard in shards}
        for _, frame in found.values():
            frame.release()
        return {shard: (found[shard][0], values[shard]) for shard in shards}

    def put_dense(self, message: PutDense | GiveReplica, parts: Mapping[int, Floats]) -> None:
        """Give some shards their dense slice with its optimizer, and wait until all have it."""
        self._transfer({shard: (message, part.view(np.uint8)) for shard, part in parts.items()})

    def _transfer(self, asked: Mapping[int, tuple[Any, Bytes | None]]) -> None:
        """Send shards a message and wait until all have answered; whoever takes one's place meanwhile gets it, too."""
        with self._cv:
            self._dense.begin(asked)
            for shard, told in asked.items():
                self.servers[shard].send(*told)
        self.until(lambda: self._dense.done)

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
            self._carry_out(self.core.pull_ahead())

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
        return self.core.stopped or self.error is not None

    def _read(self) -> None:
        try:
            while not self.core.stopped:
                for channel, frame in self.hub.poll(None):
                    with self._cv:
                        self._handle(channel, frame)
                    self._prepare()
        except BaseException as error:  # handed to the compute thread
            self.fail(error)

    def _prepare(self) -> None:
        """Get a batch to come ready while the one at hand is computed: not before its rows are there."""
        message = self.core.to_prepare
        if message is not None and not self.core.pulls:
            self.core.prepared(message, *self.source.prepare(message))

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
            self._carry_out(self.core.rows(self._of(shard), message, frame))
        elif isinstance(message, Granted):
            data = self.core.data_of(message) or self.source.prepare(message)
            self._carry_out(self.core.granted(message, *data))
        elif isinstance(message, Told):
            if isinstance(message, BeginPhase):
                self.hub.traffic.training = message.training
                self.source.begin(message)
            self._carry_out(self.core.told(message))
        elif isinstance(message, Absent):
            self.on_absent(message.worker)
        elif isinstance(message, RingBroken):
            self.on_ring_broken()
        elif isinstance(message, SaveReplica):
            self.on_save(message)
        elif isinstance(message, DenseState):
            self._dense.answered(self._of(shard), (message, frame))
            self._cv.notify_all()
        elif isinstance(message, Ack):
            self._dense.answered(self._of(shard))
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
            self.core.forget_dense(shard)
            return
        if self.routes.serves(shard, message.epoch):  # told again by another coordinator
            return
        self.core.forget_dense(shard)
        self._forsaken(shard)  # by one that hung, and whose connection still is
        if shard in self._overdue:
            self._overdue.pop(shard).cancel()
        if self.dial is None or self.routes.renew(message, self.dial) is None:
            return
        self._carry_out(self.core.ask_again(shard))
        asked = self._dense.again(shard)
        if asked is not None:
            self.servers[shard].send(*asked)
        self.on_back(shard)
        self._cv.notify_all()

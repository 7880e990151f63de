"""Client side of a worker's connections: requests batches, pulls rows, pushes gradient slices.

It is a lock, a reading thread and compute threads around worker_core.py. The reading thread reads the network while a
compute thread computes, so the next batch's data and rows are there when they are needed. A push does not block; the
shards tell the coordinator that they have staged it. A batch costs about 0.3 ms of CPU, most of it for deduplicating
ids.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from gbactl.data.dataset import Batch
from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import DistinctRows, Floats
from gbactl.wire import frames
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import (
    Ack,
    AddReplica,
    BeginPhase,
    DenseState,
    GetDense,
    Granted,
    Predictions,
    PrefetchHint,
    PutDense,
    Rows,
    ShardRelocated,
    decode,
)
from gbactl.wire.node_measurements import PUSH, NodeTimes
from gbactl.worker.server_replacement import Dial, ParkedConnection, Routes
from gbactl.worker.worker_core import (
    BatchInProgress,
    Command,
    ComputeNext,
    CoordinatorMessage,
    DenseTransfer,
    PullRows,
    Question,
    TellCoordinator,
    WorkerCore,
    push_views,
)

LATER = object()  # marks a question that cannot be answered yet


class DenseGradientSlices(Protocol):
    """Dense gradient, cut into one slice per shard."""

    def size(self, shard: int) -> int:
        """Return the number of floats in one shard's slice."""

    def write(self, shard: int, out: Floats) -> None:
        """Copy one shard's slice into float32[size]."""


class BatchSource(Protocol):
    """Source of a worker's training and evaluation batches (see loop.MappedBatchSource)."""

    def begin(self, phase: BeginPhase) -> None:
        """Switch to the data and shuffling of a new phase."""

    def prepare(self, grant: Granted | PrefetchHint) -> tuple[Batch, DistinctRows]:
        """Read the batch that the coordinator granted, and find its distinct rows."""


class WorkerClient:
    """Worker's connections to the coordinator and the servers, shared by a reading thread and compute threads."""

    def __init__(self, hub: Hub, coordinator: Channel, servers: list[Channel], index: int, source: BatchSource) -> None:
        self.hub, self.coordinator, self.servers, self.index = hub, coordinator, servers, index
        self.source = source
        self.waits = NodeTimes()
        self._training_since = 0.0
        self.error: BaseException | None = None
        self.routes = Routes(servers)
        #: connects to a server's successor; None where the run ends with a failed server
        self.dial: Dial | None = None
        self.patience = 60.0  # seconds to wait for a server's successor
        self._successor_timers: dict[int, threading.Timer] = {}
        self._cv = threading.Condition()
        self.core = WorkerCore(index, len(servers))
        self._computing_threads: set[int] = set()  # compute threads that have a batch
        #: handlers (shard, message, frame) of other messages of servers, by message type; called by the reading thread
        self.handlers: dict[type[Any], Callable[[int, Any, Frame], None]] = {}
        self._dense_transfer = DenseTransfer()
        #: handlers of other messages of the coordinator, by message type; called by the reading thread
        self.coordinator_handlers: dict[type[Any], Callable[[Any], None]] = {}
        #: called by the reading thread with the step of the batch that is now first in the queue
        self.on_next_batch: Callable[[int], None] = lambda _: None
        #: called by the reading thread when a server fails; requests answered by `handlers` are not repeated
        self.on_server_lost: Callable[[int], None] = lambda _: None
        #: called by the reading thread when a server's successor is connected
        self.on_server_back: Callable[[int], None] = lambda _: None
        self._thread = threading.Thread(target=self._read, name="exchange", daemon=True)

    # -- the compute thread -------------------------------------------------------------------------

    def start(self, ahead: int) -> None:
        """Start the reading thread, and request one batch and `ahead` more in advance."""
        self._thread.start()
        self._carry_out(self.core.start(ahead))

    def next(self, answer: Callable[[Any], Any], thread: int = 0) -> BatchInProgress | None:
        """Wait for the next batch and its pulled rows; None when the run is over.

        Between batches the coordinator's questions are answered with `answer(question)`, which returns a message or a
        (message, payload). Each is answered when every batch granted before it is done (which may include batches of no
        samples, for which nobody waits), and again after the next one where the answer is LATER."""
        with self._cv:
            self._finish_previous(thread)
            began = time.perf_counter()
            self._cv.wait_for(lambda: self._has_work(thread))
            while thread == 0 and self.core.must_answer() and not self.is_over():
                self._reply(answer, self.core.question())
                began = time.perf_counter()
                self._cv.wait_for(lambda: self._has_work(thread))
            if self.error is not None:
                raise self.error
            if self.core.stopped:
                return None
            self._computing_threads.add(thread)
            item = self.core.begin()
            self.waits.next_batch(max(began, self._training_since), item.became_next_at)
            return item

    def _finish_previous(self, thread: int) -> None:
        """Record that a compute thread has finished its previous batch, as it requests the next one."""
        if thread in self._computing_threads:
            self._computing_threads.remove(thread)
            self._carry_out(self.core.done())
        if self.core.threads > 1:  # the other threads may also be waiting for a batch
            self._carry_out(self.core.pull_ahead(self.core.threads - self.core.computing))
            self._cv.notify_all()

    def _reply(self, answer: Callable[[Any], Any], question: Question) -> None:
        """Answer a question of the coordinator between two batches, while no thread computes.

        The lock is released, since the answer may need the reading thread."""
        reply: Any = None
        self._cv.release()
        try:
            reply = answer(question)
        finally:
            self._cv.acquire()
            self._carry_out(self.core.on_question_answered(reply is LATER))
        if reply is not None and reply is not LATER:
            self.coordinator.send(*(reply if type(reply) is tuple else (reply,)))
        self._cv.notify_all()

    def _has_work(self, thread: int) -> bool:
        return self.is_over() or (thread == 0 and self.core.must_answer()) or self.core.ready(thread)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if type(command) is PullRows:
                self.servers[command.shard].send(command.pull, command.index.view(np.uint8))
            elif type(command) is TellCoordinator:
                self.coordinator.send(command.message)
            elif type(command) is ComputeNext:
                command.item.became_next_at = time.perf_counter()
                self.on_next_batch(command.item.grant.token)
            else:
                self._cv.notify_all()

    def take(self, item: BatchInProgress) -> None:
        """Request another batch after `item`, whose gradient was not pushed (a push requests the next batch itself)."""
        with self._cv:
            self._carry_out(self.core.request_another(item))

    def push(self, item: BatchInProgress, row_gradient: Floats, dense: DenseGradientSlices | None) -> None:
        """Push each shard its slice of a gradient.

        row_gradient: float32[distinct rows, row width], in the order of the item's distinct rows.
        Does not wait: at most 2 batches are in flight at a time, and so are gradients."""
        width = row_gradient.shape[1]
        item.waits = self.waits.take()
        with self.waits.activity(PUSH):
            self.core.pushed(item)
            for s, low, high in item.unique.shares():
                count, size = high - low, dense.size(s) if dense is not None else 0
                push = item.push(s, count, size)
                channel = self.routes.channel_for_push(s, push)
                out = channel.reserve(4 * (count * (1 + width) + size))
                rows, rest = push_views(out, item.unique.index[low:high], width)
                rows[:] = row_gradient[low:high]
                if dense is not None:
                    dense.write(s, rest)
                channel.send(push, out)

    def get_dense(self, shards: Collection[int]) -> dict[int, tuple[int, Floats]]:
        """Fetch slices of the dense vector with optimizer state: (optimizer steps, values) by shard.

        Raises the error that ended the run."""
        self._transfer({shard: (GetDense(), None) for shard in shards})
        return self._dense_transfer.take_received()

    def put_dense(self, message: PutDense | AddReplica, parts: Mapping[int, Floats]) -> None:
        """Send some shards their dense slice with its optimizer state, and wait until every shard has stored it."""
        self._transfer({shard: (message, part.view(np.uint8)) for shard, part in parts.items()})

    def _transfer(self, requests: Mapping[int, tuple[Any, Bytes | None]]) -> None:
        """Send each shard its message, again to a failed server's replacement, and wait for all answers."""
        with self._cv:
            self._dense_transfer.begin(requests)
            for shard, request in requests.items():
                self.servers[shard].send(*request)
        self.wait_until(lambda: self._dense_transfer.done)

    @contextmanager
    def connected(self) -> Iterator[dict[int, Channel]]:
        """Context that yields the connected servers' channels by shard, and defers the loss or replacement of any."""
        with self._cv:
            yield {
                shard: channel
                for shard, channel in enumerate(self.servers)
                if not isinstance(channel, ParkedConnection)
            }

    def wait_until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait, at most `seconds`, until a condition holds or the run ends. Raises the error that ended the run."""
        with self._cv:
            self._cv.wait_for(lambda: condition() or self.is_over(), seconds)
            if self.error is not None:
                raise self.error

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds` or until the run ends; return whether it has ended. Raises the error that ended it."""
        self.wait_until(lambda: False, seconds)
        return self.is_over()

    def wake(self) -> None:
        """Wake all waiting threads to check their conditions again."""
        with self._cv:
            self._cv.notify_all()

    def pull_ahead(self) -> None:
        """Pull the next batch's rows before the current batch is finished.

        A shard answers once it has the version that the batch's grant names (`after`)."""
        with self._cv:
            self._carry_out(self.core.pull_ahead())

    def predictions(self, item: BatchInProgress, probabilities: Any) -> None:
        """Send an evaluation batch's predictions to the coordinator."""
        grant = item.grant
        message = Predictions(grant.phase, self.index, grant.batch, grant.samples)
        self.coordinator.send(message, np.ascontiguousarray(probabilities, np.float32).view(np.uint8))

    def fail(self, error: BaseException) -> None:
        """End the compute loop with an error raised in another thread."""
        with self._cv:
            self.error = self.error or error
            self._cv.notify_all()

    # -- the reading thread -------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Whether the run is over for this worker: stopped or failed."""
        return self.core.stopped or self.error is not None

    def _read(self) -> None:
        try:
            while not self.core.stopped:
                for channel, frame in self.hub.poll(None):
                    with self._cv:
                        self._handle(channel, frame)
                    self._prepare()
        except BaseException as error:  # raised in the compute thread
            self.fail(error)

    def _prepare(self) -> None:
        """Read the data of the announced next batch during the current computation, while no pull is unanswered."""
        message = self.core.to_prepare
        if message is not None and not self.core.pulls:
            self.core.prepared(message, *self.source.prepare(message))

    def _handle(self, channel: Channel, frame: Frame) -> None:
        shard = self.routes.shard_of(channel)
        if shard is None and channel is not self.coordinator:
            frame.release()  # from a server that was replaced
            return
        if frame.kind == frames.CLOSED:
            self._on_closed(shard)
            return
        message = decode(frame)
        if isinstance(message, Rows):
            self._carry_out(self.core.rows(self._shard_of(shard), message, frame))
        elif isinstance(message, Granted):
            data = self.core.data_of(message) or self.source.prepare(message)
            self._carry_out(self.core.granted(message, *data))
        elif isinstance(message, CoordinatorMessage):
            if isinstance(message, BeginPhase):
                self.hub.traffic.training = message.training
                self.source.begin(message)
                if self.core.begins_training(message):
                    self._training_since = time.perf_counter()
            self._carry_out(self.core.handle(message))
        elif type(message) in self.coordinator_handlers:
            self.coordinator_handlers[type(message)](message)
        elif isinstance(message, DenseState | Ack):
            self._dense_transfer.on_answer(self._shard_of(shard), message, frame)
            self._cv.notify_all()
        elif isinstance(message, ShardRelocated):
            self._relocated(message)
        elif type(message) in self.handlers:
            self.handlers[type(message)](self._shard_of(shard), message, frame)
            self._cv.notify_all()

    def _shard_of(self, shard: int | None) -> int:
        """Return the shard whose server sent an answer. Raises WireError if the coordinator sent it."""
        if shard is None:
            raise WireError("The coordinator sent an answer that only a server may send.")
        return shard

    def _on_closed(self, shard: int | None) -> None:
        """Handle a closed connection: await a server's replacement; raise PeerGoneError if it was the coordinator's."""
        if shard is None or self.dial is None:
            raise self._lost("the coordinator" if shard is None else f"S{shard}")
        self.routes.park(shard)
        self._on_server_failure(shard)
        self._await_successor(shard)

    def _lost(self, name: str) -> PeerGoneError:
        return PeerGoneError(f"W{self.index} lost its connection to {name}.")

    def _await_successor(self, shard: int) -> None:
        """End this worker after `patience` seconds unless it has connected to a shard's new server by then."""
        self._successor_timers[shard] = timer = threading.Timer(self.patience, self.fail, (self._lost(f"S{shard}"),))
        timer.daemon = True
        timer.start()

    def _on_server_failure(self, shard: int) -> None:
        self.on_server_lost(shard)
        self._cv.notify_all()

    def _relocated(self, message: ShardRelocated) -> None:
        """Connect to a shard's new server and repeat all unanswered requests to it."""
        shard = message.shard
        if shard < 0:
            self.core.forget_dense(shard)
            return
        if self.routes.leads_to(shard, message.incarnation):  # repeated by a new coordinator
            return
        self.core.forget_dense(shard)
        self._on_server_failure(shard)  # also where the old server hangs and is still connected
        if shard in self._successor_timers:
            self._successor_timers.pop(shard).cancel()
        if self.dial is None or self.routes.renew(message, self.dial) is None:
            self._await_successor(shard)
            return
        self._carry_out(self.core.repeat_pulls(shard))
        request = self._dense_transfer.message_to_repeat(shard)
        if request is not None:
            self.servers[shard].send(*request)
        self.on_server_back(shard)
        self._cv.notify_all()

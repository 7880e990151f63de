"""Core of a worker without threads, clock or connections: events in, commands out.

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
from gbactl.kernels.base import DistinctRows, Floats
from gbactl.store.dense import DenseBlock
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import (
    Abandon,
    Ack,
    BeginPhase,
    CloseReplicas,
    DenseState,
    Granted,
    Inspect,
    MoveDense,
    OpenReplicas,
    Ping,
    Pong,
    PrefetchHint,
    Pull,
    Push,
    Rows,
    SaveDense,
    Stop,
    TakeBatch,
    Takeover,
    WorkerState,
)

REMEMBERED = 256  # grants that a new coordinator is told of: more than a worker may hold at once
Question = Inspect | MoveDense | SaveDense | OpenReplicas | CloseReplicas
CoordinatorMessage = Question | BeginPhase | Abandon | PrefetchHint | Ping | Takeover | Stop
NOT_HERE = (0, -1, np.empty(0, np.float32))  # packed dense parameters of a worker that does not hold those asked for


@dataclass(slots=True, eq=False)
class BatchInProgress:
    """State of a granted batch until its gradient is pushed: data, distinct rows, shards' answers, gradient statistics.

    `frame_in_use`: the frame among the answers whose memory the model computes with."""

    grant: Granted
    phase: BeginPhase
    batch: Batch
    unique: DistinctRows
    pulled: bool = False
    abandoned: bool = False
    answers: dict[int, tuple[Rows, Frame]] = field(default_factory=dict)
    row_versions: dict[int, int] = field(default_factory=dict)
    dense_versions: dict[int, int] = field(default_factory=dict)
    frame_in_use: Frame | None = None
    loss: float = 0.0
    seconds: float = 0.0
    slowdown: float = 1.0
    ranked: tuple[float, int] = (0.0, 0)
    became_next_at: float = 0.0  # when it became the next batch to compute, if it was granted then
    waits: list[float] = field(default_factory=list)  # see Push

    @property
    def weight(self) -> float:
        """Weight of the batch's gradient relative to the gradient of a full-sized batch."""
        return self.grant.samples / self.phase.local_batch

    def push(self, shard: int, rows: int, dense: int) -> Push:
        """Make the Push message for a shard, with the gradient statistics for the coordinator."""
        grant, versions = self.grant, (self.row_versions[shard], self.dense_versions[shard])
        statistics = (self.loss, self.seconds, self.slowdown, *versions, *self.ranked, self.waits)
        return Push(grant.phase, grant.batch, rows, dense, *statistics)

    def release(self) -> None:
        """Drop the shards' answers, and release their frames except for the one that the model computes with."""
        for _, frame in self.answers.values():
            if frame is not self.frame_in_use:
                frame.release()
        self.answers.clear()


def scale_by_weight(gradient: Floats, weight: float) -> None:
    """Scale a gradient in place; weight 1 (a full-sized batch) leaves every bit as it is."""
    if weight != 1.0:
        gradient *= np.float32(weight)


def push_views(out: Bytes, index: Any, width: int) -> tuple[Floats, Floats]:
    """Write row numbers int32[n] into the payload of a Push, and return views to write the values to.

    The views are (float32[n, width], float32[dense])."""
    count = len(index)
    out[: 4 * count].view(np.int32)[:] = index
    values, end = out.view(np.float32), count * (1 + width)
    return values[count:end].reshape(count, width), values[end:]


class TellCoordinator(NamedTuple):
    """Command: send the coordinator a message."""

    message: Any


class PullRows(NamedTuple):
    """Command: send a shard a Pull for the rows `index`."""

    shard: int
    pull: Pull
    index: Any


class ComputeNext(NamedTuple):
    """Command: a batch was put first in the queue; a thread that waits for an all-reduce may have to compute it."""

    item: BatchInProgress


class BatchComplete(NamedTuple):
    """Command: all shards have sent a batch's rows, so wake the compute threads."""

    item: BatchInProgress


class CheckForWork(NamedTuple):
    """Command: wake the compute threads to look for a question, for abandoned batches, or for the end of the run."""


Command = TellCoordinator | PullRows | ComputeNext | BatchComplete | CheckForWork


class WorkerCore:
    """State machine of one worker; `servers`: number of shards that answer a pull.

    Each of `threads` compute threads (0 to threads - 1) may have one batch at a time; only thread 0 evaluates and
    answers questions. Answering counts as one batch."""

    def __init__(self, index: int, servers: int) -> None:
        self.index, self.servers, self.threads = index, servers, 1
        self.phase: BeginPhase | None = None
        self.stopped = False
        self.answering: Question | None = None
        self.queue: deque[BatchInProgress] = deque()  # batches not begun, in the order of computation
        self.pulls: dict[int, BatchInProgress] = {}  # request id -> item with unanswered pulls
        self.questions: deque[tuple[Question, int]] = deque()  # each with the number of batches to finish before it
        self.to_prepare: PrefetchHint | None = None  # announced batch whose data may be prepared
        self.have_dense = [-1] * servers  # version of each shard's dense slice held here; -1: none
        self.computing = 0
        self._prepared: dict[tuple[int, int], tuple[Batch, DistinctRows]] = {}
        self._last_request = self._batches_granted = self._batches_begun = 0
        self._granted: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # (phase, batch) of the last grants
        self._held: dict[tuple[int, int], bool] = {}  # those neither pushed nor returned, and whether to train on them

    # -- messages -----------------------------------------------------------------------------------

    def start(self, ahead: int) -> list[Command]:
        """Request the first batch and `ahead` more in advance."""
        return [TellCoordinator(TakeBatch(self.index)) for _ in range(1 + ahead)]

    def handle(self, message: CoordinatorMessage) -> list[Command]:
        """Handle a message of the coordinator that requires no access to the training data."""
        if isinstance(message, Question):
            self.questions.append((message, self._batches_granted))
            return [CheckForWork()]
        if isinstance(message, PrefetchHint):
            self.to_prepare = message
        elif isinstance(message, BeginPhase):
            self._begin(message)
        elif isinstance(message, Abandon):
            return self._abandon(message.phase)
        elif isinstance(message, Ping):
            return [TellCoordinator(Pong(self.index, message.beat))]
        elif isinstance(message, Takeover):
            return self._on_takeover(message)
        else:
            self.stopped = True
            return [CheckForWork()]
        return []

    def begins_training(self, phase: BeginPhase) -> bool:
        """Whether a new phase trains and the one before did not: the wait before it does not count as training."""
        return phase.training and (self.phase is None or not self.phase.training)

    def _begin(self, phase: BeginPhase) -> None:
        if self.phase is not None and phase.served_dense != self.phase.served_dense:
            self._forget_all_dense()
        self.phase = phase

    def _on_takeover(self, message: Takeover) -> list[Command]:
        """Report this worker's batches to a new coordinator, and drop the questions of its predecessor.

        OpenReplicas is kept: batches that came after the start of their phase wait for it."""
        self.questions = deque(entry for entry in self.questions if isinstance(entry[0], OpenReplicas))
        held = [(*batch, training) for batch, training in list(self._held.items())]  # other threads push
        number = 0 if self.phase is None else self.phase.number
        return [TellCoordinator(WorkerState(self.index, message.term, number, list(self._granted), held))]

    def _abandon(self, phase: int) -> list[Command]:
        """Discard the batches of a phase that are not yet being computed, and request others in their place.

        Their dense slices were never loaded, so none counts as held. A batch of another phase that is next now is
        pulled, as no batch will be done before it."""
        given_up = [item for item in self.queue if item.phase.number == phase]
        if not given_up:
            return []
        self.queue = deque(item for item in self.queue if item.phase.number != phase)
        self._batches_begun += len(given_up)
        self._forget_all_dense()
        commands: list[Command] = []
        for item in given_up:
            item.abandoned = True
            if len(item.answers) == self.servers:
                item.release()
            commands += self.request_another(item)
        return [*commands, *self.pull_ahead(self.threads - self.computing), CheckForWork()]

    # -- data and rows ------------------------------------------------------------------------------

    def prepared(self, message: PrefetchHint, batch: Batch, unique: DistinctRows) -> None:
        """Store the prepared data of the batch announced by a PrefetchHint, in place of earlier prepared data."""
        if self.to_prepare is message:
            self.to_prepare = None
        self._prepared = {(message.phase, message.batch): (batch, unique)}

    def data_of(self, grant: Granted) -> tuple[Batch, DistinctRows] | None:
        """Return and clear the prepared data of a batch; None if the batch was not prepared."""
        return self._prepared.pop((grant.phase, grant.batch), None)

    def granted(self, grant: Granted, batch: Batch, unique: DistinctRows) -> list[Command]:
        """Queue a granted batch, and pull its rows if a pull may be sent now."""
        assert self.phase is not None
        self.to_prepare = None  # the announced batch is this one, or went to another worker
        item = BatchInProgress(grant, self.phase, batch, unique)
        early = self._enqueue(item)
        self._granted.append((grant.phase, grant.batch))
        self._held[grant.phase, grant.batch] = self.phase.training
        self._batches_granted += 1
        commands: list[Command] = [ComputeNext(item)] if self.queue[0] is item else []
        first = len(self.queue) + self.computing <= self.threads
        if early or first or self.phase.prefetch_rows or not self.phase.training:
            self._pull(item, commands)
        return commands

    def _enqueue(self, item: BatchInProgress) -> bool:
        """Insert a batch into the queue; return whether it precedes batches that were granted earlier.

        Batches keep the order of their grants. But where workers hold the dense parameters, a batch goes before those
        of later steps: it was a failed worker's, and the others wait for it."""
        if not item.phase.served_dense and item.phase.training:
            later = (n for n, other in enumerate(self.queue) if other.grant.token > item.grant.token)
            position = next(later, None)
            if position is not None:
                self.queue.insert(position, item)
                return True
        self.queue.append(item)
        return False

    def has_batch_of(self, step: int) -> bool:
        """Whether the next batch belongs to `step` or to an earlier step."""
        queue = self.queue
        return bool(queue) and queue[0].phase.training and queue[0].grant.token <= step

    def pull_ahead(self, most: int = 1) -> list[Command]:
        """Pull the rows of up to `most` queued batches early.

        A shard answers once it has the version that the batch's grant names (`after`)."""
        commands: list[Command] = []
        for item in islice(self.queue, most):
            self._pull(item, commands)
        return commands

    def _pull(self, item: BatchInProgress, commands: list[Command]) -> None:
        if not item.pulled:
            item.pulled = True
            self._last_request += 1
            self.pulls[self._last_request] = item
            for share in item.unique.shares():
                commands.append(self._pull_message(self._last_request, item, *share))

    def _pull_message(self, request: int, item: BatchInProgress, shard: int, low: int, high: int) -> PullRows:
        batch = item.grant.batch if item.phase.training else -1
        have = self.have_dense[shard]
        pull = Pull(request, batch, high - low, item.phase.served_dense, item.grant.after, have)
        return PullRows(shard, pull, item.unique.index[low:high])

    def rows(self, shard: int, rows: Rows, frame: Frame) -> list[Command]:
        """Store a shard's answer to a Pull."""
        item = self.pulls[rows.request]
        item.answers[shard] = (rows, frame)
        complete = len(item.answers) == self.servers
        if complete:
            del self.pulls[rows.request]
        if item.abandoned:
            if complete:
                item.release()
            return []
        if rows.dense:
            self.have_dense[shard] = rows.version
        item.row_versions[shard], item.dense_versions[shard] = rows.version, self.have_dense[shard]
        return [BatchComplete(item)] if complete else []

    # -- server failures ----------------------------------------------------------------------------

    def forget_dense(self, shard: int) -> None:
        """Mark a shard's dense slice as not held, since another server serves it now; -1: the slices of all shards."""
        if shard < 0:
            self._forget_all_dense()
        else:
            self.have_dense[shard] = -1

    def _forget_all_dense(self) -> None:
        self.have_dense = [-1] * self.servers

    def repeat_pulls(self, shard: int) -> list[Command]:
        """Repeat the unanswered pulls of a shard, for its new server."""
        return [
            self._pull_message(request, item, *next(share for share in item.unique.shares() if share[0] == shard))
            for request, item in self.pulls.items()
            if shard not in item.answers
        ]

    # -- computing ----------------------------------------------------------------------------------

    def must_answer(self) -> bool:
        """Whether to answer a question of the coordinator now: all batches granted before the question are done."""
        return not self.computing and self._question_due()

    def _question_due(self) -> bool:
        """Whether the coordinator's oldest open question must be answered before the next batch is started."""
        return bool(self.questions) and self.questions[0][1] <= self._batches_begun

    def question(self) -> Question:
        """Take the question that is due; no batch can be started until `on_question_answered` is called."""
        self.answering, self.computing = self.questions.popleft()[0], self.computing + 1
        return self.answering

    def on_question_answered(self, later: bool = False) -> list[Command]:
        """Record that the current question was answered; `later`: postpone it instead until after the next batch."""
        question, self.answering = self.answering, None
        if later and question is not None:
            self.questions.appendleft((question, self._batches_begun + 1))
        return self.done()

    def ready(self, thread: int = 0) -> bool:
        """Whether compute thread `thread`, which is idle, may start the next batch."""
        if not self.queue or self.answering is not None or self.computing >= self.threads or self._question_due():
            return False
        item = self.queue[0]
        return len(item.answers) == self.servers and (thread == 0 or (thread < self.threads and item.phase.training))

    def begin(self) -> BatchInProgress:
        """Remove the next batch from the queue and return it, to be computed."""
        self.computing += 1
        self._batches_begun += 1
        return self.queue.popleft()

    def done(self) -> list[Command]:
        """Record that a compute thread has finished its batch, and pull the next batch's rows."""
        self.computing -= 1
        return self.pull_ahead()

    def request_another(self, item: BatchInProgress) -> list[Command]:
        """Request another batch after `item`, whose gradient was not pushed (a push requests the next batch itself)."""
        self.pushed(item)
        return [TellCoordinator(TakeBatch(self.index))]

    def pushed(self, item: BatchInProgress) -> None:
        """Record that the gradient of a batch is about to be pushed, so that the worker no longer holds the batch."""
        self._held.pop((item.grant.phase, item.grant.batch), None)


class DenseTransfer:
    """Transfer of dense slices from or to the servers: open requests and received slices. One transfer at a time."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[int, Floats]] = {}
        self._requests: dict[int, tuple[Any, Bytes | None]] = {}

    def begin(self, requests: Mapping[int, tuple[Any, Bytes | None]]) -> None:
        """Begin a transfer; `requests`: message and payload for each shard."""
        self._states, self._requests = {}, dict(requests)

    @property
    def done(self) -> bool:
        """Whether all shards have answered."""
        return not self._requests

    def on_answer(self, shard: int, message: DenseState | Ack, frame: Frame) -> None:
        """Record a shard's answer: an acknowledgement, or its slice, which is copied."""
        self._requests.pop(shard, None)
        if isinstance(message, DenseState):
            self._states[shard] = message.step, frame.floats()
        frame.release()

    def message_to_repeat(self, shard: int) -> tuple[Any, Bytes | None] | None:
        """Return the message to repeat to a failed server's replacement; None if the shard had already answered."""
        return self._requests.get(shard)

    def take_received(self) -> dict[int, tuple[int, Floats]]:
        """Return and clear the received slices by shard: the optimizer's step count, and the values with its state."""
        states, self._states = self._states, {}
        return dict(sorted(states.items()))


class SumPosition(NamedTuple):
    """Place of a gradient in its step's sum: number `part` of `parts`; `part` is None for a batch without samples."""

    part: int | None
    parts: int


class ReplicatedSteps:
    """Progress of the replicated dense vector on this worker: the last step that it has applied.

    A step's batches have places in its sum, `global_batch` samples in all, and any worker may fill any of them."""

    def __init__(self, global_batch: int) -> None:
        self.global_batch = global_batch
        self.last_step = -1  # the last step; another worker's batches of it may still come

    def index_in_sum(self, item: BatchInProgress) -> SumPosition | None:
        """Return a batch's index in its step's sum; None if the step is applied and only row gradients are missing."""
        grant, phase = item.grant, item.phase
        if grant.samples and grant.token <= self.last_step:
            return None
        width = self.global_batch // phase.local_batch
        first = (grant.token - phase.first_step) * width
        parts = min(width, -(-phase.samples // phase.local_batch) - first)
        return SumPosition(grant.batch - first if grant.samples else None, parts)

    def packed(self, block: DenseBlock, after: int) -> tuple[int, int, Floats] | None:
        """Pack the dense vector `block` for a checkpoint as of exactly `after` steps (0: as it is now).

        Returns (optimizer steps, parameters, values); None if fewer steps are applied, NOT_HERE if more are."""
        applied = self.has_applied(after)
        if not applied:
            return None if applied is None else NOT_HERE
        return block.step, block.params, block.packed(0, block.spec.size)

    def has_applied(self, after: int) -> bool | None:
        """Whether exactly `after` steps are applied (0: always True); None if fewer are."""
        if not after or self.last_step == after - 1:
            return True
        return None if self.last_step < after - 1 else False

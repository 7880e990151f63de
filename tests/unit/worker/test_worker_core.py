"""A worker's core: lists of events and the commands that are expected; what must hold in any order of events."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gbactl.wire.channel_interface import NO_BYTES
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    Abandon,
    Ack,
    BeginPhase,
    DenseState,
    GetDense,
    Granted,
    Inspect,
    OpenReplicas,
    Ping,
    Pong,
    PrefetchHint,
    Pull,
    Push,
    PutDense,
    Rows,
    SaveDense,
    Stop,
    TakeBatch,
    Takeover,
    WorkerState,
)
from gbactl.worker.worker_core import (
    REMEMBERED,
    BatchComplete,
    BatchInProgress,
    CheckForWork,
    Command,
    ComputeNext,
    DenseTransfer,
    PullRows,
    ReplicatedSteps,
    SumPosition,
    TellCoordinator,
    WorkerCore,
    push_views,
    scale_by_weight,
)

QUESTION = Inspect("dense")


def phase(
    number: int = 1, *, training: bool = True, served: bool = True, rows: bool = False, mode: str = "gba"
) -> BeginPhase:
    return BeginPhase(number, training, mode, 0, 0, 1000, 10, 0, served, rows)


def grant(batch: int, number: int = 1, token: int = 0) -> Granted:
    return Granted(number, batch, token, 0, 10, 0, 1.0, 1.0)


def data(servers: int) -> tuple[Any, Any]:
    """A batch of two distinct rows of every shard."""
    index = np.arange(2 * servers, dtype=np.int32)
    shares = [(shard, 2 * shard, 2 * shard + 2) for shard in range(servers)]
    return None, SimpleNamespace(index=index, shares=lambda: iter(shares))


@dataclass
class Setting:
    """A core with its shards; what it was granted gets its data."""

    core: WorkerCore
    released: list[tuple[int, int]] = field(default_factory=list)  # (request, shard) of the frames

    def grant(self, granted: Granted) -> list[Command]:
        return self.core.granted(granted, *data(self.core.servers))

    def rows(self, request: int, shard: int = 0, version: int = 7, dense: int = 3) -> list[Command]:
        released = functools.partial(self.released.append, (request, shard))
        return self.core.rows(shard, Rows(request, version, 2, dense), Frame(1, b"", NO_BYTES, released))

    def complete(self, request: int) -> None:
        for shard in range(self.core.servers):
            self.rows(request, shard)


def setting(servers: int = 2, begun: BeginPhase | None = None) -> Setting:
    core = WorkerCore(5, servers)
    core.handle(phase() if begun is None else begun)
    return Setting(core)


def pulled(commands: list[Command]) -> list[tuple[int, int]]:
    """(request, shard) of what is pulled."""
    return [(each.pull.request, each.shard) for each in commands if isinstance(each, PullRows)]


def names(commands: list[Command]) -> list[str]:
    return [type(each).__name__ for each in commands]


# -- one batch --------------------------------------------------------------------------------------


def test_a_batch_from_its_grant_to_its_gradient() -> None:
    at = setting()
    assert at.core.start(1) == [TellCoordinator(TakeBatch(5)), TellCoordinator(TakeBatch(5))]
    ahead, *asked = at.grant(grant(3))
    assert isinstance(ahead, ComputeNext) and ahead.item.grant == grant(3)
    assert [each._replace(index=each.index.tolist()) for each in asked if isinstance(each, PullRows)] == [
        PullRows(0, Pull(1, 3, 2, True, 0, -1), [0, 1]),
        PullRows(1, Pull(1, 3, 2, True, 0, -1), [2, 3]),
    ]
    assert at.rows(1, 1, version=8) == [] and not at.core.ready()
    [complete] = at.rows(1, 0, version=7)
    assert isinstance(complete, BatchComplete) and at.core.ready() and not at.core.pulls
    item = at.core.begin()
    assert item is complete.item and not at.core.ready()
    item.loss, item.seconds, item.slowdown = 0.5, 0.25, 2.0
    assert item.push(1, 2, 9) == Push(1, 3, 2, 9, 0.5, 0.25, 2.0, 8, 8)
    at.core.pushed(item)
    assert at.core.done() == []


def test_a_dense_slice_that_is_here_is_not_asked_for_again() -> None:
    at = setting(1)
    at.grant(grant(0))
    at.rows(1, version=4, dense=3)
    at.core.begin()
    at.grant(grant(1))
    [ask] = at.core.done()
    assert isinstance(ask, PullRows) and ask.pull.have_dense == 4
    at.rows(2, version=5, dense=0)
    item = at.core.begin()
    assert (item.row_versions, item.dense_versions) == ({0: 5}, {0: 4})


def test_a_pushed_part_has_its_row_numbers_rows_and_dense_slice_in_this_order() -> None:
    out = np.zeros(4 * (2 + 2 * 3 + 4), np.uint8)
    rows, dense = push_views(out, np.array([7, 9], np.int32), 3)
    rows[:] = 1.0
    dense[:] = 2.0
    assert out[:8].view(np.int32).tolist() == [7, 9]
    assert out[8:].view(np.float32).tolist() == 6 * [1.0] + 4 * [2.0]


# -- when rows are pulled ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begun", "first"),
    [
        (phase(), [(1, 0)]),
        (phase(rows=True), [(1, 0), (2, 0)]),
        (phase(training=False), [(1, 0), (2, 0)]),
    ],
)
def test_rows_of_the_batch_after_the_next_are_pulled_early_where_that_is_asked_for(
    begun: BeginPhase, first: list[tuple[int, int]]
) -> None:
    at = setting(1, begun)
    assert pulled(at.grant(grant(0)) + at.grant(grant(1))) == first


def test_else_they_are_pulled_when_the_thread_is_free_or_says_so() -> None:
    at = setting(1)
    at.grant(grant(0))
    at.complete(1)
    at.core.begin()
    assert pulled(at.grant(grant(1))) == []
    assert pulled(at.core.pull_ahead()) == [(2, 0)]
    assert pulled(at.core.done()) == []


def test_as_many_are_pulled_as_threads_may_compute() -> None:
    at = setting(1)
    at.core.threads = 2
    assert pulled([each for batch in range(3) for each in at.grant(grant(batch))]) == [(1, 0), (2, 0)]
    at.complete(1)
    at.complete(2)
    at.core.begin()
    at.core.begin()
    assert pulled(at.core.done()) == [(3, 0)]


def test_an_evaluation_is_the_first_threads_alone() -> None:
    at = setting(1, phase(training=False))
    at.core.threads = 2
    at.grant(grant(0))
    at.complete(1)
    assert at.core.ready(0) and not at.core.ready(1)


# -- the order of batches ---------------------------------------------------------------------------


def queued(at: Setting) -> list[int]:
    return [each.grant.token for each in at.core.queue]


@given(st.lists(st.integers(0, 5)))
def test_a_dead_workers_batch_goes_before_those_of_later_steps(granted: list[int]) -> None:
    at = setting(1, phase(served=False))
    for batch, token in enumerate(granted):
        before, first = any(other > token for other in queued(at)), not queued(at)
        commands = at.grant(grant(batch, token=token))
        assert bool(pulled(commands)) == (before or first)
    assert queued(at) == sorted(granted)


@given(st.lists(st.integers(0, 5)))
def test_where_servers_hold_the_dense_part_grants_keep_their_order(granted: list[int]) -> None:
    at = setting(1)
    for batch, token in enumerate(granted):
        at.grant(grant(batch, token=token))
    assert queued(at) == granted


def test_it_has_another_batch_of_a_step_only_where_that_is_the_next() -> None:
    at = setting(1, phase(served=False))
    assert not at.core.has_batch_of(3)
    assert names(at.grant(grant(0, token=4)))[0] == "ComputeNext"
    assert not at.core.has_batch_of(3)
    assert at.core.has_batch_of(4)
    assert names(at.grant(grant(1, token=3)))[0] == "ComputeNext"
    assert at.core.has_batch_of(3)
    assert "ComputeNext" not in names(at.grant(grant(2, token=5)))
    evaluation = setting(1, phase(served=False, training=False))
    evaluation.grant(grant(0))
    assert not evaluation.core.has_batch_of(3)


# -- questions --------------------------------------------------------------------------------------


def test_a_question_waits_for_the_batches_before_it_and_holds_up_those_after_it() -> None:
    at = setting(1, phase(rows=True))
    at.grant(grant(0))
    at.grant(grant(1))
    assert at.core.handle(QUESTION) == [CheckForWork()]
    at.grant(grant(2))
    for request in (1, 2, 3):
        at.complete(request)
    for batch in (0, 1):
        assert not at.core.must_answer() and at.core.ready()
        assert at.core.begin().grant.batch == batch
        assert not at.core.must_answer()
        at.core.done()
    assert at.core.must_answer() and not at.core.ready()
    assert at.core.question() == QUESTION
    assert not at.core.must_answer() and not at.core.ready()
    at.core.on_question_answered()
    assert at.core.ready() and at.core.begin().grant.batch == 2


def test_no_thread_begins_a_batch_past_a_question() -> None:
    at = setting(1)
    at.core.threads = 2
    at.grant(grant(0))
    at.core.handle(QUESTION)
    at.grant(grant(1))
    at.complete(1)
    at.complete(2)
    at.core.begin()
    assert not at.core.ready(1) and not at.core.must_answer()
    at.core.done()
    assert at.core.must_answer() and not at.core.ready(1)


def test_a_question_for_later_is_asked_once_more_after_the_next_batch() -> None:
    at = setting(1)
    at.core.handle(SaveDense(1, 4))
    at.core.question()
    at.core.on_question_answered(later=True)
    assert not at.core.must_answer()
    at.grant(grant(0))
    at.complete(1)
    at.core.begin()
    at.core.done()
    assert at.core.question() == SaveDense(1, 4)


def test_what_is_granted_while_a_question_is_answered_is_pulled_after_it() -> None:
    at = setting(1)
    at.core.handle(QUESTION)
    at.core.question()
    assert pulled(at.grant(grant(0))) == []
    assert pulled(at.core.on_question_answered()) == [(1, 0)]


# -- what is given up, lost or told -----------------------------------------------------------------


@pytest.mark.parametrize("of", [1, 2])
def test_what_nobody_waits_for_any_more_is_forgotten_and_asked_for_anew(of: int) -> None:
    """The batches of the phase that was given up, of no other; the one that is computed is computed to its end."""
    at = setting(1)
    for batch in range(3):
        at.grant(grant(batch))
    at.complete(1)
    at.core.begin()
    commands = at.core.handle(Abandon(of))
    if of == 1:
        assert names(commands) == ["TellCoordinator", "TellCoordinator", "CheckForWork"]
        assert not at.core.queue and at.core.have_dense == [-1]
    else:
        assert commands == [] and len(at.core.queue) == 2 and at.core.have_dense == [7]


def test_the_batch_behind_abandoned_ones_is_pulled() -> None:
    """It was to be pulled when the batch before it was done, which now never is."""
    at = setting(1)
    at.grant(grant(0))
    at.core.handle(phase(2))
    assert pulled(at.grant(grant(1, 2))) == []
    assert pulled(at.core.handle(Abandon(1))) == [(2, 0)]


def test_an_abandoned_batch_is_dropped_when_its_last_shard_has_answered() -> None:
    at = setting(2)
    at.grant(grant(0))
    at.rows(1, 0)
    assert names(at.core.handle(Abandon(1))) == ["TellCoordinator", "CheckForWork"]
    assert not at.released and at.rows(1, 1) == [] and at.released == [(1, 0), (1, 1)]
    assert at.core.have_dense == [-1, -1] and not at.core.pulls


def test_a_phase_with_another_dense_placement_begins_without_slices() -> None:
    at = setting(1)
    at.grant(grant(0))
    at.complete(1)
    at.core.handle(phase(2))
    assert at.core.have_dense == [7]
    at.core.handle(phase(3, served=False))
    assert at.core.have_dense == [-1]


def test_a_server_that_takes_a_shard_is_asked_for_what_was_not_answered() -> None:
    at = setting(2, phase(rows=True))
    for batch in range(3):
        at.grant(grant(batch))
    at.complete(1)
    at.rows(2, 1)
    at.core.forget_dense(1)
    assert at.core.have_dense == [7, -1]
    again = at.core.repeat_pulls(1)
    assert pulled(again) == [(3, 1)]
    assert isinstance(again[0], PullRows) and again[0].pull.have_dense == -1 and again[0].index.tolist() == [2, 3]
    assert pulled(at.core.repeat_pulls(0)) == [(2, 0), (3, 0)]
    at.core.forget_dense(-1)
    assert at.core.have_dense == [-1, -1]


def test_another_coordinator_is_told_what_is_here_and_its_questions_alone_count() -> None:
    at = setting(1, phase(4))
    for batch in range(3):
        at.grant(grant(batch, 4))
    at.complete(1)
    at.core.pushed(at.core.begin())
    opening = OpenReplicas(1, "easgd", False, 2, {})
    at.core.handle(QUESTION)
    at.core.handle(opening)
    assert at.core.handle(Takeover(2)) == [
        TellCoordinator(WorkerState(5, 2, 4, [(4, 0), (4, 1), (4, 2)], [(4, 1, True), (4, 2, True)]))
    ]
    assert [each for each, _ in at.core.questions] == [opening]


def told(at: Setting) -> WorkerState:
    [command] = at.core.handle(Takeover(2))
    assert isinstance(command, TellCoordinator)
    return command.message


def test_what_was_granted_and_what_of_it_is_held() -> None:
    assert told(Setting(WorkerCore(3, 1))) == WorkerState(3, 2, 0, [], [])
    at = setting(1, phase(7))
    for batch in range(3):
        at.grant(grant(batch, 7))
    pushed = at.core.queue[1]
    at.core.pushed(pushed)
    at.core.handle(phase(8, training=False))
    at.grant(grant(1, 8))
    held = [(7, 0, True), (7, 2, True), (8, 1, False)]
    assert told(at) == WorkerState(5, 2, 8, [(7, 0), (7, 1), (7, 2), (8, 1)], held)
    at.core.pushed(pushed)


def test_old_grants_are_forgotten_and_held_ones_never() -> None:
    at = setting(1)
    for batch in range(2 * REMEMBERED):
        at.grant(grant(batch))
        if batch:
            at.core.pushed(at.core.queue[-1])
    found = told(at)
    assert found.held == [(1, 0, True)]
    assert len(found.granted) == REMEMBERED and found.granted[0] == (1, REMEMBERED)


def test_small_talk() -> None:
    at = setting()
    assert at.core.handle(Ping(9)) == [TellCoordinator(Pong(5, 9))]
    assert not at.core.stopped
    assert at.core.handle(Stop()) == [CheckForWork()] and at.core.stopped


def test_data_that_is_ready_early_is_used_once_and_for_its_batch_alone() -> None:
    at = setting(1)
    early, ready = PrefetchHint(1, 4, 0, 10), data(1)
    at.core.handle(early)
    assert at.core.to_prepare is early
    at.core.prepared(early, *ready)
    assert at.core.to_prepare is None
    assert at.core.data_of(grant(5)) is None
    assert at.core.data_of(grant(4)) == ready
    assert at.core.data_of(grant(4)) is None
    at.core.handle(early)
    at.grant(grant(4))
    assert at.core.to_prepare is None, "what is granted is not prepared any more"


# -- dense slices -----------------------------------------------------------------------------------


def test_a_transfer_is_done_when_all_have_answered_and_asks_those_again_who_have_not() -> None:
    transfer, ask = DenseTransfer(), (GetDense(), None)
    assert transfer.done
    transfer.begin({2: ask, 0: ask})
    released = list[int]()
    ones = np.ones(2, np.float32).view(np.uint8)
    transfer.on_answer(2, DenseState(4), Frame(1, b"", ones, lambda: released.append(2)))
    assert not transfer.done
    assert (
        transfer.message_to_repeat(0) == ask
        and transfer.message_to_repeat(2) is None
        and transfer.message_to_repeat(1) is None
    )
    transfer.on_answer(0, DenseState(5), Frame(1, b"", NO_BYTES, lambda: released.append(0)))
    found = {shard: (step, values.tolist()) for shard, (step, values) in transfer.take_received().items()}
    assert transfer.done and list(found.items()) == [(0, (5, [])), (2, (4, [1.0, 1.0]))] and released == [2, 0]
    assert not transfer.take_received()
    transfer.begin({1: (PutDense(3), NO_BYTES)})
    transfer.on_answer(1, Ack(), Frame(1, b"", NO_BYTES))
    assert transfer.done and not transfer.take_received()


# -- steps of equal replicas ------------------------------------------------------------------------


def test_a_batch_has_a_place_in_its_step_until_that_is_taken() -> None:
    """Steps of 30 samples in batches of 10, from step 4 on; 70 samples: the last step has one batch."""
    begun = BeginPhase(1, True, "sync", 0, 0, 70, 10, 4, False, False)
    steps = ReplicatedSteps(30)

    def placed(batch: int, token: int, samples: int = 10) -> SumPosition | None:
        return steps.index_in_sum(BatchInProgress(Granted(1, batch, token, 0, samples, 0, 1.0, 1.0), begun, *data(1)))

    assert [placed(batch, 4 + batch // 3) for batch in range(7)] == [
        *(SumPosition(part, 3) for _ in range(2) for part in range(3)),
        SumPosition(0, 1),
    ]
    steps.last_step = 4
    assert placed(1, 4) is None
    assert placed(-1, 4, samples=0) == SumPosition(None, 3), "of no samples: it has no rows that could be missing"
    assert placed(3, 5) == SumPosition(0, 3)


def test_a_replica_is_saved_after_a_step_and_not_before_or_past_it() -> None:
    steps = ReplicatedSteps(30)
    steps.last_step = 4
    assert [steps.has_applied(after) for after in (0, 4, 5, 6)] == [True, False, True, None]


@pytest.mark.parametrize(("samples", "weight"), [(10, 1.0), (5, 0.5)])
def test_a_short_batch_counts_by_its_samples(samples: int, weight: float) -> None:
    item = BatchInProgress(grant(0)._replace(samples=samples), phase(), *data(1))
    gradient = np.full(3, 0.1, np.float32)
    scale_by_weight(gradient, item.weight)
    assert gradient.tolist() == (np.full(3, 0.1, np.float32) * np.float32(weight)).tolist()


# -- any order of events ----------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A worker of one to three threads, its coordinator and its servers, in any order of what they may do."""

    @initialize(servers=st.integers(1, 3), threads=st.integers(1, 3), served=st.booleans(), rows=st.booleans())
    def begin(self, servers: int, threads: int, served: bool, rows: bool) -> None:
        self.core = WorkerCore(0, servers)
        self.core.threads = threads
        self.batches = 0
        self.number = 0
        self.kind = (served, rows)
        self.takes = 0
        self.pulls: list[tuple[int, int]] = []  # (request, shard) that a server has to answer
        self.granted: dict[tuple[int, int], Granted] = {}
        self.begun: list[tuple[int, int]] = []
        self.dropped: list[BatchInProgress] = []
        self.frames: list[tuple[BatchInProgress, Frame]] = []  # that servers have sent
        self.computing: list[BatchInProgress] = []
        self.waiting: list[tuple[int, int]] = []  # (question, batches granted before it)
        self.answered: list[int] = []
        self.carry_out(self.core.start(1))
        self.next_phase()

    @rule()
    def next_phase(self) -> None:
        self.number += 1
        served, rows = self.kind
        self.carry_out(self.core.handle(phase(self.number, served=served, rows=rows)))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, PullRows):
                request, shard = command.pull.request, command.shard
                assert command.pull.batch in {batch for _, batch in self.granted}, (
                    "nothing is pulled before it is granted"
                )
                assert (request, shard) not in self.pulls, "a shard is asked once"
                self.pulls.append((request, shard))
            elif isinstance(command, TellCoordinator):
                assert command.message == TakeBatch(0)
                self.takes += 1
            elif isinstance(command, ComputeNext):
                assert self.core.queue[0] is command.item
            elif isinstance(command, BatchComplete):
                assert set(command.item.answers) == set(range(self.core.servers))

    @precondition(lambda self: self.takes > 0)
    @rule(token=st.integers(0, 3))
    def grants(self, token: int) -> None:
        given = grant(self.batches, self.number, token)
        self.batches += 1
        self.takes -= 1
        self.granted[given.phase, given.batch] = given
        self.carry_out(self.core.granted(given, *data(self.core.servers)))

    @precondition(lambda self: self.pulls)
    @rule(pick=st.integers(0, 99), dense=st.booleans())
    def answers(self, pick: int, dense: bool) -> None:
        request, shard = self.pulls.pop(pick % len(self.pulls))
        frame = Frame(1, b"", NO_BYTES, lambda: None)
        self.frames.append((self.core.pulls[request], frame))
        self.carry_out(self.core.rows(shard, Rows(request, 1, 2, int(dense)), frame))

    @rule()
    def asks(self) -> None:
        number = len(self.waiting) + len(self.answered)
        self.waiting.append((number, len(self.granted)))
        self.carry_out(self.core.handle(Inspect(str(number))))

    @precondition(lambda self: self.core.must_answer())
    @rule(later=st.booleans())
    def replies(self, later: bool) -> None:
        question = self.core.question()
        assert not self.computing and isinstance(question, Inspect)
        number, before = self.waiting[0]
        assert question.what == str(number)
        assert before <= len(self.begun) + self.given_up
        assert not self.core.ready() and not self.core.must_answer()
        self.carry_out(self.core.on_question_answered(later))
        if not later:
            self.answered.append(self.waiting.pop(0)[0])

    @property
    def given_up(self) -> int:
        """Batches that were granted, are not begun, and will not be."""
        return len(self.granted) - len(self.begun) - len(self.core.queue)

    @precondition(lambda self: self.core.ready())
    @rule()
    def computes(self) -> None:
        item = self.core.begin()
        assert item.pulled and not item.abandoned and len(item.answers) == self.core.servers
        assert set(item.row_versions) == set(item.dense_versions) == set(range(self.core.servers))
        assert not any(item is other for other in self.core.pulls.values())
        self.begun.append((item.grant.phase, item.grant.batch))
        self.computing.append(item)

    @precondition(lambda self: self.computing)
    @rule(pick=st.integers(0, 9), empty=st.booleans())
    def finishes(self, pick: int, empty: bool) -> None:
        item = self.computing.pop(pick % len(self.computing))
        if empty:
            self.carry_out(self.core.request_another(item))
        else:
            self.core.pushed(item)
            self.takes += 1  # the announcement asks for another
        self.carry_out(self.core.done())

    @rule(back=st.integers(0, 1))
    def gives_up(self, back: int) -> None:
        self.dropped += [item for item in self.core.queue if item.grant.phase == self.number - back]
        self.carry_out(self.core.handle(Abandon(self.number - back)))

    @invariant()
    def no_batch_is_lost_or_begun_twice(self) -> None:
        if not hasattr(self, "core"):
            return
        waits = [(item.grant.phase, item.grant.batch) for item in self.core.queue]
        dropped = [(item.grant.phase, item.grant.batch) for item in self.dropped]
        assert sorted([*waits, *self.begun, *dropped]) == sorted(self.granted)
        assert len(self.computing) <= self.core.threads
        assert self.takes + len(waits) + len(self.computing) == 2, "as many are out as were asked for"

    @invariant()
    def a_dropped_batch_is_released_with_its_last_answer(self) -> None:
        for item, frame in self.frames if hasattr(self, "core") else ():
            assert (frame.on_release is None) == (item in self.dropped and item not in self.core.pulls.values())

    @invariant()
    def there_is_always_something_to_wait_for(self) -> None:
        """An idle worker with a batch waits for its rows, may begin it, or has a question to answer."""
        if hasattr(self, "core") and self.core.queue and not self.computing:
            waits = self.core.queue[0].pulled and any(item is self.core.queue[0] for item in self.core.pulls.values())
            assert waits or self.core.ready() or self.core.must_answer()


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyOrder = AnyOrder.TestCase

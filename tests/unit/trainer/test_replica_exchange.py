"""Exchanges and drives: no local step is lost, nobody waits for one that has gone, compute goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gbactl.averaging_rules import make
from gbactl.errors import ClusterError
from gbactl.kernels.half_precision import CODECS
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.trainer.replica_exchange import (
    AveragingRound,
    AveragingRounds,
    CentreExchange,
    ForegroundDriver,
    ShadowDriver,
    start_exchanges,
)
from gbactl.trainer.trainer_core import ExchangePace, ExchangeStatistics, Replica
from tests.support.in_memory_collective import MemoryGroup

SIZE = 4
LIMIT = 20.0


def replica(start: float = 0.0, threads: int = 1) -> Replica:
    """Steps of 1 x gradient."""
    value = np.full(SIZE, start, np.float32)
    return Replica(DenseBlock(value, DenseSpec(SIZE), OptimizerSpec("sgd", lr=1.0)), threads)


def ones(times: float = 1.0) -> Any:
    return np.full(SIZE, times, np.float32)


def nobody(error: BaseException) -> None:
    """No exchange fails."""
    raise AssertionError from error


def all_of(targets: list[Any]) -> None:
    """Run in threads, to their end."""
    errors: list[BaseException] = []

    def guarded(target: Any) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    if errors:
        raise errors[0]


def test_a_step_in_the_middle_of_an_exchange_with_the_centre_is_not_lost() -> None:
    mine = replica(4.0)

    def ask(sent: Any, alpha: float) -> Any:
        mine.step(ones(100.0), 1.0, 1.0)  # 4 -> -96, while the exchange is on its way
        return ones(8.0)

    meeting = CentreExchange(mine, make("easgd", SIZE, {"alpha": 0.25}), ExchangeStatistics(), ask)
    assert not meeting.exchange_once(False)
    assert mine.value.tolist() == [-96.0 + 0.25 * (8.0 - 4.0)] * SIZE


def test_a_step_in_the_middle_of_a_round_is_not_lost() -> None:
    mine, others = replica(4.0), MemoryGroup(2)
    meeting = AveragingRounds(mine, make("ma", SIZE, {"alpha": 0.5}), ExchangeStatistics(), others.member(0))
    theirs = AveragingRounds(replica(8.0), make("ma", SIZE, {"alpha": 0.5}), ExchangeStatistics(), others.member(1))
    total = meeting.fill(False)
    handle = meeting.collective.start(AveragingRounds.NAME, total)
    mine.step(ones(100.0), 1.0, 1.0)
    assert not theirs.exchange_once(False)
    meeting.collective.wait(handle)
    assert not meeting.apply(0.0)
    assert mine.value.tolist() == [-96.0 + 0.5 * (6.0 - 4.0)] * SIZE
    assert theirs.replica.value.tolist() == [7.0] * SIZE


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_step_too_small_for_two_bytes_is_not_lost_in_an_exchange(name: str) -> None:
    """1.0001 is 1 on its way: who has it there, and hears 1 from all others, keeps it."""
    mine, others, codec = replica(1.0001), MemoryGroup(2), CODECS[name]
    before = mine.value.tolist()
    meeting = AveragingRounds(mine, make("ma", SIZE, {}), ExchangeStatistics(), others.member(0), codec=codec, item=2)
    theirs = AveragingRounds(replica(1.0), make("ma", SIZE, {}), ExchangeStatistics(), others.member(1), codec=codec)
    all_of([lambda: meeting.exchange_once(False), lambda: theirs.exchange_once(False)])
    assert mine.value.tolist() == before and theirs.replica.value.tolist() == [1.0] * SIZE
    assert meeting.statistics.sent == 2 * 2.0 * (SIZE + 4) / 2
    heard: list[Any] = []

    def ask(sent: Any, alpha: float) -> Any:
        heard.append(sent.tolist())
        return ones()

    CentreExchange(mine, make("easgd", SIZE, {"alpha": 0.5}), ExchangeStatistics(), ask, codec=codec).exchange_once(
        False
    )
    assert mine.value.tolist() == before and heard == [[1.0] * SIZE]


def test_two_bytes_do_not_round_the_counts_of_a_round() -> None:
    """Above 256, bf16 has no odd numbers: all 301 ranks would seem to leave where 300 do."""
    meeting = AveragingRound(replica(), make("ma", SIZE, {}), ExchangeStatistics(), codec=CODECS["bf16"])
    total = meeting.fill(False)
    total[-4:] = 301.0, 300.0, 301.0, 1.0
    assert not meeting.apply(0.0)


def test_every_step_and_every_difference_counts_with_threads_on_one_replica() -> None:
    """Whole numbers in float32: whatever the order, the sum is exact, and so is what would be missing."""
    mine = replica(0.0, threads=3)

    def compute(thread: int) -> None:
        for _ in range(300):
            mine.step(ones(-1.0), 1.0, 1.0, thread)

    def shadow() -> None:
        for _ in range(200):
            mine.add(ones(1000.0))

    def quiet() -> None:  # one thread computes: Hogwild threads may lose each other's steps, by design
        all_of([lambda: compute(0), shadow])

    quiet()
    assert mine.value.tolist() == [300.0 + 200_000.0] * SIZE and mine.iterations == 300


def test_trainers_part_after_the_same_round_whenever_they_were_told() -> None:
    """Ranks 0, 1, 2 compute for 1, 5 and 9 rounds; rank 3 never trains. All answer until all leave."""
    group, rounds = MemoryGroup(4), [0] * 4
    replicas = [replica(float(rank)) for rank in range(4)]

    def trainer(rank: int) -> None:
        weight, busy = (0.0, 0) if rank == 3 else (1.0, 1 + 4 * rank)
        meeting = AveragingRounds(
            replicas[rank], make("ma", SIZE, {}), ExchangeStatistics(), group.member(rank), weight=weight
        )
        while not meeting.exchange_once(rounds[rank] >= busy):
            rounds[rank] += 1

    all_of([lambda rank=rank: trainer(rank) for rank in range(4)])
    assert rounds == [9] * 4
    assert [each.value[0] for each in replicas] == [1.0, 1.0, 1.0, 3.0], "who does not train neither counts nor moves"


def test_one_that_dies_is_dropped_from_the_mean_and_the_others_part() -> None:
    """Rank 1 comes to two rounds and dies; rank 2 leaves at the fifth, rank 0 at the seventh."""
    group, rounds, busy = MemoryGroup(3), [0] * 3, [7, 2, 5]
    replicas = [replica(float(6 * rank)) for rank in range(3)]

    def trainer(rank: int) -> None:
        mine = group.member(rank)
        mine.sum_live_ranks()
        meeting = AveragingRounds(replicas[rank], make("ma", SIZE, {}), ExchangeStatistics(), mine)
        while not meeting.exchange_once(rounds[rank] >= busy[rank]):
            rounds[rank] += 1
            if rank == 1 and rounds[rank] == 2:
                replicas[rank].add(ones(600.0))  # nobody hears of this any more
                mine.close()
                return

    all_of([lambda rank=rank: trainer(rank) for rank in range(3)])
    assert rounds == [7, 2, 7]
    assert [each.value[0] for each in replicas] == [6.0, 606.0, 6.0]


def test_the_mean_is_over_those_who_are_there() -> None:
    group = MemoryGroup(3)
    members = [group.member(rank) for rank in range(3)]
    for each in members:
        each.sum_live_ranks()
    group.leave(1)
    meetings = {
        rank: AveragingRounds(replica(4.0 * rank), make("ma", SIZE, {}), ExchangeStatistics(), members[rank])
        for rank in (0, 2)
    }
    all_of([lambda each=each: each.exchange_once(False) for each in meetings.values()])
    assert [each.replica.value[0] for each in meetings.values()] == [4.0, 4.0]
    assert all(each.statistics.sent == 8.0 * (SIZE + 4) / 2 for each in meetings.values())


def test_one_that_is_out_of_data_answers_and_may_still_be_given_a_batch() -> None:
    """Rank 1 is idle from its start; while rank 0 exchanges every second iteration it takes two steps more."""
    group, given, notes = MemoryGroup(2), threading.Event(), [ExchangeStatistics(), ExchangeStatistics()]
    replicas = [replica(0.0), replica(8.0)]

    def drive(rank: int) -> ForegroundDriver:
        mine = group.member(rank)
        mine.sum_live_ranks()
        return ForegroundDriver(AveragingRounds(replicas[rank], make("ma", SIZE, {}), notes[rank], mine), 2, nobody)

    def busy() -> None:
        loop = drive(0)
        for count in range(6):
            replicas[0].step(ones(0.0), 1.0, 1.0)
            loop.on_step(count + 1)
        assert given.wait(LIMIT)
        loop.idle()
        loop.close()

    def idle() -> None:
        loop = drive(1)
        loop.idle()
        for count in range(2):
            replicas[1].step(ones(0.0), 1.0, 1.0)
            loop.on_step(count + 1)
        given.set()
        loop.close()

    all_of([busy, idle])
    assert [each.value[0] for each in replicas] == [4.0, 4.0]
    assert notes[0].gaps == {2: 3} and sum(gap * count for gap, count in notes[1].gaps.items()) <= 2
    assert notes[0].exchanges >= 3


@pytest.mark.parametrize("trainers", [1, 2])
def test_when_all_are_out_of_data_no_round_moves_anything(trainers: int) -> None:
    """Blocks have momentum, which would carry the replicas on for as long as the phase takes to be closed."""
    group, replicas = MemoryGroup(trainers), [replica(0.1 + rank) for rank in range(trainers)]
    rounds = threading.Semaphore(0)

    def trainer(rank: int) -> None:
        rule = make("bmuf", SIZE, {"block_momentum": 0.5, "block_lr": 1.0, "nesterov": False})
        rule.start(ones(5.0))
        meeting = AveragingRounds(replicas[rank], rule, ExchangeStatistics(), group.member(rank))
        accept = meeting.apply
        meeting.apply = lambda began: (accept(began), rounds.release())[0]  # type: ignore[method-assign]
        loop = ForegroundDriver(meeting, 100, nobody)
        loop.idle()
        for _ in range(3):
            assert rounds.acquire(timeout=LIMIT)
        loop.close()

    all_of([lambda rank=rank: trainer(rank) for rank in range(trainers)])
    assert [each.value[0] for each in replicas] == [np.float32(0.1 + rank) for rank in range(trainers)]


@pytest.mark.parametrize("shadow", [True, False])
def test_trainers_of_unequal_speed_end_without_waiting_for_ever(shadow: bool) -> None:
    """In the foreground one that has no data any more answers those that still come to their k-th iteration."""
    group, steps = MemoryGroup(3), [40, 5, 0]

    def trainer(rank: int) -> None:
        mine = replica(float(rank))
        meeting = AveragingRounds(mine, make("ma", SIZE, {"alpha": 0.5}), ExchangeStatistics(), group.member(rank))
        loop = start_exchanges(ExchangePace(shadow, 0.0, 4), meeting, nobody)
        for count in range(steps[rank]):
            mine.step(ones(0.0), 1.0, 1.0)
            loop.on_step(count + 1)
        loop.close()

    all_of([lambda rank=rank: trainer(rank) for rank in range(3)])


def test_compute_goes_on_while_a_shadow_exchange_takes_its_time() -> None:
    """An exchange that does not end: any number of steps are taken meanwhile."""
    asked, answer, mine = threading.Event(), threading.Event(), replica()

    def ask(sent: Any, alpha: float) -> Any:
        asked.set()
        assert answer.wait(LIMIT)
        return ones(0.0)

    notes = ExchangeStatistics()
    loop = ShadowDriver(CentreExchange(mine, make("easgd", SIZE, {"alpha": 0.5}), notes, ask), 0.0, nobody)
    assert asked.wait(LIMIT)
    for count in range(1000):
        mine.step(ones(-1.0), 1.0, 1.0)
        loop.on_step(count + 1)
    assert (mine.iterations, mine.value[0]) == (1000, 1000.0) and notes.exchanges == 0
    answer.set()
    loop.close()
    assert notes.exchanges >= 1 and notes.foreground == 0.0


@pytest.mark.parametrize("shadow", [True, False])
def test_an_exchange_that_fails_in_the_background_is_told_of_at_once(shadow: bool) -> None:
    """In the foreground, of a trainer out of data, which takes no step any more."""
    failed, told = threading.Event(), list[BaseException]()

    def ask(sent: Any, alpha: float) -> Any:
        raise ClusterError("another rank is gone.")

    def fail(error: BaseException) -> None:
        told.append(error)
        failed.set()

    exchange = CentreExchange(replica(), make("easgd", SIZE, {"alpha": 0.5}), ExchangeStatistics(), ask)
    loop = start_exchanges(ExchangePace(shadow, 0.0, 4), exchange, fail)
    loop.idle()
    assert failed.wait(LIMIT)
    loop.close()
    assert [str(error) for error in told] == ["another rank is gone."]


@pytest.mark.parametrize(("last", "due"), [(0, [3, 6, 9]), (-2, [1, 4, 7, 10])])
def test_the_foreground_exchanges_every_k_iterations(
    last: int, due: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `last` exchange was in this phase or, below 0, in an earlier one."""
    asked, clock = list[int](), [0.0]
    monkeypatch.setattr("gbactl.trainer.replica_exchange.time.perf_counter", lambda: clock[0])
    mine = replica()

    def ask(sent: Any, alpha: float) -> Any:
        asked.append(mine.iterations)
        clock[0] += 1.0
        return ones(0.0)

    @contextmanager
    def paused() -> Iterator[None]:
        clock[0] += 100.0  # until the last thread has stopped; the others still compute
        yield

    notes = ExchangeStatistics(last_exchange=last)
    loop = ForegroundDriver(CentreExchange(mine, make("easgd", SIZE, {"alpha": 0.5}), notes, ask), 3, nobody, paused)
    for count in range(10):
        mine.step(ones(1.0), 1.0, 1.0)
        loop.on_step(count + 1)
    loop.close()
    assert asked == due and notes.gaps == {3: len(due)} and notes.foreground == len(due)


def test_with_an_infinite_interval_nothing_is_exchanged() -> None:
    def ask(sent: Any, alpha: float) -> Any:
        raise AssertionError("nobody asked for that")

    loop = ShadowDriver(
        CentreExchange(replica(), make("easgd", SIZE, {"alpha": 0.5}), ExchangeStatistics(), ask), float("inf"), nobody
    )
    loop.on_step(1)
    loop.close()


def pace(rule: str, trainers: int, index: int = 0, *, shadow: bool = True, interval: float = 0.0) -> ExchangePace:
    own = {"alpha": 0.5, "shadow_interval": interval, "block_momentum": 0.5, "block_lr": 1.0, "nesterov": False, "k": 5}
    return ExchangePace.for_worker(make(rule, SIZE, own), shadow, trainers, index, own)


def test_one_trainer_alone_has_nothing_to_average_with() -> None:
    assert pace("ma", 1) == ExchangePace() and pace("bmuf", 1) == pace("easgd", 1) == ExchangePace(True, 0.0)
    assert pace("ma", 2) == ExchangePace(True, 0.0) and pace("ma", 2, shadow=False) == ExchangePace(k=5)
    assert pace("easgd", 2, 2) == ExchangePace(), "who does not train only answers"


def test_trainers_come_to_a_centre_one_after_the_other_and_meet_each_other_at_once() -> None:
    """A quarter of the interval apart, the last after the whole of it."""
    assert [pace("easgd", 4, index, interval=2.0).part for index in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [pace("ma", 4, index, interval=2.0) for index in range(4)] == [ExchangePace(True, 2.0)] * 4


def test_the_first_pause_is_its_part_of_the_interval() -> None:
    """Of 1,000 s nothing is left after a millionth; the second exchange does not come."""
    asked = threading.Event()

    def ask(sent: Any, alpha: float) -> Any:
        asked.set()
        return ones(0.0)

    notes = ExchangeStatistics()
    meeting = CentreExchange(replica(), make("easgd", SIZE, {"alpha": 0.5}), notes, ask)
    loop = start_exchanges(ExchangePace(True, 1000.0, part=1e-6), meeting, nobody)
    assert asked.wait(LIMIT)
    loop.close()
    assert notes.exchanges == 1


def test_gaps_are_iterations_between_two_exchanges() -> None:
    notes = ExchangeStatistics()
    for iterations in (3, 3, 10):
        notes.add(iterations, 0.5, 100.0)
    assert notes.gaps == {3: 1, 0: 1, 7: 1} and (notes.seconds, notes.sent) == (1.5, 300.0)


def test_distances_are_taken_at_ever_wider_spacing() -> None:
    notes, zero = ExchangeStatistics(), np.zeros(4, np.float32)
    for number in range(10_000):
        notes.distance(float(number), zero + 3.0, zero)
        notes.add(number, 0.0, 0.0)
    assert notes.distances[0] == (0.0, 6.0) and 50 < len(notes.distances) < 120

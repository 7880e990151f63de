"""What the first server makes of parts and sums: once, the same for all, in the order of the parts; what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.errors import WireError
from gbactl.server.allreduce_fallback import OPEN, GenerationSums, SumHandlers
from gbactl.store.shard import Shard
from gbactl.wire.auth import Peer
from gbactl.wire.frames import Frame
from gbactl.wire.messages import RingBroken, Sum, Summand, SummandsLost
from tests.support.serving import SPEC

RANKS, ROUNDS = 4, 4
OF_RING = 1000.0  # what a ring's sum is: no other one


def values(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def part(number: int = 1, which: int = 0, parts: int = 0, absent: tuple[int, ...] = (), **more: Any) -> Summand:
    told = {"generation": 0, "name": "d", "length": 1, "ranks": 2, "after": 0, **more}
    return Summand(number=number, part=which, parts=parts, absent=list(absent), **told)


class Told:
    """A channel to a coordinator."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


def told(answers: Any) -> list[tuple[int, int, float]]:
    return [(rank, message.number, float(total[0])) for rank, message, total in answers]


def test_a_sum_goes_to_those_who_want_it_when_the_last_part_is_there() -> None:
    sums = GenerationSums()
    assert told(sums.add_part(0, part(which=0, parts=3), values(1))) == []
    assert told(sums.add_part(1, part(which=2, parts=3), values(4))) == []
    assert told(sums.add_part(0, part(which=1, parts=3), values(2))) == [(0, 1, 7.0), (1, 1, 7.0)]
    assert told(sums.add_part(1, part(which=-1, parts=3), None)) == [(1, 1, 7.0)]  # asked for again


def test_the_order_of_a_sum_is_that_of_its_parts() -> None:
    sums, parts, answers = GenerationSums(), {2: 1e8, 0: 1.0, 1: -1e8}, []
    for which, value in parts.items():
        answers = told(sums.add_part(0, part(which=which, parts=3), values(value)))
    assert answers == [(0, 1, float(np.float32(np.float32(1.0) - np.float32(1e8)) + np.float32(1e8)))]


def test_what_the_ring_had_summed_counts_for_all() -> None:
    sums = GenerationSums()
    assert told(sums.add_part(0, part(7), values(1))) == []
    assert told(sums.add_ring_sum(1, Sum(0, "d", 7), values(OF_RING))) == [(0, 7, OF_RING)]
    assert told(sums.add_part(1, part(8, which=1), values(2))) == []
    assert told(sums.add_part(0, part(8), values(1))) == [(0, 8, 3.0), (1, 8, 3.0)]


def test_a_part_that_is_gone_is_waited_for_until_its_step_is_ordered() -> None:
    """Rank 1 died with part 1: it is handed out again, unless its rows were announced."""
    sums = GenerationSums()
    assert told(sums.add_part(0, part(which=0, parts=3, after=5), values(1))) == []
    assert told(sums.add_part(0, part(which=2, parts=3, after=5), values(4))) == []
    assert told(sums.add_part(0, part(which=-1, parts=3, after=5, absent=(1,)), None)) == []
    assert told(sums.on_version(4)) == [] and not sums.lost
    assert told(sums.on_version(5)) == [(0, 1, 5.0)] and sums.lost == {4: {1}}


def test_who_lives_and_has_not_told_everything_is_waited_for() -> None:
    sums = GenerationSums()
    sums.version = 7
    one = {"parts": 4, "ranks": 3, "absent": (2,)}
    assert told(sums.add_part(0, part(which=0, after=5, **one), values(1))) == []
    assert told(sums.add_part(1, part(which=1, **one), values(2))) == []  # another one of its own comes
    assert told(sums.add_part(1, part(which=3, after=5, **one), values(8))) == [(0, 1, 11.0), (1, 1, 11.0)]
    assert sums.lost == {4: {2}}


def test_a_sum_of_which_nothing_is_left_is_zero() -> None:
    """The last step had one batch, and its worker is gone."""
    sums = GenerationSums()
    assert told(sums.add_part(0, part(which=-1, parts=1, after=3), None)) == []
    assert told(sums.add_part(0, part(which=-1, parts=1, after=3, absent=(1,)), None)) == []
    assert told(sums.on_version(3)) == [(0, 1, 0.0)] and sums.lost == {2: {0}}


def test_the_coordinator_is_told_once_of_what_is_gone_and_each_new_one_again() -> None:
    coordinator, worker = Told(), SimpleNamespace(peer=Peer("worker", 0), sent=[])
    worker.reserve = lambda size: np.zeros(size, np.uint8)
    worker.send = lambda message, payload: worker.sent.append((message.name, float(payload.view(np.float32)[0])))
    shard = SimpleNamespace(version=5)
    side = SumHandlers(shard, coordinator)  # type: ignore[arg-type]
    for name in ("dense.1", "dense.0"):  # buckets of one gradient
        message = part(name=name, parts=2, after=5, absent=(1,))
        side.from_workers[Summand](worker, message, Frame(1, b"", values(3).view(np.uint8)))
    assert worker.sent == [("dense.1", 3.0), ("dense.0", 3.0)]
    assert coordinator.messages == [RingBroken(), SummandsLost(4, [1])]
    side.on_step()
    assert len(coordinator.messages) == 2
    side.on_takeover()
    assert sorted(coordinator.messages, key=str) == 2 * [RingBroken()] + 2 * [SummandsLost(4, [1])]


@dataclass
class Dealt:
    """A rank in one round of dealt parts: what it has computed, and which of that a server has been told."""

    parts: list[int]
    todo: list[int] = field(default_factory=list)
    absent: tuple[int, ...] = ()
    total: float | None = None


AFTER = 9  # of the step


@settings(deadline=None)
@given(st.data())
def test_a_step_s_sum_lacks_what_died_alone_and_no_part_of_who_lives(data: st.DataObject) -> None:
    """Rank 2 dies: its batch was announced or not, its part was told or not. If not announced, somebody else computes
    it. Rows are announced after their part is told; the server may be lost, and told again by each in its own time."""
    sums, ranks = GenerationSums(), {0: Dealt([], [0]), 1: Dealt([], [1])}
    announced, dead_told = data.draw(st.booleans()), data.draw(st.booleans())
    pushed: set[int] = {2} if announced else set()
    version, behind, dealt_again, restarts = AFTER - 1, set[int](), announced, 1

    def tell(index: int, which: int, more: bool = False) -> None:
        message = part(1, which, 3, ranks[index].absent, ranks=3, after=0 if more else AFTER)
        heard(sums.add_part(index, message, None if which < 0 else values(2**which)))

    def heard(answers: Any) -> None:
        for index, _, total in told(answers):
            if index in ranks:
                assert ranks[index].total in (None, total)
                ranks[index].total = total

    def tell_again(index: int) -> None:
        rank = ranks[index]
        if rank.total is not None:
            heard(sums.add_ring_sum(index, Sum(0, "d", 1), values(rank.total)))
        elif rank.parts:
            for which in rank.parts:
                tell(index, which, more=True)
            tell(index, -1)

    if dead_told:
        heard(sums.add_part(2, part(1, 2, 3, ranks=3, after=AFTER), values(4)))
    while True:
        todo: list[tuple[str, int]] = [("again", index) for index in behind]
        for index, rank in ranks.items():
            todo += [("compute", index)] if rank.todo and index not in behind else []
            todo += [("know", index)] if not rank.absent and index not in behind else []
        todo += [] if dealt_again else [("deal", 0), ("deal", 1)]
        todo += [("order", 0)] if len(pushed) == 3 and version < AFTER else []
        if not todo:
            break
        todo += [("restart", 0)] if restarts and not behind else []
        what, index = data.draw(st.sampled_from(todo))
        rank = ranks[index]
        if what == "compute":
            rank.parts.append(rank.todo.pop(0))
            tell(index, rank.parts[-1])
            pushed.add(rank.parts[-1])
        elif what == "know":
            rank.absent = (2,)
            if rank.parts:
                tell(index, -1)
        elif what == "deal":
            dealt_again = True
            if rank.total is None:
                rank.todo.append(2)
            else:
                pushed.add(2)  # its rows alone
        elif what == "order":
            version = AFTER
            heard(sums.on_version(version))
        elif what == "restart":
            restarts, dead_told, sums, behind = 0, False, GenerationSums(), {0, 1}
            sums.version = version
        else:
            behind.discard(index)
            tell_again(index)
    assert ranks[0].total == ranks[1].total is not None
    assert int(ranks[0].total) & 3 == 3
    if ranks[0].total != 7:
        assert announced and not dead_told


@dataclass
class Rank:
    """What a rank does, step by step: its messages in order, each round after it has had the one before."""

    index: int
    number: int
    brings: bool
    absent: set[int] = field(default_factory=set)
    asked: bool = False
    had: dict[int, float] = field(default_factory=dict)

    def act(self, sums: GenerationSums) -> list[tuple[int, int, float]]:
        head = {"ranks": RANKS, "absent": tuple(self.absent)}
        if self.brings:
            self.brings, self.had[self.number] = False, OF_RING
            answers = told(sums.add_ring_sum(self.index, Sum(0, "d", self.number), values(OF_RING)))
            self.number += 1
            return answers
        which = -1 if self.asked else self.index
        self.asked = True
        return told(
            sums.add_part(self.index, part(self.number, which, **head), None if which < 0 else values(2**which))
        )


@settings(deadline=None)
@given(st.data())
def test_all_who_live_have_the_same_sums_whoever_dies_when(data: st.DataObject) -> None:
    """The ring breaks in some round, of which some ranks have the sum, and some of the others die in any order."""
    first = data.draw(st.integers(1, 3))
    sums, last = GenerationSums(), first + ROUNDS
    ranks = [Rank(index, first, data.draw(st.booleans())) for index in range(RANKS)]
    by_ring = any(rank.brings for rank in ranks)
    doomed = data.draw(st.sets(st.integers(0, RANKS - 1), min_size=1, max_size=RANKS - 1))
    living = [rank for rank in ranks if rank.index not in doomed]
    alive = set(range(RANKS))
    while True:
        unaware = [(rank, dead) for rank in living for dead in doomed - alive - rank.absent]
        acting = [rank for rank in ranks if rank.index in alive and rank.number <= last and not rank.asked]
        todo = [("act", rank) for rank in acting] + [("know", each) for each in unaware]
        todo += [("die", index) for index in doomed & alive]
        if not todo:
            break
        what, who = data.draw(st.sampled_from(todo)) if len(todo) > 1 else todo[0]
        answers = []
        if what == "die":
            alive.discard(who)
        elif what == "know":
            who[0].absent.add(who[1])
            answers = who[0].act(sums) if who[0].asked and who[0].number <= last else []
        else:
            answers = who.act(sums)
        for index, number, total in answers:
            rank = ranks[index]
            assert rank.had.setdefault(number, total) == total
            if number == rank.number:
                rank.number, rank.asked = number + 1, False
    assert all(set(rank.had) == set(range(first, last + 1)) for rank in living)
    for number in range(first, last + 1):
        [total] = {rank.had[number] for rank in living}
        least = sum(2**rank.index for rank in living)
        assert total == OF_RING or int(total) & least == least
        if number > first:
            assert total != OF_RING
    if by_ring and any(rank.had[first] == OF_RING for rank in living):
        assert {rank.had[first] for rank in living} == {OF_RING}


@pytest.mark.parametrize("message", [
    part(which=2), part(which=-2), part(which=3, parts=3), part(number=0), part(number=-5), part(ranks=1 << 17),
    part(parts=-3, which=-1), part(parts=1 << 40),
])  # fmt: skip
def test_what_cannot_be_is_refused(message: Summand) -> None:
    with pytest.raises(WireError):
        list(GenerationSums().add_part(0, message, values(1)))
    with pytest.raises(WireError):
        list(GenerationSums().add_part(2, part(), values(1)))  # no rank of two


def test_a_sum_has_one_length_and_nobody_is_far_ahead() -> None:
    sums = GenerationSums()
    list(sums.add_part(0, part(), values(1)))
    with pytest.raises(WireError):
        list(sums.add_part(1, part(length=2), values(1, 2)))
    with pytest.raises(WireError):
        for number in range(2, OPEN + 3):
            list(sums.add_part(0, part(number), values(1)))


def test_a_new_generation_knows_nothing_of_the_one_before() -> None:
    sums = GenerationSums()
    list(sums.add_part(0, part(5, absent=(1,)), values(1)))
    assert told(sums.add_part(0, part(1, generation=3), values(1))) == []  # rank 1 is waited for
    assert told(sums.add_part(1, part(5, which=1), values(9))) == []  # from before
    assert told(sums.add_part(1, part(1, which=1, generation=3), values(2))) == [(0, 1, 3.0), (1, 1, 3.0)]


def test_a_frame_that_does_not_fit_is_refused() -> None:
    side, channel = SumHandlers(Shard(SPEC), Told()), SimpleNamespace(peer=Peer("worker", 0))
    for message in (part(length=2), part(which=-1), part(which=5), Sum(0, "d", 0)):
        with pytest.raises(WireError):
            side.from_workers[type(message)](channel, message, Frame(1, b"", values(1).view(np.uint8)))

"""What the first server makes of parts and sums: once, the same for all, in the order of the parts; what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.cluster.auth import Peer
from gbactl.cluster.frames import Frame
from gbactl.cluster.messages import Sum, SumPart
from gbactl.cluster.sums import OPEN, Sums, SumSide
from gbactl.errors import WireError

RANKS, ROUNDS = 4, 4
OF_RING = 1000.0  # what a ring's sum is: no other one


def values(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def part(number: int = 1, which: int = 0, parts: int = 0, absent: tuple[int, ...] = (), **more: Any) -> SumPart:
    told = {"generation": 0, "name": "d", "length": 1, "ranks": 2, **more}
    return SumPart(number=number, part=which, parts=parts, absent=list(absent), **told)


def told(answers: Any) -> list[tuple[int, int, float]]:
    return [(rank, message.number, float(total[0])) for rank, message, total in answers]


def test_a_sum_goes_to_those_who_want_it_when_the_last_part_is_there() -> None:
    sums = Sums()
    assert told(sums.part(0, part(which=0, parts=3), values(1))) == []
    assert told(sums.part(1, part(which=2, parts=3), values(4))) == []
    assert told(sums.part(0, part(which=1, parts=3), values(2))) == [(0, 1, 7.0), (1, 1, 7.0)]
    assert told(sums.part(1, part(which=-1, parts=3), None)) == [(1, 1, 7.0)]  # asked for again


def test_the_order_of_a_sum_is_that_of_its_parts() -> None:
    sums, parts, answers = Sums(), {2: 1e8, 0: 1.0, 1: -1e8}, []
    for which, value in parts.items():
        answers = told(sums.part(0, part(which=which, parts=3), values(value)))
    assert answers == [(0, 1, float(np.float32(np.float32(1.0) - np.float32(1e8)) + np.float32(1e8)))]


def test_what_the_ring_had_summed_counts_for_all() -> None:
    sums = Sums()
    assert told(sums.part(0, part(7), values(1))) == []
    assert told(sums.brought(1, Sum(0, "d", 7), values(OF_RING))) == [(0, 7, OF_RING)]
    assert told(sums.part(1, part(8, which=1), values(2))) == []
    assert told(sums.part(0, part(8), values(1))) == [(0, 8, 3.0), (1, 8, 3.0)]


@dataclass
class Rank:
    """What a rank does, step by step: its messages in order, each round after it has had the one before."""

    index: int
    number: int
    brings: bool
    absent: set[int] = field(default_factory=set)
    asked: bool = False
    had: dict[int, float] = field(default_factory=dict)

    def act(self, sums: Sums) -> list[tuple[int, int, float]]:
        head = {"ranks": RANKS, "absent": tuple(self.absent)}
        if self.brings:
            self.brings, self.had[self.number] = False, OF_RING
            answers = told(sums.brought(self.index, Sum(0, "d", self.number), values(OF_RING)))
            self.number += 1
            return answers
        which = -1 if self.asked else self.index
        self.asked = True
        return told(sums.part(self.index, part(self.number, which, **head), None if which < 0 else values(2**which)))


@settings(deadline=None)
@given(st.data())
def test_all_who_live_have_the_same_sums_whoever_dies_when(data: st.DataObject) -> None:
    """The ring breaks in some round, of which some ranks have the sum, and some of the others die in any order."""
    first = data.draw(st.integers(1, 3))
    sums, last = Sums(), first + ROUNDS
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
def test_what_cannot_be_is_refused(message: SumPart) -> None:
    with pytest.raises(WireError):
        list(Sums().part(0, message, values(1)))
    with pytest.raises(WireError):
        list(Sums().part(2, part(), values(1)))  # no rank of two


def test_a_sum_has_one_length_and_nobody_is_far_ahead() -> None:
    sums = Sums()
    list(sums.part(0, part(), values(1)))
    with pytest.raises(WireError):
        list(sums.part(1, part(length=2), values(1, 2)))
    with pytest.raises(WireError):
        for number in range(2, OPEN + 3):
            list(sums.part(0, part(number), values(1)))


def test_a_new_generation_knows_nothing_of_the_one_before() -> None:
    sums = Sums()
    list(sums.part(0, part(5, absent=(1,)), values(1)))
    assert told(sums.part(0, part(1, generation=3), values(1))) == []  # rank 1 is waited for
    assert told(sums.part(1, part(5, which=1), values(9))) == []  # from before
    assert told(sums.part(1, part(1, which=1, generation=3), values(2))) == [(0, 1, 3.0), (1, 1, 3.0)]


def test_a_frame_that_does_not_fit_is_refused() -> None:
    side, channel = SumSide(), SimpleNamespace(peer=Peer("worker", 0))
    for message in (part(length=2), part(which=-1), part(which=5), Sum(0, "d", 0)):
        with pytest.raises(WireError):
            side.from_workers[type(message)](channel, message, Frame(1, b"", values(1).view(np.uint8)))

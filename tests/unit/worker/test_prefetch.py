"""The order in which a worker computes what it was granted."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.prefetch import Upcoming


@dataclass(eq=False)
class Item:
    grant: Granted
    phase: BeginPhase


def item(token: int, served: bool, training: bool = True, phase: int = 1) -> Item:
    begun = BeginPhase(phase, training, "sync", 0, 0, 100, 10, 0, served, False)
    return Item(Granted(phase, 0, token, 0, 10, 0, 1.0, 1.0), begun)


def tokens(queue: Upcoming[Item]) -> list[int]:
    return [each.grant.token for each in queue]


@given(st.lists(st.integers(0, 5)))
def test_a_dead_workers_batch_goes_before_those_of_later_steps(granted: list[int]) -> None:
    queue: Upcoming[Item] = Upcoming()
    for token in granted:
        before = any(other > token for other in tokens(queue))
        assert queue.admit(item(token, served=False)) == before
    assert tokens(queue) == sorted(granted)


@given(st.lists(st.integers(0, 5)))
def test_where_servers_hold_the_dense_part_grants_keep_their_order(granted: list[int]) -> None:
    queue: Upcoming[Item] = Upcoming()
    assert not any([queue.admit(item(token, served=True)) for token in granted])
    assert tokens(queue) == granted


def test_it_has_another_batch_of_a_step_only_where_that_is_the_next() -> None:
    queue: Upcoming[Item] = Upcoming()
    assert not queue.has_of(3)
    queue.admit(item(4, served=False))
    assert not queue.has_of(3)
    assert queue.has_of(4)
    queue.admit(item(3, served=False))
    assert queue.has_of(3)
    evaluation: Upcoming[Item] = Upcoming([item(0, served=False, training=False)])
    assert not evaluation.has_of(3)


def test_what_is_given_up_is_of_one_phase() -> None:
    queue: Upcoming[Item] = Upcoming([item(0, True, phase=1), item(0, True, phase=2), item(1, True, phase=1)])
    assert tokens(Upcoming(queue.give_up(1))) == [0, 1]
    assert [each.phase.number for each in queue] == [2]

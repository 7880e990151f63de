"""What nodes remember for another coordinator."""

from __future__ import annotations

from typing import Any, cast

from gbactl.store.shard import Shard
from gbactl.wire import reconnecting
from gbactl.wire.messages import BeginPhase, Granted, Staged, WorkerState
from gbactl.wire.reconnecting import GrantedBatches, StagedGradients


def phase(number: int, training: bool = True) -> BeginPhase:
    return BeginPhase(number, training, "gba", 0, 0, 100, 10, 0, True, True)


def grant(number: int, batch: int) -> Granted:
    return Granted(number, batch, 0, 10 * batch, 10, 0, 0.0, 0.0)


def test_what_was_granted_and_what_of_it_is_held() -> None:
    found = GrantedBatches()
    assert found.worker_state(3, 1, None) == WorkerState(3, 1, 0, [], [])
    for batch in range(3):
        found.granted(grant(7, batch), phase(7))
    found.returned(grant(7, 1))
    found.granted(grant(8, 1), phase(8, training=False))
    told = found.worker_state(3, 2, phase(8))
    assert told == WorkerState(3, 2, 8, [7, 0, 7, 1, 7, 2, 8, 1], [7, 0, 1, 7, 2, 1, 8, 1, 0])
    found.returned(grant(7, 1))


def test_old_grants_are_forgotten_and_held_ones_never() -> None:
    found = GrantedBatches()
    for batch in range(2 * reconnecting.LAST):
        found.granted(grant(1, batch), phase(1))
        if batch:
            found.returned(grant(1, batch))
    told = found.worker_state(0, 1, phase(1))
    last = reconnecting.LAST
    assert told.held == [1, 0, 1] and len(told.granted) == 2 * last and told.granted[1] == last


class Held:
    """A shard of which only what waits there is looked at."""

    def __init__(self) -> None:
        self.staged: tuple[int, ...] = ()


def staged(batch: int, worker: int = 0) -> Staged:
    return Staged(1, worker, 4, batch, 0.5, 0.1, 1.0, 2, 2)


def test_parts_that_wait_are_told_again_in_the_order_of_their_arrival() -> None:
    parts, shard = StagedGradients(), cast(Any, Held())
    for batch in (5, 2, 9):
        parts.sent(staged(batch), cast(Shard, shard))
    shard.staged = (5, 9)
    assert parts.waiting(shard) == [staged(5), staged(9)]
    parts.sent(staged(9, worker=1), shard)
    assert parts.waiting(shard)[1].worker == 1, "another worker's, since its own died"
    parts.clear()
    assert parts.waiting(shard) == []


def test_parts_that_were_applied_are_forgotten() -> None:
    parts, shard = StagedGradients(), cast(Any, Held())
    for batch in range(4 * reconnecting.MOST):
        shard.staged = (batch - 1, batch)
        parts.sent(staged(batch), shard)
    assert len(parts._sent) <= reconnecting.MOST + 1
    assert [each.batch for each in parts.waiting(shard)] == list(shard.staged)

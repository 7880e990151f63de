"""A worker's side of sums that a server makes: what it tells when the ring breaks, and again to another server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gbactl.errors import PeerGoneError
from gbactl.wire.messages import Stop
from gbactl.worker.allreduce_fallback import ServerSums
from tests.support.serving import Serving

N = 5


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving(3)
    yield made
    made.close()


def vector(value: float) -> Any:
    return np.full(N, value, np.float32)


def by_ring(rank: ServerSums, value: float, total: float | None) -> Any:
    """Take part in a round of the ring, which has summed up to `total` here, or breaks before."""
    buffer = vector(value)
    handle = rank.give("d", buffer)
    if total is not None:
        buffer[:] = total
        assert rank.confirm_sum(handle)
    return handle


def test_nothing_is_sent_while_the_ring_holds(serving: Serving) -> None:
    rank = serving.member(0)
    rank.sum_live_ranks()
    sent: list[Any] = []
    rank.client.servers[0].send = lambda *told: sent.append(told[0])  # type: ignore[method-assign]
    for _ in range(5):
        by_ring(rank, 1.0, 6.0)
    assert not sent


def test_a_sum_that_reached_one_reaches_all(serving: Serving) -> None:
    """Rank 2 dies in round 3, whose sum rank 0 alone has of the ring."""
    ranks = [serving.member(rank) for rank in range(2)]
    for rank in ranks:
        rank.sum_live_ranks()
        for _ in range(2):
            by_ring(rank, 1.0, 6.0)
    by_ring(ranks[0], 1.0, 7.0)
    missed = by_ring(ranks[1], 2.0, None)
    for rank in ranks:
        rank.use_ring(None)
        rank.leave_out(2)
    ranks[1].sum_given(missed)
    assert missed.buffer.tolist() == [7.0] * N
    handles = [by_ring(rank, 4.0 + rank.rank, None) for rank in ranks]
    for rank, handle in zip(ranks, handles, strict=True):
        rank.sum_given(handle)
        assert handle.buffer.tolist() == [9.0] * N


def test_what_comes_of_the_ring_after_it_was_given_up_does_not_count(serving: Serving) -> None:
    """The server was told that this rank has no sum: others may have another one already."""
    ranks = [serving.member(rank) for rank in range(2)]
    for rank in ranks:
        rank.sum_live_ranks()
    handles = [by_ring(rank, 1.0 + rank.rank, None) for rank in ranks]
    for rank in ranks:
        rank.use_ring(None)
        rank.leave_out(2)
    handles[0].buffer[:] = 42.0
    assert not ranks[0].confirm_sum(handles[0])
    for rank, handle in zip(ranks, handles, strict=True):
        rank.sum_given(handle)
        assert handle.buffer.tolist() == [3.0] * N


def test_another_server_is_told_all_that_the_one_before_knew(serving: Serving) -> None:
    """It dies when it has some parts, and again when some may have had the sum."""
    ranks = [serving.member(rank) for rank in range(3)]
    for rank in ranks:
        rank.sum_live_ranks()
        rank.use_ring(None)
    handles = [by_ring(rank, 1.0, None) for rank in ranks[:2]]
    serving.lose_server()
    serving.replace_server()
    handles.append(by_ring(ranks[2], 1.0, None))
    for rank, handle in zip(ranks, handles, strict=True):
        rank.sum_given(handle)
        assert handle.buffer.tolist() == [3.0] * N
    ahead = by_ring(ranks[0], 5.0, None)
    serving.lose_server()
    handles = [by_ring(rank, 5.0, None) for rank in ranks[1:]]
    serving.replace_server()
    for rank, handle in zip(ranks, [ahead, *handles], strict=True):
        rank.sum_given(handle)
        assert handle.buffer.tolist() == [15.0] * N


def test_many_rounds_with_a_slow_rank_and_several_names(serving: Serving) -> None:
    """Everybody has every sum, whoever is ahead; memory serves again and again."""
    ranks = [serving.member(rank) for rank in range(3)]
    found: dict[int, list[float]] = {}

    def work(rank: ServerSums) -> None:
        rank.sum_live_ranks()
        rank.use_ring(None)
        rng = np.random.default_rng(rank.rank)
        for number in range(50):
            handles = []
            for name, length in (("a", 3), ("b", 2000)):
                handles.append(rank.give(name, np.full(length, number + rank.rank, np.float32)))
                if rng.random() < 0.1:
                    threading.Event().wait(0.01)
            for handle in handles:
                rank.sum_given(handle)
                assert handle.buffer.min() == handle.buffer.max()
            found.setdefault(rank.rank, []).append(float(handles[1].buffer[0]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {rank: [3.0 * number + 3 for number in range(50)] for rank in range(3)}
    assert all(len(rank._free_arrays) <= 6 for rank in ranks)


def test_a_wait_ends_with_the_run(serving: Serving) -> None:
    rank = serving.member(0)
    rank.sum_live_ranks()
    rank.use_ring(None)
    handle = by_ring(rank, 1.0, None)
    serving.told[0].send(Stop())
    with pytest.raises(PeerGoneError):
        rank.sum_given(handle)

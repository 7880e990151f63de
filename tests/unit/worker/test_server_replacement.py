"""What a worker's pushes come to when a server is lost and another one comes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from gbactl.errors import WireError
from gbactl.wire.auth import Peer
from gbactl.wire.messages import Pull, Push, ShardRelocated
from gbactl.worker.server_replacement import ParkedConnection, Routes


class Recorder:
    """A channel that keeps what is sent."""

    def __init__(self, name: str) -> None:
        self.peer, self.name = Peer("server", 0), name
        self.sent: list[tuple[Any, Any]] = []
        self.closed = False

    def reserve(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Any = None) -> None:
        self.sent.append((message, None if payload is None else bytes(payload)))

    def close(self) -> None:
        self.closed = True


def push(batch: int, phase: int = 1, rows: int = 3) -> Push:
    return Push(phase, batch, rows, 4, 0.5, 0.1, 1.0, 2, 2)


def send(routes: Routes, batch: int, phase: int = 1) -> None:
    message = push(batch, phase)
    routes.channel_for_push(0, message).send(message, np.full(2, batch, np.uint8))


def lost(batch: int, phase: int = 1) -> tuple[Push, None]:
    return push(batch, phase)._replace(rows=~3, dense=0), None


def relocated(*batches: int) -> ShardRelocated:
    return ShardRelocated(0, "there", 1, [(1, batch) for batch in batches])


def test_what_had_been_sent_is_lost_and_what_waited_is_sent() -> None:
    old, new, other = Recorder("old"), Recorder("new"), Recorder("other")
    routes = Routes([old, other])
    send(routes, 4, phase=0)
    for batch in (4, 5, 6):
        send(routes, batch)
    routes.park(0)
    assert old.closed and routes.shard_of(old) is None
    waiting = routes.channel_for_push(0, push(8))
    send(routes, 7)
    waiting.send(Pull(1, 2, 3, False, 0, -1))
    assert routes.renew(relocated(5, 6, 7, 8), lambda address, peer: new) is new
    assert new.sent == [lost(5), lost(6), (push(7), bytes([7, 7]))]
    waiting.send(push(8), np.full(2, 8, np.uint8))  # a thread that had asked where to before
    send(routes, 9)
    assert [message.batch for message, _ in new.sent[3:]] == [8, 9]
    assert routes.servers == [new, other] and (routes.shard_of(new), routes.shard_of(other)) == (0, 1)


def test_one_that_hangs_is_left() -> None:
    old, new = Recorder("old"), Recorder("new")
    routes = Routes([old])
    send(routes, 1)
    routes.renew(relocated(1, 2), lambda address, peer: new)
    assert old.closed and new.sent == [lost(1)]


def test_what_waited_and_was_sent_on_is_lost_with_the_next_one() -> None:
    first, second, third = Recorder("first"), Recorder("second"), Recorder("third")
    routes = Routes([first])
    routes.park(0)
    send(routes, 3)
    routes.renew(relocated(3), lambda address, peer: second)
    assert second.sent == [(push(3), bytes([3, 3]))]
    routes.park(0)
    routes.renew(relocated(3), lambda address, peer: third)
    assert third.sent == [lost(3)]


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_is_gone_before_it_is_reached(hangs: bool) -> None:
    old, new = Recorder("old"), Recorder("new")
    routes = Routes([old])

    def nobody(address: str, peer: Peer) -> Any:
        assert (address, peer) == ("there", Peer("server", 0, 1))
        raise WireError("nobody answers")

    if not hangs:
        routes.park(0)
    assert routes.renew(relocated(), nobody) is None
    assert isinstance(routes.servers[0], ParkedConnection) and old.closed
    send(routes, 1)
    assert routes.renew(relocated(1), lambda address, peer: new) is new
    assert new.sent == [(push(1), bytes([1, 1]))]


def test_a_replaced_channel_is_let_go() -> None:
    """It has shared memory, of some megabytes."""
    channels = [Recorder("old")]
    gone, routes = weakref.ref(channels[0]), Routes(channels)
    routes.park(0)
    routes.renew(relocated(), lambda address, peer: Recorder("new"))
    assert gone() is None


def test_whether_a_shard_is_served_by_a_process_already() -> None:
    routes = Routes([Recorder("old"), Recorder("other")])
    assert routes.leads_to(0, 0) and not routes.leads_to(0, 1)
    new = Recorder("new")
    new.peer = Peer("server", 0, 1)
    routes.renew(relocated(), lambda address, peer: new)
    assert routes.leads_to(0, 1) and not routes.leads_to(0, 0) and routes.leads_to(1, 0)
    routes.park(0)
    assert not routes.leads_to(0, 1), "it is gone, and may be told of again"

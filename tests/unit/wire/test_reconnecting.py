"""A node's connection to the coordinator: it comes back where another coordinator listens, and only there."""

from __future__ import annotations

import time

import pytest

from gbactl.wire import reconnecting
from gbactl.wire.auth import Peer
from gbactl.wire.frames import CLOSED
from gbactl.wire.messages import (
    Barrier,
    Hello,
    Ready,
    ShardAddresses,
    Stop,
    Takeover,
    decode,
)
from gbactl.wire.reconnecting import ReconnectingHub
from tests.support.in_memory import MemoryHub

HELLO = Hello("worker", 1, "")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "REDIAL_SECONDS", 0.3)


class Line:
    """A node that has said hello, and the coordinators of its run."""

    def __init__(self) -> None:
        self.network: dict[str, MemoryHub] = {}
        self.coordinator = MemoryHub(self.network, Peer("coordinator", 0))
        self.hub = ReconnectingHub(MemoryHub(self.network, Peer("worker", 1)))
        self.channel = self.hub.connect("C")
        self.channel.send(HELLO)
        [(self.there, _)] = self.coordinator.poll(1)

    def tell(self, *messages: object) -> list[int]:
        """What the node hears; its kinds."""
        for message in messages:
            self.there.send(message)
        found = self.hub.poll(1)
        assert all(channel is self.channel for channel, _ in found)
        return [frame.kind for _, frame in found]

    def next(self, epoch: int = 1) -> None:
        """The coordinator dies; another one listens."""
        old = self.coordinator
        self.coordinator = MemoryHub(self.network, Peer("coordinator", 0, epoch))
        old.close()

    def heard(self) -> list[object]:
        """By the coordinator of now."""
        found = self.coordinator.poll(0)
        if found:
            self.there = found[0][0]
        return [decode(frame) for _, frame in found if frame.kind != CLOSED]


def test_it_says_hello_again_and_goes_on_over_the_same_channel() -> None:
    line = Line()
    line.tell(Barrier(0))
    line.next()
    assert line.tell() == [] and line.heard() == [HELLO]
    assert len(line.tell(Takeover(1), Barrier(3))) == 2
    line.channel.send(Ready("worker", 1))
    assert line.heard() == [Ready("worker", 1)]


@pytest.mark.parametrize("before", [(), (ShardAddresses(["S0"]),), (Barrier(0), Stop())])
def test_a_node_without_a_place_in_the_run_is_told_of_the_loss(before: tuple[object, ...]) -> None:
    line = Line()
    if before:
        line.tell(*before)
    line.next()
    assert line.tell() == [CLOSED] and line.heard() == []


def test_the_first_in_its_place_has_it_when_it_is_ready() -> None:
    line = Line()
    line.tell(ShardAddresses(["S0"]))
    line.channel.send(Ready("worker", 1))
    line.next()
    assert line.tell() == [] and line.heard() == [HELLO]
    later = Line()
    later.hub._first_incarnation = False
    later.tell(ShardAddresses(["S0"]))
    later.channel.send(Ready("worker", 1))
    later.next()
    assert later.tell() == [CLOSED]


def test_where_nobody_listens_it_is_lost_in_the_end() -> None:
    line = Line()
    line.tell(Barrier(0))
    line.coordinator.close()
    began = time.monotonic()
    assert line.tell() == [CLOSED]
    assert time.monotonic() - began >= 0.3


def test_who_is_turned_away_time_and_again_gives_up() -> None:
    line = Line()
    line.tell(Barrier(0))
    line.next()
    for _ in range(reconnecting.MOST_TRIES):
        assert line.tell() == [] and line.heard() == [HELLO]
        line.there.close()
    assert line.tell() == [CLOSED]


def test_one_that_has_woken_up_is_left_again() -> None:
    """It was given up; another one has a later epoch."""
    line = Line()
    line.tell(Barrier(0))
    line.next(2)
    assert line.tell() == [] and line.heard() == [HELLO]
    assert len(line.tell(Takeover(2))) == 1
    line.next(1)
    assert line.tell() == [] and line.heard() == [HELLO]
    assert line.tell(Takeover(1)) == [], "not handed on"
    assert line.heard()[-1] == HELLO, "it dials again"

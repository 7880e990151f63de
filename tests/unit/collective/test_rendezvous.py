"""How many stand at the rendezvous, and for how long."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gbactl.collective.rendezvous import RequestLimit


class Door:
    """Counts who is sent away."""

    def __init__(self) -> None:
        self.refused = 0
        self.pairs: list[tuple[socket.socket, socket.socket]] = []

    def refuse(self) -> None:
        self.refused += 1

    def visitor(self) -> socket.socket:
        """The server's end of a connection."""
        self.pairs.append(socket.socketpair())
        return self.pairs[-1][0]

    def gone(self, number: int) -> bool:
        """Whether a visitor finds that it was sent away."""
        theirs = self.pairs[number][1]
        theirs.setblocking(False)
        try:
            return theirs.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    for pair in made.pairs:
        for sock in pair:
            sock.close()


def test_whoever_has_been_there_longest_goes(door: Door) -> None:
    visitors = RequestLimit(door.refuse, most=3)
    for _ in range(5):
        visitors.comes(door.visitor())
    assert len(visitors) == 3 and door.refused == 2
    assert [door.gone(number) for number in range(5)] == [True, True, False, False, False]


def test_time_is_up(door: Door) -> None:
    visitors = RequestLimit(door.refuse, seconds=0.0)
    visitors.comes(door.visitor())
    visitors.tend()
    assert len(visitors) == 0 and door.refused == 1 and door.gone(0)


def test_there_is_time_for_a_request(door: Door) -> None:
    visitors = RequestLimit(door.refuse)
    visitors.comes(door.visitor())
    visitors.tend()
    assert len(visitors) == 1 and door.refused == 0 and not door.gone(0)


def test_who_has_left_is_not_sent_away(door: Door) -> None:
    visitors = RequestLimit(door.refuse, most=1)
    first = door.visitor()
    visitors.comes(first)
    visitors.leaves(first)
    first.close()
    visitors.comes(door.visitor())
    assert len(visitors) == 1 and door.refused == 0
    visitors.leaves(first)  # once more: nothing


def test_one_that_is_closed_already_can_be_sent_away(door: Door) -> None:
    visitors = RequestLimit(door.refuse, most=1)
    first = door.visitor()
    visitors.comes(first)
    first.close()
    visitors.comes(door.visitor())
    assert door.refused == 1

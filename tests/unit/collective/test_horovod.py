"""What gbactl says where Horovod is missing or half installed."""

from __future__ import annotations

import socket
import sys
import types
from collections.abc import Iterator

import pytest

from gbactl.collective.horovod import RequestLimit, import_horovod
from gbactl.errors import MissingDependencyError


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An installed Horovod whose torch part is an empty module: what a failed build leaves."""
    for name in [name for name in sys.modules if name.startswith("horovod")]:
        monkeypatch.delitem(sys.modules, name)
    package, part = types.ModuleType("horovod"), types.ModuleType("horovod.torch")
    package.torch = part  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", part)
    return part


def test_a_horovod_without_its_library_is_as_good_as_none(horovod: types.ModuleType) -> None:
    with pytest.raises(MissingDependencyError, match=r"compiled part is missing.*make install.*=gloo"):
        import_horovod()


def test_a_complete_one_is_returned(horovod: types.ModuleType) -> None:
    horovod.init = lambda: None  # type: ignore[attr-defined]
    assert import_horovod() is horovod


def test_the_sentence_is_one_line_whatever_the_import_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    with pytest.raises(MissingDependencyError) as caught:
        import_horovod()
    assert "\n" not in str(caught.value)
    assert "python -m gbactl.install.horovod" in str(caught.value)


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
        visitors.register(door.visitor())
    assert len(visitors._deadlines) == 3 and door.refused == 2
    assert [door.gone(number) for number in range(5)] == [True, True, False, False, False]


def test_time_is_up(door: Door) -> None:
    visitors = RequestLimit(door.refuse, seconds=0.0)
    visitors.register(door.visitor())
    visitors.close_overdue()
    assert len(visitors._deadlines) == 0 and door.refused == 1 and door.gone(0)


def test_there_is_time_for_a_request(door: Door) -> None:
    visitors = RequestLimit(door.refuse)
    visitors.register(door.visitor())
    visitors.close_overdue()
    assert len(visitors._deadlines) == 1 and door.refused == 0 and not door.gone(0)


def test_who_has_left_is_not_sent_away(door: Door) -> None:
    visitors = RequestLimit(door.refuse, most=1)
    first = door.visitor()
    visitors.register(first)
    visitors.unregister(first)
    first.close()
    visitors.register(door.visitor())
    assert len(visitors._deadlines) == 1 and door.refused == 0
    visitors.unregister(first)  # once more: nothing


def test_one_that_is_closed_already_can_be_sent_away(door: Door) -> None:
    visitors = RequestLimit(door.refuse, most=1)
    first = door.visitor()
    visitors.register(first)
    first.close()
    visitors.register(door.visitor())
    assert door.refused == 1

"""The relay that stands for a long wire: frames wait, keep their order, are lost and dropped, and are counted."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.relay import Relay, compiled

Wires = Callable[..., tuple[socket.socket, socket.socket, Relay]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("relay")
    compiled(made)
    return made


@pytest.fixture
def wires(folder: Path) -> Iterator[Wires]:
    """Two hosts' ends of wires, and the relay between."""
    with ExitStack() as stack:

        def make(seconds: float, loss: float = 0.0, **options: int) -> tuple[socket.socket, socket.socket, Relay]:
            ends = [end for _ in range(2) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
            for end in ends:
                stack.enter_context(closing(end))
            one, near, far, other = ends
            for end in (near, far):
                end.setblocking(False)
            for end in (one, other):
                end.settimeout(20)
            relay = Relay(folder, (), (near.fileno(), far.fileno()), seconds, loss, **options)
            stack.callback(relay.end)
            return one, other, relay

        yield make


def test_frames_wait_and_keep_their_order_both_ways(wires: Wires) -> None:
    one, other, relay = wires(0.3)
    frames = [bytes([number]) * size for number, size in enumerate((1, 60_000, 2, 3_000, 5))]
    for source, target in ((one, other), (other, one)):
        began = time.monotonic()
        for frame in frames:
            source.send(frame)
        assert [target.recv(1 << 16) for _ in frames] == frames
        assert 0.3 <= time.monotonic() - began < 5
    counts = relay.counts()
    assert (counts["frames"], counts["dropped"], counts["lost"]) == (10, 0, 0)
    assert 0 < counts["late"] < 10 and 0 < counts["cpu_seconds"] < 1


def test_what_does_not_fit_is_dropped_and_counted(wires: Wires) -> None:
    one, other, relay = wires(0.5, room=10)
    for frame in (b"123456", b"12345", b"1234"):
        one.send(frame)
    assert [other.recv(10) for _ in range(2)] == [b"123456", b"1234"]
    assert {name: relay.counts()[name] for name in ("frames", "dropped")} == {"frames": 2, "dropped": 1}


def test_a_share_is_lost_and_counted(wires: Wires) -> None:
    one, other, relay = wires(0.0, 0.25)
    for number in range(200):
        one.send(bytes([number]))
        if number % 5 == 4:  # what a socket holds is little
            until(relay, number + 1)
    lost = int(relay.counts()["lost"])
    came = [other.recv(10)[0] for _ in range(200 - lost)]
    assert 30 <= lost <= 70 and came == sorted(came) and relay.counts()["dropped"] == 0


def until(relay: Relay, frames: int) -> None:
    """So many have come to it, and those that are not lost have gone on."""
    deadline = time.monotonic() + 20
    while (counts := relay.counts())["frames"] + counts["lost"] < frames:
        assert time.monotonic() < deadline

"""What a recorded session gives: nothing. Neither its handshake nor its frames count anywhere again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from gbactl.errors import WireError
from gbactl.wire import auth, frames
from gbactl.wire.messages import DropSlice, TakeBatch
from gbactl.wire.node_connections import SocketHub
from tests.support.hubs import KEY, SECONDS, SERVER, WORKER, Pair, authenticated, dial, noise, while_polling
from tests.support.relays import Relay


@pytest.fixture
def hub() -> Iterator[SocketHub]:
    made = SocketHub(KEY, SERVER, bind="127.0.0.1")
    yield made
    made.close()


def recorded(hub: SocketHub) -> Relay:
    """A session of a worker with this server, both ways: a message and its payload, and an answer."""
    with closing(SocketHub(KEY, WORKER)) as near_hub, closing(Relay(hub.address)) as relay:
        near, _ = while_polling(hub, lambda: near_hub.connect(relay.address, peer=SERVER))
        near.send(DropSlice(1, 2), noise(1000))
        found: list[object] = []
        while not found:
            found = list(hub.poll(SECONDS))
        [far] = hub._channels
        far.send(TakeBatch(3))
        while not near_hub.poll(0.01):
            pass
    while hub._channels:
        hub.poll(SECONDS)
    assert len(relay.sent) > auth.ANSWER.size + 1000 and len(relay.answered) > auth.GREETING.size + auth.PROOF_BYTES
    return relay


def until_refused(hub: SocketHub) -> str:
    while not hub.refused:
        assert all(frame.kind == frames.CLOSED for _, frame in hub.poll(SECONDS))
    [reason] = hub.refused
    return reason


def test_a_connector_played_back(hub: SocketHub) -> None:
    session = recorded(hub)
    with dial(hub) as sock:
        sock.sendall(session.sent)
        assert "does not know this run's key" in until_refused(hub)


def test_a_listener_played_back() -> None:
    with closing(SocketHub(KEY, SERVER, bind="127.0.0.1")) as real:
        session = recorded(real)
    impostor = socket.create_server(("127.0.0.1", 0))

    def play() -> None:
        sock, _ = impostor.accept()
        with sock:
            sock.sendall(session.answered)
            sock.recv(auth.ANSWER.size, socket.MSG_WAITALL)

    thread = threading.Thread(target=play)
    thread.start()
    with closing(SocketHub(KEY, WORKER)) as near, pytest.raises(WireError, match="listener does not know"):
        near.connect("{}:{}".format(*impostor.getsockname()[:2]), peer=SERVER)
    thread.join(SECONDS)
    impostor.close()


def opened(hub: SocketHub) -> tuple[socket.socket, auth.SessionKeys]:
    """Another session of the same worker, whose key nobody who records has: as if somebody could write into it."""
    sock = dial(hub)
    return sock, authenticated(sock, hub)


def test_frames_of_one_session_in_another(hub: SocketHub) -> None:
    """The same key, the same peer, the same place in the sequence."""
    session = recorded(hub)
    sock, _ = opened(hub)
    with sock:
        sock.sendall(session.sent[auth.ANSWER.size :])
        assert "is not authenticated" in until_refused(hub)


def test_a_listeners_frames_sent_back_to_it(hub: SocketHub) -> None:
    sock, _ = opened(hub)
    [far] = hub._channels
    far.send(TakeBatch(1))
    with sock:
        sock.sendall(sock.recv(1000))
        assert "is not authenticated" in until_refused(hub)


def test_a_frame_twice_in_its_own_session(hub: SocketHub) -> None:
    sock, keys = opened(hub)
    frame = frames.encode(keys.from_connector, 6, b"\x91\x01")
    with sock:
        sock.sendall(frame + frame)
        while not hub.refused:
            hub.poll(SECONDS)
    assert "Frame 0 came where 1 was due" in next(iter(hub.refused))


def test_a_frame_once_more_when_the_numbers_begin_anew() -> None:
    """After 2**32 frames the header's number is the same again; the MAC is another."""
    first = frames.encode(KEY, 6, b"\x91\x01", sequence=5)
    again = frames.encode(KEY, 6, b"\x91\x01", sequence=frames.LAP + 5)
    assert first[: frames.HEADER.size] == again[: frames.HEADER.size] and first != again
    assert frames.verify(KEY, again, frames.parse_header(again), frames.LAP + 5) == b"\x91\x01"
    with pytest.raises(WireError, match="not authenticated"):
        frames.verify(KEY, first, frames.parse_header(first), frames.LAP + 5)


@pytest.mark.parametrize("kind", ["tcp", "tls", "shm"])
def test_a_session_goes_on_when_the_numbers_begin_anew(kind: str) -> None:
    pair = Pair(kind)
    for channel in (pair.near, pair.far):
        channel._sent = channel._received = frames.LAP - 2
    for number in range(5):
        for channel, hub in ((pair.near, pair.far_hub), (pair.far, pair.near_hub)):
            channel.send(TakeBatch(number))
            assert pair.receive(hub) == [(TakeBatch(number), b"")]
    pair.close()

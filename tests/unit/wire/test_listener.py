"""Who has not proved anything costs little, for a bounded time, in a bounded number; who has the key gets in."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gbactl.wire import auth, listener
from gbactl.wire.auth import Peer
from gbactl.wire.listener import UNIX, Admission, UnauthenticatedConnection
from gbactl.wire.messages import TakeBatch, unpack
from gbactl.wire.node_connections import SocketHub
from tests.support.hubs import KEY, SECONDS, SERVER, WORKER, dial, while_polling

GAVE_WAY = "A connection gave way to others before it proved itself."
TOO_LATE = "A connection did not prove in time that it knows this run's key."


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def hub(request: pytest.FixtureRequest) -> Iterator[SocketHub]:
    made = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=request.param)
    yield made
    made.close()


def door_of(hub: SocketHub) -> Admission:
    assert hub.admission is not None
    return hub.admission


def gets_in(hub: SocketHub) -> None:
    """Somebody with the key comes, and is heard."""
    with closing(SocketHub(KEY, WORKER, encrypt=hub._tls is not None)) as near:
        channel, found = while_polling(hub, lambda: near.connect(hub.address, peer=SERVER))
        channel.send(TakeBatch(5))
        while not found:
            found = hub.poll(SECONDS)
        assert unpack(found[0][1].kind, found[0][1].descriptor) == TakeBatch(5)
    while hub._channels:
        hub.poll(SECONDS)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are this process's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_strangers(hub: SocketHub) -> None:
    with ExitStack() as stack:
        while_polling(hub, lambda: [stack.enter_context(dial(hub)) for _ in range(1000)])
        while hub.refused[GAVE_WAY] < 1000 - listener.MOST_UNAUTHENTICATED:
            hub.poll(SECONDS)
        assert len(door_of(hub).unauthenticated) == listener.MOST_UNAUTHENTICATED
        assert len(hub._selector.get_map()) == listener.MOST_UNAUTHENTICATED + 1
        gets_in(hub)
    assert sum(hub.refused.values()) >= 1000 - listener.MOST_UNAUTHENTICATED


def somaxconn() -> int:
    """How many connections the kernel lets wait at one door."""
    found = Path("/proc/sys/net/core/somaxconn")
    return int(found.read_text()) if found.exists() else 0


@pytest.mark.usefixtures("many_files")
@pytest.mark.skipif(somaxconn() < 2000, reason="this kernel lets fewer connections wait than the test has")
def test_a_thousand_strangers_before_a_node_that_does_not_answer_yet(hub: SocketHub) -> None:
    """They all wait in the kernel's queue, which has a place left: who has the key is not left out meanwhile."""
    host, port = hub.address.rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(1000):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex((host, int(port)))
        stack.enter_context(socket.create_connection((host, int(port)), timeout=2.0))
        gets_in(hub)


def test_whoever_stood_longest_goes(hub: SocketHub) -> None:
    door_of(hub).most = 3
    with ExitStack() as stack:
        guests = [stack.enter_context(dial(hub)) for _ in range(5)]
        while hub.refused[GAVE_WAY] < 2:
            hub.poll(SECONDS)
        ports = [guest.getsockname()[1] for guest in guests]
        assert [each.sock.getpeername()[1] for each in door_of(hub).unauthenticated] == ports[2:]


def test_time_is_up_for_who_says_nothing(hub: SocketHub) -> None:
    """Nobody but the clock wakes the node."""
    door_of(hub).seconds = 0.05
    with dial(hub):
        while not hub.refused:
            hub.poll(None)
    assert hub.refused == {TOO_LATE: 1} and not door_of(hub).unauthenticated


def test_time_is_up_for_who_writes_slowly() -> None:
    """A byte now and then does not buy time."""
    with closing(SocketHub(KEY, SERVER, bind="127.0.0.1")) as hub, dial(hub) as slow:
        hello = while_polling(hub, lambda: slow.recv(auth.GREETING.size, socket.MSG_WAITALL))[0]
        words = auth.answer(KEY, hello, WORKER, auth.nonce())
        [stranger] = door_of(hub).unauthenticated
        for byte in words[:-1]:
            slow.sendall(bytes([byte]))
            hub.poll(SECONDS)
        assert list(door_of(hub).unauthenticated) == [stranger] and not hub.refused
        stranger.deadline = 0.0
        hub.poll(0)
        assert hub.refused == {TOO_LATE: 1}
        gets_in(hub)


def test_who_has_the_key_and_had_to_give_way_comes_again(hub: SocketHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hear, times = UnauthenticatedConnection.continue_handshake, iter(range(99))

    def twice_in_vain(stranger: UnauthenticatedConnection, key: bytes, me: Peer) -> Any:
        if next(times) < 2:
            raise ConnectionResetError(GAVE_WAY)
        return hear(stranger, key, me)

    monkeypatch.setattr(UnauthenticatedConnection, "continue_handshake", twice_in_vain)
    gets_in(hub)
    assert hub.refused == {GAVE_WAY: 2}


def test_half_open_connections_are_gone_in_time() -> None:
    """The connection is there, its other end is not any more, and nothing says so."""
    with closing(SocketHub(KEY, SERVER, bind="127.0.0.1")) as hub:
        gone = [dial(hub) for _ in range(20)]
        while len(door_of(hub).unauthenticated) < 20:
            hub.poll(SECONDS)
        for each in door_of(hub).unauthenticated:
            each.deadline = 0.0
        hub.poll(0)
        assert hub.refused == {TOO_LATE: 20} and len(hub._selector.get_map()) == 1
        for sock in gone:
            sock.close()


def test_a_process_without_file_descriptors_sleeps_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SocketHub(KEY, SERVER, bind="127.0.0.1")) as hub:
        with monkeypatch.context() as patch, dial(hub):

            def full(_: socket.socket) -> NoReturn:
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(socket.socket, "accept", full)
            hub.poll(SECONDS)
            assert sum(hub.refused.values()) == 1
            assert hub._selector.get_map() == {}, "a listener that cannot accept would wake it without end"
            door_of(hub)._shut_until = 0.0
            hub.poll(0)
        gets_in(hub)


def test_another_user_of_this_host_is_not_let_in() -> None:
    """The name of a Unix socket is no secret."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be somebody else")
    with closing(SocketHub(KEY, SERVER, bind=UNIX)) as hub:
        name = hub.address.removeprefix(UNIX)
        code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}'); print(s.recv(1))"
        try:
            asked = subprocess.Popen(["/usr/bin/env", "python3", "-c", code], user=65534, stdout=subprocess.PIPE)
        except OSError as error:
            pytest.skip(f"nobody else can be started here: {error}")
        while not hub.refused and asked.poll() is None:
            hub.poll(0.1)
        assert asked.communicate(timeout=SECONDS)[0] in (b"b''\n", b"")
        assert hub.refused == {"A connection of another user of this host.": 1}
        gets_in(hub)


def test_reasons_and_lines_of_the_log_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    counted = listener.RejectionCounter()
    for number in range(10_000):
        counted.count(f"reason {number}")
        counted.count("the same again")
    assert len(counted) <= listener.MOST_REASONS + 1
    assert counted.total() == 20_000 and counted["the same again"] == 10_000
    assert len(caplog.records) < listener.MOST_REASONS * 2 + 2 * (listener.MOST_LINES + 14)


def test_a_server_cannot_be_taken_for_another_one() -> None:
    """Somebody between them leads W1 to another server of the same run."""
    with closing(SocketHub(KEY, Peer("server", 1), bind="127.0.0.1")) as hub, closing(SocketHub(KEY, WORKER)) as near:
        with pytest.raises(Exception, match="is not S0"):
            while_polling(hub, lambda: near.connect(hub.address, peer=SERVER))
        while hub._channels:
            hub.poll(SECONDS)


def test_a_hub_may_have_more_connections_than_the_usual_limit_of_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        SocketHub(KEY, SERVER).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, listener.MOST_DESCRIPTORS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

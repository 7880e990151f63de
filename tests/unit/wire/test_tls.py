"""transport.encrypt: nothing that a connection carries is to be read on the wire, and another certificate is none."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from gbactl.engine.agent_connection import write_all
from gbactl.errors import WireError
from gbactl.wire import auth, frames
from gbactl.wire.auth import CHANGED, STRANGE, TlsContexts
from gbactl.wire.listener import UNIX
from gbactl.wire.messages import Event, TakeBatch, unpack
from gbactl.wire.node_connections import AGAIN_SECONDS, SocketHub
from tests.support.hubs import KEY, SECONDS, SERVER, WORKER, dial, noise, refusals, while_polling
from tests.support.relays import Relay

SECRET = b"these bytes are a gradient, or rows"
WORD = "a word in a descriptor"


def next_frames(hub: SocketHub, other: SocketHub | None = None) -> list[frames.Frame]:
    """What comes next at `hub`, while `other` gets rid of what it has to say."""
    found: list[tuple[object, frames.Frame]] = []
    while not found:
        if other is not None:
            assert other.poll(0.01) == []
        found = list(hub.poll(0.01))
    return [frame for _, frame in found]


def exchange(encrypt: bool) -> Relay:
    """A message with a payload each way, past somebody who listens."""
    far_hub = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=encrypt)
    near_hub = SocketHub(KEY, WORKER, encrypt=encrypt)
    relay = Relay(far_hub.address)
    payload = np.frombuffer(SECRET * 5000, np.uint8)
    with closing(relay), closing(far_hub), closing(near_hub):
        near, _ = while_polling(far_hub, lambda: near_hub.connect(relay.address, peer=SERVER))
        [far] = far_hub._channels
        near.send(Event(WORD, {}), payload)
        [frame] = next_frames(far_hub, near_hub)
        assert frame.payload.tobytes() == payload.tobytes()
        far.send(Event(WORD, {}), payload)
        [frame] = next_frames(near_hub, far_hub)
        assert unpack(frame.kind, frame.descriptor) == Event(WORD, {})
    return relay


def test_without_encryption_everything_is_to_be_read() -> None:
    heard = exchange(encrypt=False)
    for way in (heard.sent, heard.answered):
        assert way.count(SECRET) == 5000 and WORD.encode() in way and frames.MAGIC in way


def test_with_encryption_nothing_is_to_be_read() -> None:
    heard = exchange(encrypt=True)
    for way in (heard.sent, heard.answered):
        assert len(way) > 5000 * len(SECRET)
        for readable in (SECRET[:8], WORD.encode()[:8], frames.MAGIC + b"\x01", auth.MAGIC, KEY[:8]):
            assert readable not in way


def test_the_same_message_twice_looks_different() -> None:
    assert exchange(encrypt=True).sent != exchange(encrypt=True).sent


def test_who_has_another_runs_key_is_refused_by_its_certificate() -> None:
    hub, other = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=True), SocketHub(auth.new_key(), WORKER, encrypt=True)
    with closing(hub), closing(other):
        with pytest.raises(WireError, match="does not show this run's certificate"):
            while_polling(hub, lambda: other.connect(hub.address, peer=SERVER))
        assert refusals(hub) == 1


def test_a_listener_with_another_certificate_hears_nothing() -> None:
    """Not even who asks: the connector ends before its own words."""
    impostor = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def pose() -> None:
        sock, _ = impostor.accept()
        wrapped = TlsContexts(auth.new_key()).accept(sock)
        wrapped.settimeout(SECONDS)
        try:
            wrapped.do_handshake()
            heard.append(wrapped.recv(1))
        except (WireError, OSError):
            pass
        wrapped.close()

    thread = threading.Thread(target=pose)
    thread.start()
    hub = SocketHub(KEY, WORKER, encrypt=True)
    with closing(impostor), closing(hub), pytest.raises(WireError, match="does not show this run's certificate"):
        hub.connect("{}:{}".format(*impostor.getsockname()[:2]), peer=SERVER)
    thread.join(SECONDS)
    assert heard == []


def test_who_had_to_give_way_before_it_was_heard_comes_again() -> None:
    """A listener at which too many wait closes the oldest connections."""
    full, heard = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def hang_up() -> None:
        for _ in AGAIN_SECONDS:
            sock, _address = full.accept()
            heard.append(sock.recv(1 << 16))  # all of it: else the end would be a reset
            sock.close()

    threading.Thread(target=hang_up, daemon=True).start()
    hub = SocketHub(KEY, WORKER, encrypt=True)
    with closing(full), closing(hub), pytest.raises(WireError, match="it hangs up"):
        hub.connect("{}:{}".format(*full.getsockname()[:2]), peer=SERVER)
    assert len(heard) == len(AGAIN_SECONDS)


@pytest.fixture
def hub() -> Iterator[SocketHub]:
    made = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=True)
    yield made
    made.close()


def test_who_shows_no_certificate_is_refused(hub: SocketHub) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def go() -> bytes:
        with context.wrap_socket(dial(hub)) as sock:
            return sock.recv(1)

    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
        while_polling(hub, go)
    assert refusals(hub) == 1 and dict(hub.refused) == {STRANGE: 1}


def test_older_protocols_are_refused(hub: SocketHub) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        while_polling(hub, lambda: context.wrap_socket(dial(hub)))
    assert refusals(hub) == 1


def test_who_speaks_plainly_is_refused(hub: SocketHub) -> None:
    with dial(hub) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while not hub.refused:
            hub.poll(SECONDS)
    assert dict(hub.refused) == {STRANGE: 1}


def test_a_certificate_alone_does_not_open_the_door(hub: SocketHub) -> None:
    """What is inside is proved as it is without encryption."""

    def go() -> bytes:
        with TlsContexts(KEY).dial(dial(hub)) as sock:
            hello = b"".join(sock.recv(1) for _ in range(auth.GREETING.size))
            sock.sendall(auth.answer(auth.new_key(), hello, WORKER, auth.nonce()))
            return sock.recv(1)

    assert while_polling(hub, go)[0] == b""
    assert dict(hub.refused) == {"A connection does not know this run's key.": 1}


def test_a_byte_that_is_changed_on_its_way_ends_the_connection() -> None:
    far_hub = SocketHub(KEY, SERVER, bind="127.0.0.1", encrypt=True)
    near_hub = SocketHub(KEY, WORKER, encrypt=True)
    quiet = threading.Event()

    def change(data: bytes) -> bytes:
        return bytes([*data[:-9], data[-9] ^ 1, *data[-8:]]) if quiet.is_set() else data

    relay = Relay(far_hub.address, change)
    with closing(relay), closing(far_hub), closing(near_hub):
        near, _ = while_polling(far_hub, lambda: near_hub.connect(relay.address, peer=SERVER))
        near.send(TakeBatch(1))
        assert [unpack(frame.kind, frame.descriptor) for frame in next_frames(far_hub)] == [TakeBatch(1)]
        quiet.set()
        near.send(TakeBatch(2))
        assert [frame.kind for frame in next_frames(far_hub)] == [frames.CLOSED]
        assert dict(far_hub.refused) == {f"W1: {CHANGED}": 1}


def test_a_unix_socket_stays_as_it_is() -> None:
    """Nothing on it leaves the host."""
    hub, near = SocketHub(KEY, SERVER, bind=UNIX, encrypt=True), SocketHub(KEY, WORKER, encrypt=True)
    with closing(hub), closing(near):
        channel, _ = while_polling(hub, lambda: near.connect(hub.address, peer=SERVER))
        assert not isinstance(channel.sock, ssl.SSLSocket)


def test_the_same_key_makes_the_same_certificate() -> None:
    assert auth._certificate(KEY) == auth._certificate(KEY)
    assert auth._certificate(KEY) != auth._certificate(auth.new_key())


def test_a_relay_carries_bytes_both_ways_at_once() -> None:
    contexts, ends = TlsContexts(KEY), socket.socketpair()
    listening = contexts.accept(ends[0])
    with ThreadPoolExecutor() as pool:
        greeted = pool.submit(listening.do_handshake)
        dialled = contexts.dial(ends[1])
        greeted.result(SECONDS)
        (source, into), (far_source, far_into), (out, sink), (far_out, low) = (os.pipe() for _ in range(4))
        far_sink = fcntl.fcntl(low, fcntl.F_DUPFD, 1100)  # more than select.select can take
        os.close(low)
        relays = [(listening, source, sink), (dialled, far_source, far_sink)]
        relaying = [pool.submit(auth.relay, *each) for each in relays]
        sent = noise(3 << 20).tobytes()
        with open(out, "rb") as near, open(far_out, "rb") as far:
            writing = [pool.submit(write_all, end, sent) for end in (into, far_into)]
            read = [pool.submit(file.read, len(sent)) for file in (near, far)]
            assert all(each.result(SECONDS) == sent for each in read)
            assert [each.result(SECONDS) for each in writing] == [None, None]
            os.close(into)
            assert near.read() == far.read() == b"", "the end of one pipe is the end of all"
        assert [each.result(SECONDS) for each in relaying] == [None, None]
    for end in (source, far_source, far_into):
        os.close(end)

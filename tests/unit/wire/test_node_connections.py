"""What only sockets have: strangers, malformed frames, slow and half-open handshakes. The hub lives on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from mmap import mmap
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.errors import WireError
from gbactl.wire import auth, frames, shared_memory
from gbactl.wire.messages import DropSlice, TakeBatch, kind_of, pack, unpack
from gbactl.wire.node_connections import SocketHub
from gbactl.wire.socket_channel import ATTACH, ATTACHED
from tests.support.hubs import KEY, SECONDS, SERVER, SLOT, WORKER, Pair, authenticated, dial, noise, while_polling


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair("tcp")
    yield made
    made.close()


@pytest.fixture
def shared() -> Iterator[Pair]:
    made = Pair("shm")
    yield made
    made.close()


class Stranger:
    """A raw connection to a hub's listener, with this run's key or without."""

    def __init__(self, hub: SocketHub, authenticates: bool = False) -> None:
        self.hub, self.sock, self.sent = hub, dial(hub), 0
        self.key = authenticated(self.sock, hub).from_connector if authenticates else b""

    def frame(self, message: Any, payload_bytes: int = 0) -> bytes:
        """The next frame of this connection."""
        self.sent += 1
        return frames.encode(self.key, kind_of(message), pack(message), payload_bytes, sequence=self.sent - 1)

    def closed(self) -> bool:
        """Whether the hub hangs up."""

        def read() -> bool:
            try:
                while self.sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            return True

        return bool(while_polling(self.hub, read)[0])


@pytest.fixture
def peer(pair: Pair) -> Stranger:
    """A stranger that has this run's key."""
    return Stranger(pair.far_hub, authenticates=True)


def still_serves(pair: Pair) -> None:
    """An old connection works, and a new one too."""
    pair.near.send(TakeBatch(7))
    assert pair.receive(pair.far_hub) == [(TakeBatch(7), b"")]
    third = SocketHub(KEY, auth.Peer("worker", 2))
    channel, _ = while_polling(pair.far_hub, lambda: third.connect(pair.far_hub.address, peer=SERVER))
    channel.send(TakeBatch(8))
    [(_, frame)] = pair.far_hub.poll(SECONDS)
    assert unpack(frame.kind, frame.descriptor) == TakeBatch(8)
    third.close()
    [(_, frame)] = pair.far_hub.poll(SECONDS)
    assert frame.kind == frames.CLOSED


def test_a_stranger_without_the_key_is_turned_away_and_counted(pair: Pair) -> None:
    stranger = Stranger(pair.far_hub)
    stranger.sock.sendall(b"x" * auth.ANSWER.size)
    assert stranger.closed()
    assert pair.far_hub.refused == {"A connection does not know this run's key.": 1}
    still_serves(pair)


def test_one_of_another_run_is_told_that_the_connection_closed(pair: Pair) -> None:
    other = SocketHub(auth.new_key(), WORKER)
    with pytest.raises(WireError, match=r"No gbactl process answers.*of the same run"):
        while_polling(pair.far_hub, lambda: other.connect(pair.far_hub.address, peer=SERVER))
    other.close()
    still_serves(pair)


def test_a_port_scan_leaves_no_trace(pair: Pair) -> None:
    for _ in range(3):
        Stranger(pair.far_hub).sock.close()
    deadline = time.monotonic() + SECONDS
    while sum(pair.far_hub.refused.values()) < 3 and time.monotonic() < deadline:
        pair.far_hub.poll(0.05)
    assert sum(pair.far_hub.refused.values()) == 3
    still_serves(pair)


def test_a_slow_handshake_blocks_nobody(pair: Pair) -> None:
    slow = Stranger(pair.far_hub)
    hello = while_polling(pair.far_hub, lambda: slow.sock.recv(auth.GREETING.size, socket.MSG_WAITALL))[0]
    mine = auth.nonce()
    words = auth.answer(KEY, hello, auth.Peer("worker", 9), mine)
    for byte in words[:-1]:
        slow.sock.sendall(bytes([byte]))
        assert pair.far_hub.poll(0.01) == []
    still_serves(pair)
    slow.sock.sendall(words[-1:])
    proof = while_polling(pair.far_hub, lambda: slow.sock.recv(auth.PROOF_BYTES, socket.MSG_WAITALL))[0]
    keys = auth.confirm(KEY, hello, mine, proof, SERVER)
    slow.sock.sendall(frames.encode(keys.from_connector, kind_of(TakeBatch(9)), pack(TakeBatch(9))))
    [(channel, _)] = pair.far_hub.poll(SECONDS)
    assert str(channel.peer) == "W9"


def one(
    kind: int = kind_of(TakeBatch(0)), descriptor: bytes = pack(TakeBatch(0)), **more: Any
) -> Callable[[bytes], bytes]:
    return lambda key: frames.encode(key, kind, descriptor, **more)


def changed(index: int, value: int) -> Callable[[bytes], bytes]:
    def make(key: bytes) -> bytes:
        data = bytearray(one()(key))
        data[index] ^= value
        return bytes(data)

    return make


MALFORMED = {
    "magic": (changed(0, 1), "does not speak this protocol"),
    "version": (changed(4, 1), "protocol version"),
    "kind": (changed(5, 8), "not authenticated"),
    "mac": (changed(30, 1), "not authenticated"),
    "descriptor": (changed(-1, 1), "not authenticated"),
    "sequence": (one(sequence=1), "Frame 1 came where 0 was due"),
    "another key": (lambda _: one()(KEY), "not authenticated"),
    "huge descriptor": (
        lambda _: frames.HEADER.pack(frames.MAGIC, 1, 6, 0, 0, 0, (1 << 32) - 1, 0) + bytes(16),
        "more than allowed",
    ),
    "huge payload": (one(payload_bytes=(1 << 31) + 1), "more than allowed"),
    "a slot without shared memory": (one(payload_bytes=5, slot=0), "outside the shared memory"),
    "an answer to no offer": (one(ATTACHED, msgpack.packb(True)), "offer that was not made"),
    "an unreadable offer": (one(ATTACH, b"\xc1"), "cannot be read"),
    "an offer of something else": (one(ATTACH, msgpack.packb(["../etc/passwd", 1, 1])), "not allowed"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_frame_costs_its_sender_the_connection(pair: Pair, peer: Stranger, case: str) -> None:
    make, reason = MALFORMED[case]
    peer.sock.sendall(make(peer.key))
    [(channel, frame)] = pair.far_hub.poll(SECONDS)
    assert frame.kind == frames.CLOSED and channel.closed
    [refusal] = pair.far_hub.refused
    assert refusal.startswith("W1: ") and reason in refusal
    assert peer.closed()
    still_serves(pair)


def test_good_frames_before_a_malformed_one_still_count(pair: Pair, peer: Stranger) -> None:
    peer.sock.sendall(peer.frame(TakeBatch(3)) + b"junk" * 20)
    found: list[tuple[Any, frames.Frame]] = []
    while not found or found[-1][1].kind != frames.CLOSED:
        found += pair.far_hub.poll(SECONDS)
    assert [frame.kind for _, frame in found] == [kind_of(TakeBatch(3)), frames.CLOSED]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=frames.PREFIX, max_size=400))
def test_random_bytes_after_the_handshake(pair: Pair, junk: bytes) -> None:
    stranger = Stranger(pair.far_hub, authenticates=True)
    stranger.sock.sendall(junk)
    stranger.sock.close()
    [(_, frame)] = pair.far_hub.poll(SECONDS)
    assert frame.kind == frames.CLOSED


def test_frames_cut_anywhere_by_the_network_arrive_whole(pair: Pair, peer: Stranger) -> None:
    payload = noise(300).tobytes()
    data = b"".join(peer.frame(DropSlice(0, n), len(payload)) + payload for n in range(3))
    found: list[tuple[Any, frames.Frame]] = []
    for low in range(0, len(data), 7):
        peer.sock.sendall(data[low : low + 7])
        found += pair.far_hub.poll(0.001)
    while len(found) < 3:
        found += pair.far_hub.poll(SECONDS)
    assert [unpack(f.kind, f.descriptor) for _, f in found] == [DropSlice(0, n) for n in range(3)]
    assert all(f.payload.tobytes() == payload for _, f in found)


def trickle(pair: Pair, stranger: Stranger, data: bytes) -> list[tuple[Any, frames.Frame]]:
    found: list[tuple[Any, frames.Frame]] = []
    for low in range(0, len(data), 4096):
        stranger.sock.sendall(data[low : low + 4096])
        found += pair.far_hub.poll(0.002)
    return found


def test_a_payload_that_trickles_in_wakes_nobody_for_every_piece(
    pair: Pair, peer: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, plain, woken = noise(700_000).tobytes(), pair.far_hub._selector.select, [0]

    def select(timeout: float | None) -> Any:
        events = plain(timeout)
        woken[0] += bool(events)
        return events

    monkeypatch.setattr(pair.far_hub._selector, "select", select)
    for n in range(2):
        data = peer.frame(DropSlice(0, n), len(payload)) + payload
        found = trickle(pair, peer, data) or pair.far_hub.poll(SECONDS)
        assert [frame.payload.tobytes() for _, frame in found] == [payload]
        peer.sock.sendall(peer.frame(TakeBatch(n)))
        [(_, frame)] = pair.far_hub.poll(SECONDS)
        assert unpack(frame.kind, frame.descriptor) == TakeBatch(n)
    assert woken[0] < 20  # of 342 pieces


def test_who_goes_in_the_middle_of_a_payload_is_missed_at_once(pair: Pair, peer: Stranger) -> None:
    assert trickle(pair, peer, peer.frame(DropSlice(0, 0), 700_000) + bytes(100_000)) == []
    peer.sock.close()
    began = time.monotonic()
    [(_, frame)] = pair.far_hub.poll(SECONDS)
    assert frame.kind == frames.CLOSED and time.monotonic() - began < SECONDS / 3


def test_a_channel_that_its_own_node_closes_leaves_the_hub_in_order(pair: Pair) -> None:
    """A node refuses a message and hangs up; the next connection gets the same file descriptor."""
    for _ in range(5):
        stranger = Stranger(pair.far_hub, authenticates=True)
        stranger.sock.sendall(stranger.frame(TakeBatch(3)))
        [(channel, _)] = pair.far_hub.poll(SECONDS)
        channel.close()
        assert stranger.closed()
    still_serves(pair)


def test_large_payloads_lie_in_shared_memory_and_small_ones_do_not(shared: Pair) -> None:
    assert shared.near._send_slots and shared.far._send_slots
    big, small = shared.near.reserve(SLOT), shared.near.reserve(100)
    shared.near.send(DropSlice(0, 0), big)
    shared.near.send(DropSlice(0, 1), small)
    [(_, first), (_, second)] = shared.arrivals(shared.far_hub, 2)
    big[:] = 77
    small[:] = 77
    assert first.payload[0] == 77, "the receiver sees the sender's memory"
    assert second.payload.tobytes() != bytes([77]) * 100


def test_when_the_slots_run_out_payloads_take_the_wire_and_slots_come_back(shared: Pair) -> None:
    slots = shared_memory.SLOTS[0]
    views = [shared.near.reserve(SLOT) for _ in range(slots + 2)]
    addresses = {view.ctypes.data for view in views}
    assert len(addresses) == slots + 2
    for number, view in enumerate(views):
        view[:] = number
        shared.near.send(DropSlice(0, number), view)
    held = [frame for _, frame in shared.arrivals(shared.far_hub, slots + 2)]
    for number, frame in enumerate(held):
        assert frame.payload.tobytes() == bytes([number]) * SLOT
        frame.release()
    shared.far.send(TakeBatch(0))  # carries the releases
    shared.receive(shared.near_hub)
    again = {shared.near.reserve(SLOT).ctypes.data for _ in range(slots)}
    assert len(again & addresses) >= slots


def test_a_peer_on_another_host_gets_everything_by_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    offered, create = list[str](), shared_memory.create

    def recorded(outgoing: int, incoming: int) -> tuple[shared_memory.SegmentLayout, mmap]:
        layout, memory = create(outgoing, incoming)
        offered.append(layout.name)
        return layout, memory

    monkeypatch.setattr(shared_memory, "create", recorded)
    monkeypatch.setattr(shared_memory, "attach", lambda layout: None)
    pair = Pair("shm")
    assert not pair.near._send_slots and not pair.far._send_slots
    assert offered and offered[0] not in Path("/proc/self/maps").read_text(), "a segment that nobody uses is freed"
    out = pair.near.reserve(SLOT)
    out[:] = 5
    pair.near.send(DropSlice(0, 0), out)
    assert pair.receive(pair.far_hub) == [(DropSlice(0, 0), bytes([5]) * SLOT)]
    pair.close()


@pytest.mark.parametrize("dies", [True, False])
def test_an_offer_of_shared_memory_that_nobody_answers_fails_while_others_talk(pair: Pair, dies: bool) -> None:
    other, over = auth.Peer("server", 1), threading.Event()

    def talk() -> None:
        for number in range(200):
            if over.wait(0.05):
                return
            pair.far.send(TakeBatch(number))

    with closing(SocketHub(KEY, other, bind="127.0.0.1")) as silent:

        def admit() -> None:
            while not silent._channels:
                silent.poll(0.01)
            if dies:
                next(iter(silent._channels)).close()

        threads = [threading.Thread(target=each) for each in (talk, admit)]
        for thread in threads:
            thread.start()
        pair.near_hub.patience = 1.0
        began = time.monotonic()
        with pytest.raises(WireError, match="does not answer the offer"):
            pair.near_hub.connect(silent.address, (SLOT, SLOT), other)
        assert time.monotonic() - began < 5.0
        over.set()
        for thread in threads:
            thread.join(SECONDS)


def test_a_malformed_slot_number_after_attaching(shared: Pair) -> None:
    shared.near._send_raw(kind_of(TakeBatch(0)), pack(TakeBatch(0)), None)
    shared.receive(shared.far_hub)
    bad = frames.encode(
        shared.near._send_key, kind_of(TakeBatch(0)), pack(TakeBatch(0)), SLOT, sequence=shared.near._sent, slot=99
    )
    shared.near.sock.sendall(bad)
    [(_, frame)] = shared.far_hub.poll(SECONDS)
    assert frame.kind == frames.CLOSED
    assert "outside the shared memory" in next(iter(shared.far_hub.refused))


def test_a_connection_whose_other_end_vanished_is_found_out(pair: Pair) -> None:
    """The kernel asks, and gives up after a minute; nothing else would tell of a host that lost its power."""
    for channel in (pair.near, pair.far):
        asks = [channel.sock.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT)]
        pause = channel.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert asks[0] + asks[1] * pause <= 60
        assert channel.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60000
        assert channel.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_run_says_how_long_a_silence_is_too_long(pair: Pair) -> None:
    with closing(SocketHub(KEY, auth.Peer("worker", 2), silence=8.0)) as hub:
        channel, _ = while_polling(pair.far_hub, lambda: hub.connect(pair.far_hub.address, peer=SERVER))
        names = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
        assert [channel.sock.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [8000, 2, 2]


def test_the_address_is_loopback() -> None:
    hub = SocketHub(KEY, SERVER, bind="127.0.0.1")
    assert hub.address.startswith("127.0.0.1:")
    hub.close()

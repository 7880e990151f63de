"""A peer that stops reading, and one that never stops writing: bounded memory, and the others have their turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gbactl.wire import frames, socket_channel
from gbactl.wire.auth import Peer
from gbactl.wire.messages import DropSlice, TakeBatch, unpack
from gbactl.wire.node_connections import SocketHub
from tests.support.hubs import KEY, SECONDS, SERVER, Pair, noise, while_polling

KILO, MEGA = 1 << 10, 1 << 20
MOST = 4 * MEGA


@pytest.fixture(params=["tcp", "tls"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    yield made
    made.close()


def fill(pair: Pair, messages: int = 400) -> int:
    """Send without anybody reading until that is over; returns how much waited at most."""
    most = 0
    for number in range(messages):
        pair.far.send(DropSlice(number, 0), noise(300 * KILO))
        most = max(most, pair.far_hub.queued.bytes)
        if pair.far.given_up:
            return most
    raise AssertionError("it was never given up")


def test_who_does_not_read_is_given_up_and_counted(pair: Pair) -> None:
    pair.far_hub.queued.most = MOST
    assert MOST < fill(pair) < MOST + MEGA
    assert pair.far_hub.queued.bytes == 0 and not pair.far._out
    pair.far.send(TakeBatch(1))  # into the void: no error
    [(channel, frame)] = pair.far_hub.poll(SECONDS)
    assert channel is pair.far and frame.kind == frames.CLOSED and pair.far.closed
    assert dict(pair.far_hub.refused) == {"W1 does not read what it is sent.": 1}
    assert not pair.far_hub._channels


def test_what_waits_for_all_of_them_is_bounded_too(pair: Pair) -> None:
    pair.far_hub.queued.most_in_all = MOST
    assert MOST < fill(pair) < MOST + MEGA
    assert pair.far_hub.queued.bytes == 0


def test_others_do_not_notice(pair: Pair) -> None:
    with_key = SocketHub(KEY, Peer("worker", 2), encrypt=pair.far_hub._tls is not None)
    other, _ = while_polling(pair.far_hub, lambda: with_key.connect(pair.far_hub.address, peer=SERVER))
    pair.far_hub.queued.most = MOST
    fill(pair)
    other.send(TakeBatch(9))
    kinds: list[int] = []
    while len(kinds) < 2:
        kinds += [frame.kind for _, frame in pair.far_hub.poll(SECONDS)]
    assert sorted(kinds)[0] == frames.CLOSED and kinds.count(frames.CLOSED) == 1
    with_key.close()


def test_who_reads_late_is_no_such_peer(pair: Pair) -> None:
    for number in range(20):
        pair.far.send(DropSlice(number, 0), noise(300 * KILO))
    assert pair.far_hub.queued.bytes > 0
    assert [message for message, _ in pair.receive(pair.near_hub, 20)] == [DropSlice(number, 0) for number in range(20)]
    assert pair.far_hub.queued.bytes == 0


def test_a_message_may_be_larger_than_what_may_wait(pair: Pair) -> None:
    pair.far_hub.queued.most = MEGA
    pair.far.send(DropSlice(0, 0), noise(20 * MEGA))
    assert pair.receive(pair.near_hub) == [(DropSlice(0, 0), noise(20 * MEGA).tobytes())]


def test_who_never_stops_writing_leaves_others_their_turn(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_channel, "AT_ONCE", MEGA)
    for number in range(60):
        pair.near.send(DropSlice(number, 0), noise(200 * KILO))
    found: list[frames.Frame] = []
    while len(found) < 60:
        now = [frame for _, frame in pair.far_hub.poll(0.01)]
        assert sum(frame.payload.size for frame in now) <= MEGA + socket_channel.RECEIVE_BYTES + 200 * KILO
        found += now
        assert pair.near_hub.poll(0) == []
    assert [unpack(frame.kind, frame.descriptor) for frame in found] == [DropSlice(number, 0) for number in range(60)]


def test_buffers_that_are_kept_are_bounded() -> None:
    from gbactl.wire import channel_interface as channel

    pool = channel.BufferPool()
    for _ in range(3):
        pool.give(channel.np.empty(channel.MOST_KEPT // 2, channel.np.uint8))
    assert len(pool.free) == 2

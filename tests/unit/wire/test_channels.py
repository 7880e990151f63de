"""The channel contract, the same for queues in memory, TCP plain and encrypted, and both with shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gbactl.errors import WireError
from gbactl.wire import frames
from gbactl.wire.messages import DropSlice, Event, Push, TakeBatch, unpack
from tests.support.hubs import SERVER, SLOT, WORKER, Pair, noise
from tests.support.in_memory import MemoryHub


@pytest.fixture(params=["memory", "tcp", "shm", "tls", "tls+shm"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    yield made
    made.close()


def test_each_end_knows_who_came(pair: Pair) -> None:
    assert str(pair.far.peer) == "W1"


@pytest.mark.parametrize("nbytes", [0, 1, 4096, SLOT // 2, SLOT, SLOT + 1, 3_000_001])
def test_payloads_of_every_size_arrive_whole(pair: Pair, nbytes: int) -> None:
    out = pair.near.reserve(nbytes)
    assert out.dtype == np.uint8 and out.shape == (nbytes,)
    out[:] = noise(nbytes)
    pair.near.send(Push(1, 2, 3, 4, 0.5, 0.1, 1.0, 0, 0), out)
    assert pair.receive(pair.far_hub) == [(Push(1, 2, 3, 4, 0.5, 0.1, 1.0, 0, 0), noise(nbytes).tobytes())]


@pytest.mark.parametrize("nbytes", [10, 200_000, 3_000_001])
def test_a_payload_that_was_not_reserved_arrives_too(pair: Pair, nbytes: int) -> None:
    pair.far.send(DropSlice(1, 2), noise(nbytes))
    assert pair.receive(pair.near_hub) == [(DropSlice(1, 2), noise(nbytes).tobytes())]


def test_the_phases_of_a_run_with_thousands_of_evaluations_arrive(pair: Pair) -> None:
    phase = {"day": "day 3", "mode": "gba", "samples": 10**6, "eps": 12345.6, "auc": 0.8, "staleness_histogram": {}}
    told = Event("phase", {"phases": [{**phase, "first_sample": number} for number in range(20_000)]})
    pair.far.send(told)
    assert pair.receive(pair.near_hub) == [(told, b"")]


def test_messages_arrive_in_order_with_or_without_payload(pair: Pair) -> None:
    sent = []
    for number in range(60):
        nbytes = (0, 5, 100_000, 300_000)[number % 4]
        payload = noise(nbytes, number) if nbytes else None
        pair.near.send(DropSlice(number, 0), payload)
        sent.append((DropSlice(number, 0), b"" if payload is None else payload.tobytes()))
    assert pair.receive(pair.far_hub, 60) == sent


def test_frames_may_be_kept_while_others_come(pair: Pair) -> None:
    """More payloads than there are slots, none released: the later ones come another way."""
    for number in range(12):
        out = pair.near.reserve(SLOT)
        out[:] = noise(SLOT, number)
        pair.near.send(Push(0, number, 0, 0, 0.5, 0.1, 1.0, 0, 0), out)
    held = [frame for _, frame in pair.arrivals(pair.far_hub, 12)]
    for number, frame in enumerate(held):
        assert frame.payload.tobytes() == noise(SLOT, number).tobytes()


def test_memory_is_used_again_after_release(pair: Pair) -> None:
    for number in range(40):
        out = pair.near.reserve(SLOT)
        out[:] = number
        pair.near.send(DropSlice(0, number), out)
        [(_, frame)] = pair.arrivals(pair.far_hub, 1)
        assert frame.payload.tobytes() == bytes([number]) * SLOT
        frame.release()
        frame.release()
        pair.far.send(DropSlice(1, number))
        assert pair.receive(pair.near_hub) == [(DropSlice(1, number), b"")]


def test_both_directions_at_once(pair: Pair) -> None:
    """Neither side reads until both have written more than any buffer holds: nobody blocks."""
    for number in range(8):
        pair.near.send(DropSlice(number, 1), noise(3_000_000, number))
        pair.far.send(DropSlice(number, 2), noise(3_000_000, number))
    here, there = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
    while len(here) < 8 or len(there) < 8:
        here += [_numbered(frame) for _, frame in pair.near_hub.poll(0.01)]
        there += [_numbered(frame) for _, frame in pair.far_hub.poll(0.01)]
    assert here == there == [(number, noise(3_000_000, number).tobytes()) for number in range(8)]


def _numbered(frame: frames.Frame) -> tuple[int, bytes]:
    number, payload = unpack(frame.kind, frame.descriptor).phase, frame.payload.tobytes()
    frame.release()
    return number, payload


def test_a_closed_channel_is_told_to_the_other_end_once(pair: Pair) -> None:
    pair.near.close()
    [(channel, frame)] = pair.arrivals(pair.far_hub, 1)
    assert channel is pair.far and frame.kind == frames.CLOSED
    assert pair.far_hub.poll(0.05) == []
    pair.far.send(TakeBatch(1))  # into the void: no error


def test_a_message_sent_before_closing_arrives_before_the_loss(pair: Pair) -> None:
    pair.near.send(TakeBatch(5))
    pair.near_hub.close()
    kinds = [frame.kind for _, frame in _until_closed(pair)]
    assert len(kinds) == 2 and kinds[-1] == frames.CLOSED


def _until_closed(pair: Pair) -> list[tuple[object, frames.Frame]]:
    found: list[tuple[object, frames.Frame]] = []
    while not found or found[-1][1].kind != frames.CLOSED:
        found += pair.far_hub.poll(5)
    return found


def test_nobody_at_the_address(pair: Pair) -> None:
    pair.far_hub.close()
    with pytest.raises(WireError, match="answers at"):
        pair.near_hub.connect(pair.far_hub.address)


def test_poll_without_anything_to_tell(pair: Pair) -> None:
    assert pair.near_hub.poll(0) == []
    assert pair.near_hub.poll(0.01) == []


class DyingNetwork(dict[str, MemoryHub]):
    """Every node dies when another has found it."""

    def get(self, address: str, default: Any = None) -> Any:
        found = super().get(address, default)
        if found is not None and not found._closed:
            found.close()
        return found


def test_in_memory_too_a_connection_to_a_node_that_dies_meanwhile_is_lost() -> None:
    network = DyingNetwork()
    near, far = MemoryHub(network, WORKER), MemoryHub(network, SERVER)
    channel = near.connect(far.address, peer=SERVER)
    [(lost, frame)] = near.poll(0)
    assert lost is channel and frame.kind == frames.CLOSED

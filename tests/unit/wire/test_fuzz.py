"""A part of what `make fuzz` does, and that it can find something."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gbactl.coordinator.message_loop import Coordinator
from gbactl.errors import WireError
from gbactl.wire import frames, messages
from gbactl.wire.channel_interface import Channel
from tests.fuzz import wire
from tests.fuzz.coordinator import Intruder, Spoken


def test_twenty_thousand_mutated_frames() -> None:
    ends = wire.run(20_000, seed=1)
    assert ends.total() == 20_000
    for target in wire.TARGETS:
        assert ends[target, "refused"] > 0 and ends[target, "read"] > 0, target
    assert ends["with the key", "no message"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_mutated_frames() -> None:
    assert wire.run(1_000_000, seed=2).total() == 1_000_000


def test_a_mac_that_is_not_looked_at_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames.hmac, "compare_digest", lambda *_: True)
    with pytest.raises(wire.Finding, match="accepted"):
        wire.run(20_000)


def test_an_exception_of_another_kind_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(kind: int, descriptor: bytes) -> Any:
        return messages.MESSAGES[kind - 1](*messages.msgspec.msgpack.decode(descriptor))

    monkeypatch.setattr(messages, "unpack", careless)
    with pytest.raises(wire.Finding, match="with the key"):
        wire.run(20_000)


def test_what_breaks_a_coordinator_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Coordinator, _: Channel, message: messages.GradientNorms, __: frames.Frame) -> None:
        self.context.norms.add("gba", "S0", message, 1)

    monkeypatch.setattr(Coordinator, "_on_norms", careless)
    monkeypatch.setattr(Intruder, "_likely", lambda *_: messages.GradientNorms(0, -1.0, []))
    spoken = Spoken()
    with pytest.raises(ValueError, match="math domain"):
        for seed in range(20):
            spoken(random.Random(seed))


def test_the_same_number_makes_the_same_bytes() -> None:
    made = [wire.odd_frame(wire.KEY, random.Random(7)) for _ in range(2)]
    assert made[0] == made[1]
    assert wire.once(3, 11) == wire.once(3, 11)


def test_a_claim_for_which_there_is_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(wire.socket_channel.BufferPool, "take", none_left)
    head = frames.encode(wire.KEY, 6, messages.pack(messages.TakeBatch(1)), frames.MAX_PAYLOAD)
    assert wire.read(head + b"x" * 10, random.Random(0)) == ([], "refused")
    with pytest.raises(WireError):
        frames.parse_header(b"x" * 99)

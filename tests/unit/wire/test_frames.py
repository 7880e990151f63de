"""Frames: what goes out comes back; anything else is a WireError."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.errors import WireError
from gbactl.wire import frames

KEY = b"k" * 32
DESCRIPTOR = b"\x93\x01\x02\x03"


def read(data: bytes, key: bytes = KEY, sequence: int = 7) -> tuple[frames.Header, bytes]:
    header = frames.parse_header(data)
    return header, frames.verify(key, data, header, sequence)


def frame(**changes: int) -> bytes:
    return frames.encode(
        KEY, changes.pop("kind", 5), DESCRIPTOR, changes.pop("payload", 0), **{"sequence": 7} | changes
    )


@given(
    kind=st.integers(1, 255),
    descriptor=st.binary(max_size=300),
    payload=st.integers(0, frames.MAX_PAYLOAD),
    sequence=st.integers(0, (1 << 32) - 1),
    released=st.integers(0, (1 << 32) - 1),
    slot=st.none() | st.integers(0, 255),
)
def test_a_frame_survives_the_wire(
    kind: int, descriptor: bytes, payload: int, sequence: int, released: int, slot: int | None
) -> None:
    data = frames.encode(KEY, kind, descriptor, payload, sequence=sequence, released=released, slot=slot)
    header, got = read(data, sequence=sequence)
    assert got == descriptor
    assert (header.kind, header.payload_bytes, header.sequence) == (kind, payload, sequence)
    assert (header.released, header.slot, header.descriptor_bytes) == (released, slot, len(descriptor))


@pytest.mark.parametrize(
    ("data", "expected", "told"),
    [
        (b"GET " + frame()[4:], {}, "does not speak this protocol"),
        (frame()[:4] + bytes([9]) + frame()[5:], {}, "version 9, not 1; install the same gbactl"),
        (frame(), {"key": b"x" * 32}, "not authenticated"),
        (frame(), {"sequence": 8}, "Frame 7 came where 8 was due"),
        (frame(kind=frames.CLOSED), {}, "kind 0"),
    ],
    ids=["another protocol", "another version", "another key", "out of turn", "the kind that means closed"],
)
def test_what_is_no_frame_of_this_connection_is_refused(data: bytes, expected: dict[str, Any], told: str) -> None:
    with pytest.raises(WireError, match=told):
        read(data, **expected)


@pytest.mark.parametrize("length", range(frames.HEADER.size))
def test_a_header_that_is_cut_off(length: int) -> None:
    with pytest.raises(WireError, match="28 bytes"):
        read(frame()[:length])


@pytest.mark.parametrize("missing", range(1, frames.MAC_BYTES + len(DESCRIPTOR) + 1))
def test_a_descriptor_or_mac_that_is_cut_off(missing: int) -> None:
    with pytest.raises(WireError, match="not authenticated"):
        read(frame()[:-missing])


@pytest.mark.parametrize(
    ("descriptor", "payload"),
    [(frames.MAX_DESCRIPTOR + 1, 0), (0, frames.MAX_PAYLOAD + 1), (0, (1 << 64) - 1)],
)
def test_absurd_lengths_are_refused_before_anything_is_allocated(descriptor: int, payload: int) -> None:
    header = frames.HEADER.pack(frames.MAGIC, frames.VERSION, 5, 0, 7, 0, descriptor, payload)
    with pytest.raises(WireError, match="more than allowed"):
        frames.parse_header(header)


@given(st.integers(0, len(frame()) * 8 - 1))
def test_one_flipped_bit_is_a_wire_error(bit: int) -> None:
    data = bytearray(frame(payload=100, released=3))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        read(bytes(data))


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_a_wire_error(noise: bytes, dressed: bool) -> None:
    data = struct.pack("<4sB", frames.MAGIC, frames.VERSION) + noise if dressed else noise
    with pytest.raises(WireError):
        read(data)


def test_a_frame_gives_its_memory_back_once() -> None:
    given_back: list[int] = []
    got = frames.Frame(1, b"", frames.np.empty(0, frames.np.uint8), lambda: given_back.append(1))
    got.release()
    got.release()
    assert given_back == [1]

"""Frames: what goes out comes back; anything else is a WireError."""

from __future__ import annotations

import struct

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


def test_another_protocol_is_refused() -> None:
    with pytest.raises(WireError, match="does not speak this protocol"):
        read(b"GET " + frame()[4:])


def test_another_version_is_refused_with_what_to_do() -> None:
    data = bytearray(frame())
    data[4] = 9
    with pytest.raises(WireError, match="version 9, not 1; install the same gbactl"):
        read(bytes(data))


def test_another_key_is_refused() -> None:
    with pytest.raises(WireError, match="not authenticated"):
        read(frame(), key=b"x" * 32)


def test_a_frame_out_of_turn_is_refused() -> None:
    with pytest.raises(WireError, match="Frame 7 came where 8 was due"):
        read(frame(), sequence=8)


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


def test_the_kind_that_means_closed_is_never_read() -> None:
    with pytest.raises(WireError, match="kind 0"):
        read(frame(kind=frames.CLOSED))


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

"""Frame format: a fixed header, a msgpack descriptor, a raw payload.

Header (little endian, 28 bytes, then a 16-byte MAC over header and descriptor):

    magic 4s | version u8 | kind u8 | flags u16 | sequence u32 | released u32 | desc u32 | payload u64

`flags` bit 0: the payload lies in the sender's shared-memory slot `flags >> 8`, not on the wire. `released`: bit mask
of the peer's slots that may be used again. Frames of a connection are numbered. The header holds the lower 32 bits, the
MAC covers the whole number, so that no frame can be replayed however long a run lasts. Nothing is ever unpickled.
Encoding or decoding a frame costs about 5 us.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gbactl.errors import WireError

Bytes = npt.NDArray[np.uint8]

MAGIC = b"GBAF"
VERSION = 1
HEADER = struct.Struct("<4sBBHIIIQ")
MAC_BYTES = 16
PREFIX = HEADER.size + MAC_BYTES
LAP = 1 << 32  # after so many frames the header's sequence number wraps around
MAX_DESCRIPTOR = 1 << 26  # an event tells the launcher of all phases of the run, of which there may be thousands
MAX_PAYLOAD = 1 << 31
IN_SLOT = 1
CLOSED = 0  # kind of the pseudo-frame that reports a lost connection


@dataclass(slots=True)
class Frame:
    """Received frame. `payload` is valid until `release()` is called.

    A hub within one process may hand over `message` itself instead of its descriptor."""

    kind: int
    descriptor: bytes
    payload: Bytes
    on_release: Callable[[], None] | None = None
    message: Any = None

    def floats(self) -> npt.NDArray[np.float32]:
        """Copy the payload as float32[n]. Raises WireError if its size is not a multiple of 4."""
        if self.payload.size % 4:
            raise WireError(f"A payload of {self.payload.size} bytes holds no whole number of float32 values.")
        return self.payload.view(np.float32).copy()

    def release(self) -> None:
        """Return the payload's memory to the channel; further calls do nothing."""
        if self.on_release is not None:
            done, self.on_release = self.on_release, None
            done()


class Header(NamedTuple):
    """Parsed header of a frame, its part of fixed size."""

    kind: int
    flags: int
    sequence: int
    released: int
    descriptor_bytes: int
    payload_bytes: int

    @property
    def slot(self) -> int | None:
        """Index of the shared-memory slot that holds the payload; None if the payload follows on the wire."""
        return self.flags >> 8 if self.flags & IN_SLOT else None


def mac(key: bytes, header: bytes, descriptor: bytes, lap: int = 0) -> bytes:
    """Compute the 16-byte keyed BLAKE2b over header and descriptor.

    `lap`: how often the header's sequence number has wrapped around."""
    digest = hashlib.blake2b(header, digest_size=MAC_BYTES, key=key)
    digest.update(descriptor)
    if lap:
        digest.update(lap.to_bytes(8, "little"))
    return digest.digest()


def encode(
    key: bytes,
    kind: int,
    descriptor: bytes,
    payload_bytes: int = 0,
    *,
    sequence: int = 0,
    released: int = 0,
    slot: int | None = None,
) -> bytes:
    """Encode header, MAC and descriptor as one byte string; the payload follows on the wire unless it is in a slot."""
    flags = 0 if slot is None else (slot << 8) | IN_SLOT
    lap, number = divmod(sequence, LAP)
    header = HEADER.pack(MAGIC, VERSION, kind, flags, number, released, len(descriptor), payload_bytes)
    return header + mac(key, header, descriptor, lap) + descriptor


def parse_header(data: bytes | memoryview) -> Header:
    """Parse the header. Raises WireError for another protocol, another version or lengths above the limits."""
    if len(data) < HEADER.size:
        raise WireError(f"A frame header has {HEADER.size} bytes, not {len(data)}.")
    magic, version, kind, flags, sequence, released, descriptor, payload = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError("A peer does not speak this protocol.")
    if version != VERSION:
        raise WireError(f"A peer speaks protocol version {version}, not {VERSION}; install the same gbactl.")
    if descriptor > MAX_DESCRIPTOR or payload > MAX_PAYLOAD:
        raise WireError(f"A frame claims {descriptor} + {payload} bytes, which is more than allowed.")
    if kind == CLOSED:
        raise WireError("A frame of kind 0 is never sent.")
    return Header(kind, flags, sequence, released, descriptor, payload)


def verify(key: bytes, data: bytes | memoryview, header: Header, expected_sequence: int) -> bytes:
    """Verify the MAC and sequence number of header + MAC + descriptor; return the descriptor. Raises WireError.

    `expected_sequence` counts all frames of the connection in this direction."""
    head = bytes(data[: HEADER.size])
    tag = bytes(data[HEADER.size : PREFIX])
    descriptor = bytes(data[PREFIX : PREFIX + header.descriptor_bytes])
    lap, number = divmod(expected_sequence, LAP)
    if not hmac.compare_digest(tag, mac(key, head, descriptor, lap)):
        raise WireError("A frame is not authenticated with this run's key.")
    if header.sequence != number:
        raise WireError(f"Frame {header.sequence} came where {number} was due.")
    return descriptor

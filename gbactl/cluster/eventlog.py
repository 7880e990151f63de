"""The event log: what was handed out, announced and applied. The coordinator's orders in it are its journal.

A file is MAGIC, version u16, then records: kind u8, length u32, crc32 u32 (of kind and body), body. The
header record is msgpack; the frequent ones are packed structs. Orders reach the file (os.write) before they
are sent; the rest is buffered. About 75 bytes a gradient with two shards; under 10 us.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from gbactl.errors import EventLogError

MAGIC = b"gbaclog\0"
FORMAT = 1
_START = struct.Struct("<8sH")
_RECORD = struct.Struct("<BII")
_GRANT = struct.Struct("<HII")
_ANNOUNCE = struct.Struct("<HIB")
_ORDER = struct.Struct("<IHddd")
_MEMBER = struct.Struct("<Id")
HEADER, PHASE, GRANT, ANNOUNCE, ORDER, CHECKSUM, END = range(1, 8)
FLUSH_BYTES = 1 << 16


class GrantRecord(NamedTuple):
    """A batch was handed out."""

    worker: int
    batch: int
    token: int


class AnnounceRecord(NamedTuple):
    """A gradient was announced; versions pulled per shard, rows and dense apart (-1: none)."""

    worker: int
    batch: int
    row_versions: tuple[int, ...]
    dense_versions: tuple[int, ...]


class OrderRecord(NamedTuple):
    """A step was ordered: the journal."""

    step: int
    divisor: float
    weight_sum: float
    lr_scale: float
    members: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class InfoRecord:
    """A header, the begin of a phase, a checksum or the end."""

    kind: int
    fields: dict[str, Any]


Record = GrantRecord | AnnounceRecord | OrderRecord | InfoRecord


class EventLog:
    """Writes a log. One writer, no lock."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        self._buffer = bytearray(_START.pack(MAGIC, FORMAT))
        self.bytes = len(self._buffer)
        self.info(HEADER, header)

    def _add(self, kind: int, body: bytes) -> None:
        record = _RECORD.pack(kind, len(body), zlib.crc32(body, kind)) + body
        self._buffer += record
        self.bytes += len(record)
        if len(self._buffer) > FLUSH_BYTES:
            self.flush()

    def info(self, kind: int, fields: dict[str, Any]) -> None:
        """A header, phase, checksum or end record."""
        self._add(kind, msgpack.packb(fields))

    def grant(self, worker: int, batch: int, token: int) -> None:
        """Note a hand-out."""
        self._add(GRANT, _GRANT.pack(worker, batch, token))

    def announce(self, worker: int, batch: int, rows: Sequence[int], dense: Sequence[int]) -> None:
        """Note an announced gradient and the versions it was computed from."""
        versions = struct.pack(f"<{2 * len(rows)}i", *rows, *dense)
        self._add(ANNOUNCE, _ANNOUNCE.pack(worker, batch, len(rows)) + versions)

    def order(self, record: OrderRecord) -> None:
        """Journal a step: in the file when this returns."""
        head = _ORDER.pack(
            record.step, len(record.members), record.divisor, record.weight_sum, record.lr_scale
        )
        self._add(ORDER, head + b"".join(_MEMBER.pack(*member) for member in record.members))
        self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        view = memoryview(bytes(self._buffer))
        while view:
            view = view[os.write(self._fd, view) :]
        self._buffer.clear()

    def close(self, **fields: Any) -> None:
        """Write the end record and close."""
        self.info(END, fields)
        self.flush()
        os.close(self._fd)


def read(path: Path) -> Iterator[Record]:
    """The records of a log. Raises EventLogError with the offset where it is damaged or cut."""
    data = path.read_bytes()
    if len(data) < _START.size or data[:8] != MAGIC:
        raise EventLogError(f"{path} is not an event log.")
    version = _START.unpack_from(data)[1]
    if version != FORMAT:
        raise EventLogError(f"{path} has format {version}, this gbactl reads {FORMAT}.")
    offset = _START.size
    while offset < len(data):
        kind, body, after = _record(path, data, offset)
        yield _decode(path, kind, body, offset)
        offset = after


def _record(path: Path, data: bytes, offset: int) -> tuple[int, bytes, int]:
    start = offset + _RECORD.size
    if start > len(data):
        raise EventLogError(f"{path} is cut off at byte {offset}.")
    kind, length, crc = _RECORD.unpack_from(data, offset)
    body = data[start : start + length]
    if len(body) < length:
        raise EventLogError(f"{path} is cut off at byte {offset}.")
    if zlib.crc32(body, kind) != crc:
        raise EventLogError(f"{path} is damaged at byte {offset}.")
    return kind, body, start + length


def _decode(path: Path, kind: int, body: bytes, offset: int) -> Record:
    try:
        if kind == GRANT:
            return GrantRecord(*_GRANT.unpack(body))
        if kind == ANNOUNCE:
            return _decode_announce(body)
        if kind == ORDER:
            return _decode_order(body)
        if kind in (HEADER, PHASE, CHECKSUM, END):
            return InfoRecord(kind, msgpack.unpackb(body))
    except (struct.error, ValueError, TypeError) as error:
        raise EventLogError(f"{path} is damaged at byte {offset} ({error}).") from error
    raise EventLogError(f"{path} has a record of unknown kind {kind} at byte {offset}.")


def _decode_announce(body: bytes) -> AnnounceRecord:
    worker, batch, shards = _ANNOUNCE.unpack_from(body)
    versions = struct.unpack(f"<{2 * shards}i", body[_ANNOUNCE.size :])
    return AnnounceRecord(worker, batch, versions[:shards], versions[shards:])


def _decode_order(body: bytes) -> OrderRecord:
    step, count, divisor, weight_sum, lr_scale = _ORDER.unpack_from(body)
    if len(body) != _ORDER.size + count * _MEMBER.size:
        raise ValueError("an order of another length")
    members = tuple(_MEMBER.iter_unpack(body[_ORDER.size :]))
    return OrderRecord(step, divisor, weight_sum, lr_scale, members)

"""Event log of a run: batches handed out, gradients announced, steps ordered; also the coordinator's journal.

A file is MAGIC, version u16, then records: kind u8, length u32, crc32 u32 (of kind and body), body in msgpack. Versions
are written as differences and whole numbers as integers, so a gradient takes about 75 bytes with three shards, 100 at
most, and 3 more per shard where its rows are counted. Orders reach the file (os.write) before they are sent; other
records are buffered, or, where a coordinator failover is possible, written before the messages that they lead to. A
record costs under 10 us, and a write 2 us.

There is one FAILURE record for each entry of `recovery` in result.json, with its `number` there. `at_s`: seconds from
the begin of training to the injection or, without one, to the process's last sign of life. `detected_s`, `loaded_s` and
`useful_s` count from `at_s`, as in result.json (null: not reached). The record is written when the process does useful
work again, at the latest when the run ends well.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gbactl.errors import EventLogError, TornLogError
from gbactl.wire.messages import pack

MAGIC = b"gbaclog\0"
FORMAT = 16
_START = struct.Struct("<8sH")
_RECORD = struct.Struct("<BII")
HEADER, PHASE, GRANT, ANNOUNCE, ORDER, CHECKSUM, END, DROP, LEFT, JOINED, SWITCH, STOP, FORGO = range(1, 14)
SERVER, NOTE, MOVED, DENSE_LOST, FAILURE, FINISH = 14, 15, 16, 17, 18, 19
INFOS = (HEADER, PHASE, CHECKSUM, END, SWITCH, SERVER, NOTE, MOVED, DENSE_LOST, FAILURE)
FLUSH_BYTES = 1 << 16
_GRADIENT_BYTES, _SHARD_BYTES = 100, 16  # at most, of all records about one gradient, and per shard
_WHOLE = float(1 << 53)
_WORKERS, _NUMBERS, _VERSIONS = range(-1, 1 << 16), range(1 << 32), range(-(1 << 31), 1 << 31)


class GrantRecord(NamedTuple):
    """Event log record: a batch was handed out to a worker."""

    worker: int
    batch: int
    token: int


class AnnounceRecord(NamedTuple):
    """Event log record: a gradient was announced.

    `row_versions`, `dense_versions`: for each shard, the versions of the parameters that the gradient was computed from
    (-1: none). `part_rows`: for each shard, the number of rows of the gradient's slice, where a coordinator failover
    needs it (its bitwise complement: the slice went to a failed server)."""

    worker: int
    batch: int
    row_versions: tuple[int, ...]
    dense_versions: tuple[int, ...]
    part_rows: tuple[int, ...] = ()


class DropRecord(NamedTuple):
    """Event log record: an announced gradient was discarded."""

    worker: int
    batch: int


class LeftRecord(NamedTuple):
    """Event log record: a worker failed, and the batches leased to it are handed out again."""

    worker: int


class JoinedRecord(NamedTuple):
    """Event log record: a worker joined the phase."""

    worker: int


class StopRecord(NamedTuple):
    """Event log record: the phase ends early, before the batch numbered `batch` (0: as soon as possible).

    The run switches its mode, a worker's successor needs the dense parameters, or a full recovery begins."""

    batch: int


class ForgoRecord(NamedTuple):
    """Event log record: the gradients of `batches` batches had not arrived at the deadline of a switch.

    The samples of these batches count as decayed."""

    batches: int


class FinishRecord(NamedTuple):
    """Event log record: no batch of the phase is in flight any more, and gradients left in the buffer are applied."""


class OrderRecord(NamedTuple):
    """Event log record: a step was ordered.

    `members`: the batches of the step's gradients, with the gradients' weights. `divisor`: the weighted sum of the
    gradients is divided by it. `weight_sum`: the sum of the weights. `lr_scale`: the factor of the learning rates."""

    step: int
    divisor: float
    weight_sum: float
    lr_scale: float
    members: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class InfoRecord:
    """Event log record with named fields: header, phase, checksum, switch, server failure, failure times, end, note.

    A switch record has the mode of the phases after it. A note serves coordinator failovers; a replay ignores it."""

    kind: int
    fields: dict[str, Any]


Record = (
    GrantRecord | AnnounceRecord | DropRecord | LeftRecord | JoinedRecord | StopRecord | ForgoRecord | FinishRecord
    | OrderRecord | InfoRecord
)  # fmt: skip


def most_bytes(gradients: int, shards: int) -> int:
    """Upper bound of an event log's size in bytes for a number of gradients and shards, without its header."""
    return gradients * (_GRADIENT_BYTES + shards * _SHARD_BYTES)


class EventLog:
    """Writer of an event log. One writer, no lock. Numbers out of range raise ValueError and write nothing.

    With `after` it keeps this many bytes of an existing log, truncates the others and appends. With `ahead` every
    record that other nodes act upon is in the file before they learn of it."""

    def __init__(self, path: Path, header: dict[str, Any], after: int | None = None, ahead: bool = False) -> None:
        self.ahead = ahead
        self._buffer = bytearray() if after else bytearray(_START.pack(MAGIC, FORMAT))
        self._path = path
        flags = os.O_CREAT | os.O_WRONLY | (os.O_APPEND if after else os.O_TRUNC)
        self._fd = os.open(path, flags, 0o644)
        self.bytes = after or len(self._buffer)
        if after:
            os.ftruncate(self._fd, after)
        else:
            self.info(HEADER, header)

    def info(self, kind: int, fields: dict[str, Any]) -> None:
        """Append a record with named fields: header, phase, checksum, switch, failure, end or note."""
        self.write(InfoRecord(kind, fields))

    def write(self, record: Record) -> None:
        """Append a record of any kind; the records of its consequences must be appended after it.

        An order is in the file when this returns."""
        kind, fields = _encoded(record)
        body = pack(fields)
        self._buffer += _RECORD.pack(kind, len(body), zlib.crc32(body, kind)) + body
        self.bytes += _RECORD.size + len(body)
        if kind == ORDER or (self.ahead and kind in AHEAD) or len(self._buffer) > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write buffered records to the file. Raises OSError that names the log."""
        try:
            while self._buffer:
                del self._buffer[: os.write(self._fd, self._buffer)]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self, **fields: Any) -> None:
        """Write the end record and close the file."""
        self.info(END, fields)
        self.flush()
        os.close(self._fd)


#: records of integers alone: kind, and the range of each integer
_INTEGERS: dict[type[Record], tuple[int, tuple[range, ...]]] = {
    GrantRecord: (GRANT, (_WORKERS, _NUMBERS, _NUMBERS)), DropRecord: (DROP, (_WORKERS, _NUMBERS)),
    LeftRecord: (LEFT, (_WORKERS,)), JoinedRecord: (JOINED, (_WORKERS,)), StopRecord: (STOP, (_NUMBERS,)),
    ForgoRecord: (FORGO, (_NUMBERS,)), FinishRecord: (FINISH, ()),
}  # fmt: skip
#: records that other nodes act upon, beside orders
AHEAD = (PHASE, SWITCH, NOTE, SERVER, FAILURE, *(kind for kind, _ in _INTEGERS.values()))


def _encoded(record: Record) -> tuple[int, Any]:
    """Encode a record as its kind and its body's content. Raises ValueError for a number that is out of range."""
    if isinstance(record, AnnounceRecord):
        return ANNOUNCE, _encode_announce(record)
    if isinstance(record, OrderRecord):
        factors = map(_short, (record.divisor, record.weight_sum, record.lr_scale))
        members = [part for b, w in record.members for part in (_one_of(b, _NUMBERS), _short(w))]
        return ORDER, (_one_of(record.step, _NUMBERS), *factors, *members)
    if isinstance(record, InfoRecord):
        return record.kind, record.fields
    kind, allowed = _INTEGERS[type(record)]
    return kind, tuple(map(_one_of, record, allowed))


def _encode_announce(record: AnnounceRecord) -> tuple[Any, ...]:
    worker, batch, rows, dense, part_rows = record
    if len(rows) != len(dense) or not rows or len(part_rows) not in (0, len(rows)):
        raise ValueError(f"versions of {len(rows)} and {len(dense)} shards, rows of {len(part_rows)}")
    for number in (*rows, *dense, *part_rows):
        _one_of(number, _VERSIONS)
    versions = rows if dense == rows else (*rows, *dense)
    first = versions[0]
    rest = [version - first for version in versions[1:]]
    counted = [list(part_rows)] if part_rows else []
    return (_one_of(worker, _WORKERS), _one_of(batch, _NUMBERS), len(rows), first, *rest, *counted)


def _one_of(number: int, allowed: range) -> int:
    if number not in allowed:
        raise ValueError(f"{number} does not fit into an event log")
    return number


def _short(number: float) -> float | int:
    """Convert a positive float that is a whole number to an integer, which takes fewer bytes."""
    return int(number) if 0 < number < _WHOLE and number == int(number) else float(number)


def read(path: Path) -> Iterator[Record]:
    """Read the records of an event log.

    Raises EventLogError with the offset where it is damaged, TornLogError where it ends within a record."""
    data = _bytes(path, 0)
    if len(data) < _START.size or data[:8] != MAGIC:
        raise EventLogError(f"{path} is not an event log.")
    version = _START.unpack_from(data)[1]
    if version != FORMAT:
        raise EventLogError(f"{path} has format {version}, this gbactl reads {FORMAT}; use the one that wrote it.")
    for record, _ in _records(path, data, _START.size):
        yield record


def tail(path: Path, offset: int) -> tuple[list[Record], int]:
    """Read an event log from a byte offset: its records, and the offset at which the last complete one ends.

    A record must begin at the offset. A killed writer may have left an incomplete record at the end. Raises
    EventLogError where the log is damaged."""
    found, at = list[Record](), 0
    with suppress(TornLogError):
        for record, after in _records(path, _bytes(path, offset), 0):
            found.append(record)
            at = after
    return found, offset + at


def _bytes(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError as error:
        raise EventLogError(f"{path} cannot be read ({error.strerror}).") from error


def _records(path: Path, data: bytes, offset: int) -> Iterator[tuple[Record, int]]:
    """Decode the records from an offset on, each with the offset at which it ends."""
    while offset < len(data):
        kind, body, after = _record(path, data, offset)
        yield _decode(path, kind, body, offset), after
        offset = after


def _record(path: Path, data: bytes, offset: int) -> tuple[int, bytes, int]:
    start = offset + _RECORD.size
    if start > len(data):
        raise TornLogError(f"{path} is cut off at byte {offset}.")
    kind, length, crc = _RECORD.unpack_from(data, offset)
    body = data[start : start + length]
    if len(body) < length:
        raise TornLogError(f"{path} is cut off at byte {offset}.")
    if zlib.crc32(body, kind) != crc:
        raise EventLogError(f"{path} is damaged at byte {offset}.")
    return kind, body, start + length


def _decode(path: Path, kind: int, body: bytes, offset: int) -> Record:
    if kind not in range(HEADER, FINISH + 1):
        raise EventLogError(f"{path} has a record of unknown kind {kind} at byte {offset}.")
    try:
        values = msgspec.msgpack.decode(body)
        if kind in INFOS:
            return InfoRecord(kind, {str(key): value for key, value in values.items()})
        return _DECODERS[kind](values)
    except Exception as error:  # malformed input leads to several unrelated types
        raise EventLogError(f"{path} is damaged at byte {offset} ({error}).") from error


def _integers(values: Sequence[Any]) -> None:
    if any(type(value) is not int for value in values):
        raise ValueError("a number has a wrong type")


def _decoder_of(cls: Callable[..., Record]) -> Callable[[Any], Record]:
    def decode(values: Any) -> Record:
        _integers(values)
        return cls(*values)

    return decode


def _decode_announce(values: Any) -> AnnounceRecord:
    counted: tuple[int, ...] = tuple(values.pop()) if isinstance(values[-1], list) else ()
    _integers((*values, *counted))
    worker, batch, shards, first, *rest = values
    versions = (first, *(first + more for more in rest))
    if len(versions) not in (shards, 2 * shards) or len(counted) not in (0, shards):
        raise ValueError("the number of versions or rows does not match the number of shards")
    return AnnounceRecord(worker, batch, versions[:shards], versions[-shards:], counted)


def _decode_order(values: Any) -> OrderRecord:
    step, divisor, weight_sum, lr_scale, *members = values
    _integers([step, *members[::2]])
    if len(members) % 2 or any(type(v) not in (int, float) for v in (divisor, weight_sum, lr_scale, *members)):
        raise ValueError("an order has an unknown form")
    pairs = tuple((b, float(w)) for b, w in zip(members[::2], members[1::2], strict=True))
    return OrderRecord(step, float(divisor), float(weight_sum), float(lr_scale), pairs)


_DECODERS: dict[int, Callable[[Any], Record]] = {
    **{kind: _decoder_of(record) for record, (kind, _) in _INTEGERS.items()},
    ANNOUNCE: _decode_announce,
    ORDER: _decode_order,
}

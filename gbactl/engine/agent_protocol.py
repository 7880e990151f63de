"""Protocol between launcher and agent: a length and a msgpack pair (name, fields), on a pipe that ssh carries.

Nothing is unpickled, and no message above `LONGEST` bytes is read. A remote shell may print a greeting before the agent
starts: everything before `MAGIC` is skipped.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack

from gbactl.errors import WireError

MAGIC = b"\0gbactl-agent-1\n"
LONGEST = 1 << 23
MOST_GREETING = 1 << 16
PIECE = 1 << 20  # bytes of a file in one message
_LENGTH = struct.Struct("<I")
Message = tuple[str, dict[str, Any]]


def pack(name: str, fields: dict[str, Any]) -> bytes:
    """Encode one message to or from an agent. Raises WireError if it is too long."""
    body: bytes = msgpack.packb((name, fields))
    if len(body) > LONGEST:
        raise WireError(f"A message {name} of {len(body)} bytes is too long for a host's pipe.")
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Decoder of a byte stream into messages. `greeted`: whether MAGIC has been seen, or is not expected."""

    def __init__(self, greeted: bool = True) -> None:
        self._buffer = bytearray()
        self._greeted = greeted

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now. Raises WireError for malformed data."""
        self._buffer += data
        if not self._greeted and not self._past_greeting():
            return []
        found = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LONGEST:
                raise WireError(f"A host's pipe announces a message of {length} bytes.")
            if len(self._buffer) < _LENGTH.size + length:
                break
            found.append(_message(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])))
            del self._buffer[: _LENGTH.size + length]
        return found

    def _past_greeting(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at < 0:
            if len(self._buffer) > MOST_GREETING:
                raise WireError("What answers is no gbactl agent.")
            return False
        del self._buffer[: at + len(MAGIC)]
        self._greeted = True
        return True


def _message(body: bytes) -> Message:
    try:
        name, fields = msgpack.unpackb(body)
    except Exception as error:  # any malformed message gives the same error
        raise WireError("A message on a host's pipe cannot be read.") from error
    if not isinstance(name, str) or not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise WireError("A message on a host's pipe is not a name with fields.")
    return name, fields


def field(fields: dict[str, Any], key: str, kind: Any) -> Any:
    """Return a message's field after checking its type. Raises WireError."""
    value = fields.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"A message on a host's pipe lacks {key}.")
    return value


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a pipe. Raises OSError when the other end is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

"""Frames that are nearly right: random messages of every kind, and what a network or an enemy makes of them."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Any

import msgpack

from gbactl.wire import frames
from gbactl.wire.messages import MESSAGES, kind_of, pack
from gbactl.wire.socket_channel import ATTACH, ATTACHED

NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 16, -(1 << 31), (1 << 31) - 1, 1 << 40, (1 << 62) - 1, 1 << 62, -(1 << 63))
REALS = (0.0, -1.0, 0.5, 1e300, -1e-300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "gba", "../../etc/passwd", "W0", "\x00", "ä" * 40, "cut-000001")
LENGTHS = (0, 1, 3, 4, frames.MAX_DESCRIPTOR - 1, frames.MAX_DESCRIPTOR + 1, (1 << 32) - 1)
PAYLOADS = (0, 1, 5, 1 << 20, frames.MAX_PAYLOAD, frames.MAX_PAYLOAD + 1, (1 << 64) - 1)


def hints_of(cls: type[Any]) -> list[Any]:
    """Types of a class's fields, with the bounds of numbers."""
    return list(typing.get_type_hints(cls, include_extras=True).values())


HINTS = {cls: hints_of(cls) for cls in MESSAGES}


def value_of(kind: Any, rng: random.Random) -> Any:
    """Something of a field's type."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        least = kind.__metadata__[0].ge
        return rng.choice([each for each in (*NUMBERS[:11], rng.randrange(100)) if least is None or each >= least])
    if origin is tuple:
        inside, *more = typing.get_args(kind)
        kinds = [inside] * rng.choice((0, 1, 3)) if more == [...] else [inside, *more]
        return tuple(value_of(each, rng) for each in kinds)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(*(value_of(each, rng) for each in hints_of(kind)))
    if origin is types.UnionType:
        return value_of(rng.choice(typing.get_args(kind)), rng)
    if origin is list:
        return [value_of(typing.get_args(kind)[0], rng) for _ in range(rng.choice((0, 1, 2, 5)))]
    if origin is dict:
        keys, values = typing.get_args(kind)
        inside = int if values is Any else values
        return {value_of(keys, rng): value_of(inside, rng) for _ in range(rng.choice((0, 1, 3)))}
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice((*NUMBERS[:11], rng.randrange(100)))
    if kind is float:
        return rng.choice(REALS)
    return rng.randbytes(rng.choice((0, 1, 20))) if kind is bytes else rng.choice(TEXTS)


def message(rng: random.Random, kinds: tuple[type[Any], ...] = MESSAGES) -> Any:
    """A message with a value of the right type in every field."""
    cls = rng.choice(kinds)
    return cls(*(value_of(hint, rng) for hint in HINTS[cls]))


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Some bits changed."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    """An end, a beginning or something in the middle taken out."""
    low = rng.randrange(len(data) + 1)
    high = rng.randrange(low, len(data) + 1)
    return data[:low] + data[high:]


def stuffed(data: bytes, rng: random.Random) -> bytes:
    """Bytes put in, some of them taken from elsewhere."""
    at = rng.randrange(len(data) + 1)
    more = rng.randbytes(rng.choice((1, 4, 44, 300)))
    return data[:at] + (more if rng.random() < 0.5 else data[: rng.randrange(len(data) + 1)]) + data[at:]


MANGLES = (flipped, cut, stuffed)


def mangled(data: bytes, rng: random.Random) -> bytes:
    """Bytes as somebody without the key may change them."""
    return data if data == (changed := rng.choice(MANGLES)(data, rng)) else changed


def nested(rng: random.Random) -> bytes:
    """A descriptor that is deep, wide or claims to be."""
    claims = bytes([rng.choice((0xC6, 0xC9, 0xDB, 0xDD, 0xDF))]) + b"\xff\xff\xff\xff\x01"
    return rng.choice((b"\x91" * rng.choice((10, 600, 5000)), b"\xdc\xff\xff" + b"\x90" * 3000, claims))


def odd_descriptor(rng: random.Random) -> tuple[int, bytes]:
    """(kind, descriptor) that somebody with the key may send."""
    original = message(rng)
    kind, fields = kind_of(original), list(original)
    draw = rng.random()
    if draw < 0.25 and fields:
        fields[rng.randrange(len(fields))] = rng.choice((None, [], {}, "x", b"x", *NUMBERS, *REALS, [[]], {"a": [1]}))
    elif draw < 0.4:
        fields = fields[: rng.randrange(len(fields) + 1)] + [0] * rng.choice((0, 1))
    elif draw < 0.5:
        kind = rng.choice((0, len(MESSAGES) + 1, 200, ATTACH, ATTACHED, 255))
    elif draw < 0.6:
        return kind, nested(rng)
    packed: bytes = msgpack.packb(fields, default=dataclasses.asdict) if draw < 0.6 else mangled(pack(original), rng)
    return kind, packed


def odd_frame(key: bytes, rng: random.Random) -> bytes:
    """A frame of somebody who has the key, and does not keep to the rules."""
    kind, descriptor = odd_descriptor(rng)
    draw = rng.random()
    sequence = 0 if draw > 0.1 else rng.choice((1, 2, (1 << 32) - 1))
    slot = rng.choice((0, 1, 7, 255)) if draw > 0.9 else None
    if 0.1 < draw < 0.3:
        header = frames.HEADER.pack(
            frames.MAGIC, frames.VERSION, kind, rng.choice((0, 1, 255, 65535)), 0, rng.getrandbits(32),
            rng.choice(LENGTHS), rng.choice(PAYLOADS),
        )  # fmt: skip
        return header + frames.mac(key, header, descriptor) + descriptor
    payload = rng.randbytes(rng.choice((0, 0, 4, 33, 400)))
    claimed = rng.choice((len(payload), len(payload), *PAYLOADS)) if draw > 0.8 else len(payload)
    try:
        head = frames.encode(
            key, kind, descriptor, claimed, sequence=sequence, released=rng.choice((0, 0xFFFFFFFF)), slot=slot
        )
    except frames.struct.error:
        return payload
    return head + payload

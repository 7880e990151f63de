"""Frames that are nearly right: random messages of every kind, and what a network or an enemy makes of them."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from collections.abc import Callable
from typing import Any

import msgpack

from gbactl.wire import frames
from gbactl.wire.messages import MESSAGES, kind_of, pack
from gbactl.wire.socket_channel import ATTACH, ATTACHED

Draw = Callable[[random.Random], Any]
NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 16, -(1 << 31), (1 << 31) - 1, 1 << 40, (1 << 62) - 1, 1 << 62, -(1 << 63))
REPRESENTABLE = NUMBERS[:11]  # in an Integer of a message
REALS = (0.0, -1.0, 0.5, 1e300, -1e-300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "gba", "../../etc/passwd", "W0", "\x00", "ä" * 40, "cut-000001")
LENGTHS = (0, 1, 3, 4, frames.MAX_DESCRIPTOR - 1, frames.MAX_DESCRIPTOR + 1, (1 << 32) - 1)
PAYLOADS = (0, 1, 5, 1 << 20, frames.MAX_PAYLOAD, frames.MAX_PAYLOAD + 1, (1 << 64) - 1)


def draws_of(cls: type[Any]) -> list[Draw]:
    """Functions that draw the values of a class's fields."""
    return [draw_of(hint) for hint in typing.get_type_hints(cls, include_extras=True).values()]


def draw_of(kind: Any) -> Draw:
    """Make the function that draws something of a field's type: a type is looked at once, not for each value."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        least = kind.__metadata__[0].ge  # None or 0
        return number_of(tuple(each for each in REPRESENTABLE if least is None or each >= least))
    if origin is dict:
        keys, values = map(draw_of, typing.get_args(kind))
        return lambda rng: {keys(rng): values(rng) for _ in range(rng.choice((0, 1, 3)))}
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        fields = draws_of(kind)
        return lambda rng: kind(*[draw(rng) for draw in fields])
    draws = [draw_of(each) for each in typing.get_args(kind) if each is not ...]
    if origin is types.UnionType:
        return lambda rng: rng.choice(draws)(rng)
    if origin is list:
        return lambda rng: [draws[0](rng) for _ in range(rng.choice((0, 1, 2, 5)))]
    if typing.get_args(kind)[1:] == (...,):
        return lambda rng: tuple(draws[0](rng) for _ in range(rng.choice((0, 1, 3))))
    return lambda rng: tuple(draw(rng) for draw in draws)


def number_of(numbers: tuple[int, ...]) -> Draw:
    """Make a function that draws one of some numbers, or a small one."""
    return lambda rng: rng.choice((*numbers, rng.randrange(100)))


PLAIN: dict[Any, Draw] = {
    bool: lambda rng: rng.random() < 0.5,
    int: number_of(REPRESENTABLE),
    Any: number_of(REPRESENTABLE),
    float: lambda rng: rng.choice(REALS),
    bytes: lambda rng: rng.randbytes(rng.choice((0, 1, 20))),
    str: lambda rng: rng.choice(TEXTS),
}
DRAWS = {cls: draws_of(cls) for cls in MESSAGES}


def message(rng: random.Random, kinds: tuple[type[Any], ...] = MESSAGES) -> Any:
    """A message with a value of the right type in every field."""
    cls = rng.choice(kinds)
    return cls(*[draw(rng) for draw in DRAWS[cls]])


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

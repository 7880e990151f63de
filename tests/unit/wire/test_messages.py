"""Messages: every kind survives the wire, and nothing malformed becomes anything but a WireError."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.errors import WireError
from gbactl.store.gradient_slice import StepOrder
from gbactl.wire.messages import (
    KIND,
    MESSAGES,
    Event,
    Hello,
    Inspected,
    OrderStep,
    Pull,
    Saved,
    Staged,
    TakeBatch,
    kind_of,
    pack,
    unpack,
)
from tests.support.wire_strategies import messages

kinds = st.integers(1, len(MESSAGES))
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=12,
)


@given(messages)
def test_a_message_survives_the_wire(message: Any) -> None:
    packed = pack(message)
    assert unpack(kind_of(message), packed) == message
    assert packed == msgpack.packb(message, default=dataclasses.asdict), "as another library has it"


def test_a_score_may_be_of_numpy() -> None:
    told = Event("round", {"auc": np.float64(0.5), "steps": np.int64(3)})
    assert unpack(kind_of(told), pack(told)) == Event("round", {"auc": 0.5, "steps": 3})
    with pytest.raises(TypeError, match="object"):
        pack(Event("round", {"auc": object()}))


def test_the_numbers_of_the_messages_are_theirs() -> None:
    assert sorted(KIND.values()) == list(range(1, len(MESSAGES) + 1))
    assert max(KIND.values()) < 254  # 254 and 255 belong to the channel


@pytest.mark.parametrize("kind", [0, -1, len(MESSAGES) + 1, 255])
def test_an_unknown_kind(kind: int) -> None:
    with pytest.raises(WireError, match=f"unknown kind {kind}"):
        unpack(kind, pack(TakeBatch(0)))


@given(messages, st.data())
def test_a_message_that_is_cut_off(message: Any, data: st.DataObject) -> None:
    whole = pack(message)
    with pytest.raises(WireError):
        unpack(kind_of(message), whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(messages, st.binary(min_size=1, max_size=20))
def test_something_behind_a_message(message: Any, tail: bytes) -> None:
    with pytest.raises(WireError):
        unpack(kind_of(message), pack(message) + tail)


@given(messages, st.data())
def test_a_field_too_many_or_too_few(message: Any, data: st.DataObject) -> None:
    fields = list(message)
    wrong = data.draw(st.sampled_from([[*fields, 0], fields[:-1] if fields else [0]]))
    with pytest.raises(WireError, match="fields"):
        unpack(kind_of(message), msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (TakeBatch, ["0"]),
        (TakeBatch, [True]),
        (TakeBatch, [0.0]),
        (TakeBatch, [None]),
        (TakeBatch, [1 << 62]),
        (TakeBatch, [-(1 << 62)]),
        (Hello, ["worker", 0, b"bytes"]),
        (Pull, [1, 0, 2, 1, 0, 0]),
        (OrderStep, [1, [2, [[1, "2"]], 1.0, 1.0, 1.0, [], False, []], False]),
        (OrderStep, [1, [2, [[True, 1.0]], 1.0, 1.0, 1.0, [], False, []], False]),
        (OrderStep, [1, [2, {"0": 1}, 1.0, 1.0, 1.0, [], False, []], False]),
        (OrderStep, [1, [2, [[1, 1.0]], 1.0, 1.0, 1.0, [], False, ["1"]], False]),
        (Staged, [0, 1, 0, 0, "0.5", 0.0, 1.0, 0, 0, 0, 0.0, 0, []]),
        (Staged, [0, 1, 0, 0, 0.5, 0.0, 1.0, 1 << 62, 0, 0, 0.0, 0, []]),
        (Event, ["progress", [1]]),
        (Event, [1, {}]),
        (Event, ["progress", {b"step": 1}]),
        (Inspected, ["S0", "", "", {"peak_rss": "much"}, {}, {}, {}]),
        (Inspected, ["S0", "", "", {}, {"fenced": 1.5}, {}, {}]),
        (Inspected, ["S0", "", "", {}, {}, {"WireError": 1 << 62}, {}]),
        (Inspected, ["S0", "", "", {}, {}, {"WireError": [1]}, {}]),
        (Saved, [0, 1, 10, 1, {"rows": 7}, "", 0, True]),
    ],
)
def test_a_field_of_a_wrong_type_or_size(cls: type[Any], fields: list[Any]) -> None:
    assert len(fields) == len(cls._fields), "their number alone would be refused"
    with pytest.raises(WireError, match=cls.__name__):
        unpack(KIND[cls], msgpack.packb(fields))


@pytest.mark.parametrize("top", [None, 7, "text", {}, {"worker": 0}])
def test_something_else_than_a_list(top: Any) -> None:
    with pytest.raises(WireError, match="TakeBatch"):
        unpack(KIND[TakeBatch], msgpack.packb(top))


def test_a_whole_number_may_stand_for_a_float() -> None:
    packed = msgpack.packb([1, [2, [[3, 1]], 4, 1, 1, [], False, [1]], False])
    assert unpack(KIND[OrderStep], packed) == OrderStep(1, StepOrder(2, ((3, 1),), 4, 1, 1, (), False, (1,)), False)


@given(kinds, st.binary(max_size=200))
def test_random_bytes(kind: int, noise: bytes) -> None:
    _refused_or_whole(kind, noise)


@given(kinds, anything)
def test_random_well_formed_msgpack(kind: int, value: Any) -> None:
    _refused_or_whole(kind, msgpack.packb(value))


@given(messages, st.data())
def test_a_flipped_byte(message: Any, data: st.DataObject) -> None:
    raw = bytearray(pack(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _refused_or_whole(kind_of(message), bytes(raw))


def _refused_or_whole(kind: int, raw: bytes) -> None:
    try:
        message = unpack(kind, raw)
    except WireError:
        return
    assert type(message) is MESSAGES[kind - 1]
    pack(message)

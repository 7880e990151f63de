"""Frames between launcher and agent: whole and in order, whatever the pieces; nothing too long or malformed."""

from __future__ import annotations

import contextlib
import pickle
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.engine.agent_connection import LONGEST, MAGIC, MOST_GREETING, MessageDecoder, field, pack
from gbactl.errors import WireError

messages = st.lists(
    st.tuples(st.text(max_size=8), st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.binary(max_size=40))),
    max_size=6,
)


@given(messages, st.binary(max_size=50), st.lists(st.integers(1, 30)))
def test_messages_arrive_whole_and_in_order(sent, noise, sizes) -> None:
    if MAGIC in noise + MAGIC[:-1]:
        return
    data, found, reader = noise + MAGIC + b"".join(pack(*each) for each in sent), [], MessageDecoder(greeted=False)
    while data:
        size = sizes.pop() if sizes else len(data)
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == sent


@given(st.binary(max_size=300))
def test_anything_else_is_refused_or_waited_for(data: bytes) -> None:
    """No other exception, and no memory for what is only announced."""
    with contextlib.suppress(WireError):
        MessageDecoder().feed(data)


@pytest.mark.parametrize(
    "body", [pickle.dumps(("pulse", {})), msgpack.packb([1, {}]), msgpack.packb(["a", 1]), msgpack.packb(["a", {1: 2}])]
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        MessageDecoder().feed(struct.pack("<I", len(body)) + body)


def test_lengths_are_bounded() -> None:
    with pytest.raises(WireError, match="announces a message of"):
        MessageDecoder().feed(struct.pack("<I", LONGEST + 1))
    with pytest.raises(WireError, match="too long"):
        pack("log", {"data": bytes(LONGEST)})


def test_a_shell_that_talks_for_ever_is_no_agent() -> None:
    reader = MessageDecoder(greeted=False)
    with pytest.raises(WireError, match="no gbactl agent"):
        for _ in range(MOST_GREETING):
            reader.feed(b"Welcome to this machine. ")


def test_fields_have_their_types() -> None:
    assert field({"a": 1}, "a", int) == 1
    for fields in ({}, {"a": "1"}, {"a": True}):
        with pytest.raises(WireError, match="lacks a"):
            field(fields, "a", int)

"""The handshake: both sides prove that they know the run's key, in one fresh exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.errors import WireError
from gbactl.wire import auth
from gbactl.wire.auth import Peer

KEY, OTHER = auth.new_key(), auth.new_key()
ME, SERVER = Peer("worker", 3, 2), Peer("server", 1, 4)


def exchange(listener_key: bytes, connector_key: bytes) -> tuple[Peer, auth.SessionKeys, auth.SessionKeys]:
    listener, connector = auth.nonce(), auth.nonce()
    hello = auth.greeting(listener)
    words = auth.answer(connector_key, hello, ME, connector)
    peer, proof, theirs = auth.accept(listener_key, listener, words, SERVER)
    return peer, theirs, auth.confirm(connector_key, hello, connector, proof, SERVER)


def test_two_that_know_the_key_agree() -> None:
    peer, theirs, mine = exchange(KEY, KEY)
    assert peer == ME
    assert theirs == mine
    assert mine.from_connector != mine.from_listener


def test_session_keys_are_new_every_time() -> None:
    assert exchange(KEY, KEY)[1] != exchange(KEY, KEY)[1]


def test_a_connector_without_the_key() -> None:
    with pytest.raises(WireError, match="does not know this run's key"):
        exchange(KEY, OTHER)


def test_a_listener_without_the_key() -> None:
    listener, connector = auth.nonce(), auth.nonce()
    hello = auth.greeting(listener)
    words = auth.answer(OTHER, hello, ME, connector)
    _, proof, _ = auth.accept(OTHER, listener, words, SERVER)
    with pytest.raises(WireError, match="listener does not know"):
        auth.confirm(KEY, hello, connector, proof, SERVER)


def test_an_answer_cannot_be_replayed() -> None:
    words = auth.answer(KEY, auth.greeting(auth.nonce()), ME, auth.nonce())
    with pytest.raises(WireError):
        auth.accept(KEY, auth.nonce(), words, SERVER)


def test_a_connectors_proof_is_no_listeners_proof() -> None:
    listener, connector = auth.nonce(), auth.nonce()
    hello = auth.greeting(listener)
    words = auth.answer(KEY, hello, ME, connector)
    with pytest.raises(WireError):
        auth.confirm(KEY, hello, connector, words[-auth.PROOF_BYTES :], SERVER)


def test_a_listeners_proof_opens_no_door() -> None:
    """Someone connects back to a connector that also listens, and mirrors what it hears."""
    listener, connector = auth.nonce(), auth.nonce()
    words = auth.answer(KEY, auth.greeting(listener), ME, connector)
    _, proof, _ = auth.accept(KEY, listener, words, SERVER)
    mirrored = auth.ANSWER.pack(auth.ROLES.index(ME.role), ME.index, ME.incarnation, listener, proof)
    with pytest.raises(WireError):
        auth.accept(KEY, connector, mirrored, SERVER)


@given(st.integers(0, auth.ANSWER.size * 8 - 1))
def test_a_changed_answer_is_refused(bit: int) -> None:
    listener = auth.nonce()
    words = bytearray(auth.answer(KEY, auth.greeting(listener), ME, auth.nonce()))
    words[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        auth.accept(KEY, listener, bytes(words), SERVER)


@given(st.binary(min_size=auth.ANSWER.size, max_size=auth.ANSWER.size))
def test_random_answers_are_refused(words: bytes) -> None:
    with pytest.raises(WireError):
        auth.accept(KEY, auth.nonce(), words, SERVER)


def test_a_listener_of_another_kind() -> None:
    with pytest.raises(WireError, match="not a gbactl process of this version"):
        auth.answer(KEY, auth.GREETING.pack(b"SSH-2.0-", auth.nonce()), ME, auth.nonce())


def test_names() -> None:
    nodes = [Peer("worker", 3), Peer("server", 0), Peer("coordinator", 0), Peer("launcher", 0)]
    assert [str(node) for node in nodes] == ["W3", "S0", "C", "L"]

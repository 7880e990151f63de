"""Mutual authentication of a connection with the run's key, before any frame.

    listener -> connector   MAGIC, nonce L
    connector -> listener   identity (role, index, incarnation), nonce C, HMAC(key, "connector" | L | C | identity)
    listener -> connector   HMAC(key, "listener" | L | C | its own role and index)

Both ends then derive one session key a direction from both nonces, so that a recorded frame is invalid in another
session. Each proof names its sender, so that nobody in between can lead a connector to another node of the run. Frames
carry a MAC and a sequence number. Bulk payloads do not: they are protected by the host (shared memory), by the network
between the hosts, or by TLS around all of this (tls.py).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass

from gbactl.errors import WireError

GREETING = struct.Struct("<8s16s")
_IDENTITY = struct.Struct("<BIH")
ANSWER = struct.Struct("<BIH16s32s")
PROOF_BYTES = 32
MAGIC = b"gbactl-2"
ROLES = ("launcher", "coordinator", "server", "worker", "control")
_LETTER = {"launcher": "L", "coordinator": "C", "server": "S", "worker": "W", "control": "K"}


@dataclass(frozen=True, slots=True)
class Peer:
    """Identity of a node; `incarnation` is larger in each process that replaces a failed one."""

    role: str
    index: int
    incarnation: int = 0

    def __str__(self) -> str:
        letter = _LETTER[self.role]
        return letter if letter in "LC" else f"{letter}{self.index}"


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """MAC keys of one connection, one for each direction."""

    from_connector: bytes
    from_listener: bytes


def new_key() -> bytes:
    """Create a run's key, 32 random bytes."""
    return secrets.token_bytes(32)


def nonce() -> bytes:
    """Create a fresh 16-byte nonce."""
    return secrets.token_bytes(16)


def greeting(listener_nonce: bytes) -> bytes:
    """Encode the listener's first handshake message."""
    return GREETING.pack(MAGIC, listener_nonce)


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"|".join(parts), hashlib.sha256).digest()


def answer(key: bytes, greeting_bytes: bytes, me: Peer, connector_nonce: bytes) -> bytes:
    """Encode the connector's handshake message. Raises WireError if the listener runs another version of gbactl."""
    magic, listener_nonce = GREETING.unpack(greeting_bytes)
    if magic != MAGIC:
        raise WireError("The other end is not a gbactl process of this version.")
    role = ROLES.index(me.role)
    identity = _IDENTITY.pack(role, me.index, me.incarnation)
    proof = _proof(key, b"connector", listener_nonce, connector_nonce, identity)
    return ANSWER.pack(role, me.index, me.incarnation, connector_nonce, proof)


def accept(key: bytes, listener_nonce: bytes, answer_bytes: bytes, me: Peer) -> tuple[Peer, bytes, SessionKeys]:
    """Verify the connector's handshake message; return (peer, the listener's proof, keys). Raises WireError."""
    role, index, incarnation, connector_nonce, proof = ANSWER.unpack(answer_bytes)
    expected = _proof(key, b"connector", listener_nonce, connector_nonce, answer_bytes[: _IDENTITY.size])
    if not hmac.compare_digest(proof, expected) or role >= len(ROLES):
        raise WireError("A connection does not know this run's key.")
    mine = _listener_proof(key, listener_nonce, connector_nonce, me)
    return Peer(ROLES[role], index, incarnation), mine, _session(key, listener_nonce, connector_nonce)


def confirm(key: bytes, greeting_bytes: bytes, connector_nonce: bytes, proof: bytes, peer: Peer) -> SessionKeys:
    """Verify the listener's `proof` that it knows the key and is `peer` (any incarnation). Raises WireError."""
    _, listener_nonce = GREETING.unpack(greeting_bytes)
    if not hmac.compare_digest(proof, _listener_proof(key, listener_nonce, connector_nonce, peer)):
        raise WireError(f"The listener does not know this run's key, or is not {peer}.")
    return _session(key, listener_nonce, connector_nonce)


def _listener_proof(key: bytes, listener_nonce: bytes, connector_nonce: bytes, listener: Peer) -> bytes:
    identity = _IDENTITY.pack(ROLES.index(listener.role), listener.index, 0)
    return _proof(key, b"listener", listener_nonce, connector_nonce, identity)


def _session(key: bytes, listener_nonce: bytes, connector_nonce: bytes) -> SessionKeys:
    return SessionKeys(
        _proof(key, b"session-connector", listener_nonce, connector_nonce),
        _proof(key, b"session-listener", listener_nonce, connector_nonce),
    )

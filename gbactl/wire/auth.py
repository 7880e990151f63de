"""Authentication of a connection by the run's key: a mutual handshake before any frame, and TLS 1.3 around it.

    listener -> connector   MAGIC, nonce L
    connector -> listener   identity (role, index, incarnation), nonce C, HMAC(key, "connector" | L | C | identity)
    listener -> connector   HMAC(key, "listener" | L | C | its own role and index)

Both ends then derive one session key a direction from both nonces, so that a recorded frame is invalid in another
session. Each proof names its sender, so that nobody in between can lead a connector to another node of the run. Frames
carry a MAC and a sequence number. Bulk payloads do not: they are protected by the host (shared memory), by the network
between the hosts, or by TLS around all of this.

TLS is that of Python's ssl, around TCP connections. Both ends show the run's certificate and accept no other. It is
derived from the run's key (Ed25519, the private key is an HMAC of it), so that every process with the key derives the
same one: no certificate is sent, no clock is read, nothing is written to a disk. Making the contexts takes 20 ms once a
process; the cost of encryption in training is in docs/studies/performance.md.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import os
import secrets
import select
import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gbactl.errors import WireError

GREETING = struct.Struct("<8s16s")
_IDENTITY = struct.Struct("<BIH")
ANSWER = struct.Struct("<BIH16s32s")
PROOF_BYTES = 32
MAGIC = b"gbactl-2"
ROLES = ("launcher", "coordinator", "server", "worker", "control")
_LETTER = {"launcher": "L", "coordinator": "C", "server": "S", "worker": "W", "control": "K"}
STRANGE = "A connection does not show this run's certificate."
CHANGED = "What a connection carries was changed on its way."
HUNG_UP = "A connection closed before it proved that it knows this run's key."
RELAY_BYTES = 1 << 16
# validity that does not depend on the hosts' clocks
_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)


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


class TlsConnection(ssl.SSLSocket):
    """TLS connection with the interface of a plain non-blocking socket: BlockingIOError if it would wait.

    Raises WireError for another certificate and for changed bytes."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLEOFError as error:
            raise ConnectionResetError(HUNG_UP) from error
        except ssl.SSLError as error:
            raise WireError(STRANGE) from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except ssl.SSLError as error:
            raise _as_socket_error(error) from error

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive into a buffer, at most 16 KiB (one TLS record) per call."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except ssl.SSLError as error:
            raise _as_socket_error(error) from error

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send buffers; returns the bytes sent.

        Unsent bytes must be passed again, unchanged, at the beginning of the next call."""
        written = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while view:
                try:
                    taken = super().send(view)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if written:
                        return written
                    raise BlockingIOError from None
                written += taken
                view = view[taken:]
        return written


def _as_socket_error(error: ssl.SSLError) -> Exception:
    """Translate an ssl error to the exception that a plain socket would raise, or to WireError."""
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError()
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return ConnectionResetError(str(error))
    alert = "ALERT" in (error.reason or "")
    return WireError(STRANGE if alert else CHANGED)


class TlsContexts:
    """TLS contexts of a run, for listening and for connecting."""

    def __init__(self, key: bytes) -> None:
        pem = _certificate(key)
        self._listening = _context(ssl.PROTOCOL_TLS_SERVER, pem)
        self._listening.num_tickets = 0
        self._dialling = _context(ssl.PROTOCOL_TLS_CLIENT, pem)

    def accept(self, sock: socket.socket) -> TlsConnection:
        """Wrap an accepted socket in TLS; the caller repeats `do_handshake` while it raises BlockingIOError."""
        wrapped = self._listening.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        assert isinstance(wrapped, TlsConnection)
        return wrapped

    def dial(self, sock: socket.socket) -> TlsConnection:
        """Wrap a connector's socket and complete the handshake. Raises OSError (also TimeoutError) or WireError."""
        wrapped = self._dialling.wrap_socket(sock, do_handshake_on_connect=False)
        assert isinstance(wrapped, TlsConnection)
        wrapped.do_handshake()
        return wrapped


def relay(connection: TlsConnection, source: int, sink: int) -> None:
    """Copy bytes from one pipe to a connection, and from the connection to another pipe, until one of the three ends.

    One thread does both, as a TLS connection is not for two. Closes the connection and the sink."""
    connection.setblocking(False)
    os.set_blocking(sink, False)
    out = back = b""
    try:
        while True:
            poll = select.poll()  # not select.select, which knows no descriptor above 1023
            if wanted := select.POLLIN * (not back) | select.POLLOUT * bool(out):
                poll.register(connection, wanted)
            if not out:
                poll.register(source, select.POLLIN)
            if back:
                poll.register(sink, select.POLLOUT)
            ready = dict(poll.poll())
            carried = ready.get(connection.fileno(), 0)
            if source in ready and not (out := os.read(source, RELAY_BYTES)):
                return
            with contextlib.suppress(BlockingIOError):
                if carried & ~select.POLLOUT and not (back := back or connection.recv(RELAY_BYTES)):
                    return
            with contextlib.suppress(BlockingIOError):
                if sink in ready:
                    back = back[os.write(sink, back) :]
            with contextlib.suppress(BlockingIOError):
                if carried & select.POLLOUT:
                    out = out[connection.sendmsg([out]) :]
    except (OSError, WireError):
        pass
    finally:
        connection.close()
        os.close(sink)


def _context(protocol: ssl._SSLMethod, pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a run has one certificate; the handshake identifies the node
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=pem[pem.index(b"-----BEGIN CERTIFICATE") :].decode())
    context.sslsocket_class = TlsConnection
    handle = os.memfd_create("gbactl")  # ssl reads a private key only from a file: this one is in memory
    try:
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


def _certificate(key: bytes) -> bytes:
    """Derive the run's private key and certificate (PEM) from its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.from_private_bytes(hmac.new(key, b"certificate", hashlib.sha256).digest())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a gbactl run")])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
        .serial_number(1).not_valid_before(_BEGIN).not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(private, None)
    )  # fmt: skip
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret + made.public_bytes(Encoding.PEM)

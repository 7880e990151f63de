"""Mutated frames against everything that reads them: handshake, connection, messages, a server, a coordinator.

    python -m tests.fuzz.wire --count 1000000 --seed 0

Whatever comes in, the answer is WireError (the connection ends, and is counted), or what was really sent: any other
exception is a finding, and so is a frame that is accepted and was not sent, and a buffer that grows past its limit.
The same seed and number give the same bytes again: --seed S --only N repeats one. 7,000 to 30,000 a second and core.
"""

from __future__ import annotations

import argparse
import logging
import random
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gbactl.errors import WireError
from gbactl.server.shard_server import Server
from gbactl.store.dense import DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec
from gbactl.wire import auth, frames, socket_channel
from gbactl.wire.auth import Peer
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import BeginPhase, EasgdUpdate, Pull, Push, PutDense, decode, kind_of, pack
from gbactl.wire.node_measurements import TrafficCounter
from gbactl.wire.socket_channel import QueuedBytes, SocketChannel
from tests.fuzz.coordinator import Spoken
from tests.fuzz.mutations import mangled, message, odd_frame
from tests.support.checkpoint_files import unused_saver

KEY = bytes(range(32))
WORKER = Peer("worker", 1)
BUFFER = 2 * (frames.MAX_DESCRIPTOR + socket_channel.RECEIVE_BYTES)  # what a connection may hold of frames at most
ROWS, WIDTH, DENSE = 10, 3, 5
FROM_WORKERS = (Pull, Push, PutDense, EasgdUpdate)


class Finding(Exception):
    """Something that must not be."""


class Wire:
    """A socket that hands out what was put into it, and swallows what is sent."""

    family = socket.AF_UNIX

    def __init__(self) -> None:
        self.data = b""

    def setblocking(self, _: bool) -> None:
        """As a socket has it."""

    def shutdown(self, _: int) -> None:
        """As a socket has it."""

    def close(self) -> None:
        """As a socket has it."""

    def sendmsg(self, views: list[memoryview]) -> int:
        """Everything goes."""
        return sum(view.nbytes for view in views)

    def recv_into(self, view: memoryview) -> int:
        """As much as there is."""
        if not self.data:
            raise BlockingIOError
        taken = min(len(view), len(self.data))
        view[:taken] = self.data[:taken]
        self.data = self.data[taken:]
        return taken


def read(data: bytes, rng: random.Random) -> tuple[list[Frame], str]:
    """What a connection makes of a stream that comes in pieces, and how it ends."""
    wire = Wire()
    channel = SocketChannel(wire, WORKER, (KEY, KEY), threading.RLock(), QueuedBytes(), TrafficCounter())  # type: ignore[arg-type]
    found: list[Frame] = []
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True):
        wire.data = data[low:high]
        try:
            channel.receive(found)
        except WireError:
            return found, "refused"
    if len(channel._buffer) > BUFFER:
        raise Finding(f"a buffer of {len(channel._buffer)} bytes")
    return found, "read" if channel._partial is None and channel._start == channel._end else "waits for more"


def honest(rng: random.Random) -> tuple[bytes, list[tuple[int, bytes]]]:
    """A stream as it should be, and its frames' kinds and descriptors."""
    stream, sent = b"", []
    for sequence in range(rng.choice((1, 1, 2, 3))):
        original = message(rng)
        payload = rng.randbytes(rng.choice((0, 0, 1, 50, 300)))
        sent.append((kind_of(original), pack(original)))
        stream += frames.encode(KEY, *sent[-1], len(payload), sequence=sequence) + payload
    return stream, sent


def without_the_key(rng: random.Random) -> str:
    """A stream that somebody between the two changes: nothing is accepted that was not sent, in that order."""
    stream, sent = honest(rng)
    changed = stream if rng.random() < 0.05 else mangled(stream, rng)
    found, end = read(changed, rng)
    got = [(frame.kind, frame.descriptor) for frame in found]
    if got != sent[: len(got)] or (changed == stream and got != sent):
        raise Finding(f"{got} accepted where {sent} was sent")
    for frame in found:
        decode(frame)
    return end


def with_the_key(rng: random.Random) -> str:
    """A peer of the run that does not keep to the rules."""
    found, end = read(odd_frame(KEY, rng), rng)
    for frame in found:
        try:
            decode(frame)
        except WireError:
            return "no message"
    return end


def handshake(rng: random.Random) -> str:
    """The words of a connector, changed: accepted as they were alone."""
    listener = rng.randbytes(16)
    words = auth.answer(KEY, auth.greeting(listener), WORKER, rng.randbytes(16))
    changed = mangled(words, rng)[: auth.ANSWER.size]
    if len(changed) < auth.ANSWER.size:
        return "waits for more"
    try:
        auth.accept(KEY, listener, changed, Peer("server", 0))
    except WireError:
        return "refused"
    if changed != words:
        raise Finding(f"{changed.hex()} accepted as the answer")
    return "read"


class Line:
    """A connection of a server, as far as the server sees it."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.closed = peer, False

    def reserve(self, nbytes: int) -> Bytes:
        """See channel.Channel."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Bytes | None = None) -> None:
        """See channel.Channel."""

    def close(self) -> None:
        """See channel.Channel."""
        self.closed = True


class Served:
    """A server that gets messages from a worker; a new one every so often, for what it holds grows."""

    LIFE = 2000

    def __init__(self) -> None:
        self._left = 0

    def __call__(self, rng: random.Random) -> str:
        if self._left == 0:
            self._begin()
        self._left -= 1
        asked = self._asked(rng)
        payload = np.frombuffer(rng.randbytes(self._bytes(asked, rng)), np.uint8)
        worker = Line(WORKER)
        self._server.handle(worker, Frame(kind_of(asked), pack(asked), payload))
        if self._shard.version != 0:
            raise Finding("a worker has made a step")
        return "refused" if worker.closed else "read"

    def _begin(self) -> None:
        plain = OptimizerSpec("sgd", 1.0)
        self._left, self._shard = self.LIFE, Shard(
            ShardSpec(0, 1, ROWS, WIDTH, row_optimizer=plain, dense=DenseSpec(DENSE, 0), dense_optimizer=plain)
        )  # fmt: skip
        coordinator = Line(Peer("coordinator", 0))
        saver = unused_saver(self._shard)
        self._server = Server(_NoHub(), coordinator, self._shard, 0, saver)  # type: ignore[arg-type]
        begin = BeginPhase(1, True, "gba", 0, 0, 100, 10, 0, True, True)
        self._server.handle(coordinator, Frame(kind_of(begin), pack(begin), np.empty(0, np.uint8)))

    @staticmethod
    def _asked(rng: random.Random) -> Any:
        asked = message(rng, FROM_WORKERS) if rng.random() < 0.8 else message(rng)
        likely = {"rows": rng.choice((0, 1, 2, -1)), "dense": rng.choice((0, DENSE)), "phase": 1, "after": 0}
        fields = {name: value for name, value in likely.items() if name in asked._fields and rng.random() < 0.8}
        return asked._replace(**{name: value for name, value in fields.items() if type(getattr(asked, name)) is int})

    @staticmethod
    def _bytes(asked: Any, rng: random.Random) -> int:
        rows, dense = getattr(asked, "rows", 0), getattr(asked, "dense", 0)
        small = type(rows) is int and 0 <= rows < 100 and type(dense) is int and 0 <= dense < 100
        right = 4 * (rows + rows * WIDTH * isinstance(asked, Push) + dense * isinstance(asked, Push)) if small else 0
        return right if rng.random() < 0.7 else rng.choice((0, 1, 4, 12, 20, 64, right + 1, right + 4))


class _NoHub:
    def __init__(self) -> None:
        self.traffic = TrafficCounter()
        self.refused: Counter[str] = Counter()


TARGETS: dict[str, tuple[int, Callable[[random.Random], str]]] = {
    "without the key": (1000, without_the_key), "with the key": (600, with_the_key), "handshake": (200, handshake),
    "server": (200, Served()), "coordinator": (1, Spoken()),  # a whole run each
}  # fmt: skip
_DRAWN = [name for name, (weight, _) in TARGETS.items() for _ in range(weight)]


def once(seed: int, number: int) -> tuple[str, str]:
    """(target, how it ended) of one mutation. Raises Finding, from whatever went wrong."""
    rng = random.Random(seed << 40 | number)
    name = rng.choice(_DRAWN)
    try:
        return name, TARGETS[name][1](rng)
    except Exception as error:
        raise Finding(f"seed {seed}, number {number}, {name}: {type(error).__name__}: {error}") from error


def run(count: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """How `count` mutations ended. Raises Finding at the first that ends badly."""
    logger = logging.getLogger("gbactl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            return Counter(once(seed, number) for number in range(count))
    finally:
        logger.setLevel(before)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="mutated frames against everything that reads them")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat this number alone")
    given = parser.parse_args()
    began = time.monotonic()
    try:
        ends = Counter([once(given.seed, given.only)]) if given.only is not None else run(given.count, given.seed)
    except Finding:
        traceback.print_exc()
        return 1
    seconds = time.monotonic() - began
    for (name, end), count in sorted(ends.items()):
        print(f"{count:>10,}  {name}: {end}")
    print(f"{ends.total():>10,}  in {seconds:.0f} s, {ends.total() / max(seconds, 1e-9):,.0f} a second; nothing found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

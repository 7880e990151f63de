"""A wire that delays: every frame goes on to the other of two devices so many seconds after it came, or is lost.

    python relay.py ONE OTHER SECONDS LOSS     (in the namespace of both; a Relay starts it)

For kernels without netem. Packet sockets hand over what the network card would have cut and summed (up to 64 KiB) as it
is. Frames of a direction keep their order; what does not fit into a direction's queue is dropped and counted, and so
is the share of all that LOSS says, drawn with a fixed seed. Costs
two copies and two system calls a frame; asleep in between. A line on standard input is answered with the counts so
far, its end ends the relay, so it does not outlive who started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

FRAME_BYTES = (1 << 16) + 64
QUEUE_BYTES = 64 << 20  # of a direction: 5 ms at 100 Gbit/s
SOCKET_BYTES = 32 << 20
AT_ONCE = 32  # frames of one direction before the other has its turn
SLACK_NS = "1000"
EARLY = 200e-6  # a long sleep ends so much before its time and a short one follows: a halted core is late to wake up
_EVERY_PROTOCOL = 0x0003
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


class Way:
    """One direction, from a socket to a socket; frames wait `seconds`, and the share `loss` of them goes nowhere."""

    def __init__(self, source: socket.socket, target: socket.socket, seconds: float, loss: float = 0.0) -> None:
        self.source, self.target, self.seconds, self.loss = source, target, seconds, loss
        self.frames = self.dropped = self.lost = self._held = 0
        self._draw = random.Random(0)
        self.late = 0.0  # seconds, of all frames together
        self._waiting: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float:
        """When the first frame that waits has to go; infinity if none does."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def take(self) -> None:
        """Read what has come."""
        for _ in range(AT_ONCE):
            try:
                frame = self.source.recv(FRAME_BYTES)
            except OSError:  # nothing more, or the device is down
                return
            if self.loss and self._draw.random() < self.loss:
                self.lost += 1
                continue
            if self._held + len(frame) > QUEUE_BYTES:
                self.dropped += 1
                continue
            self._held += len(frame)
            self._waiting.append((time.monotonic() + self.seconds, frame))

    def give(self) -> None:
        """Send what has waited."""
        while (late := time.monotonic() - self.due) >= 0:
            _, frame = self._waiting.popleft()
            self._held -= len(frame)
            self.late += late
            try:
                self.target.send(frame)
                self.frames += 1
            except OSError:
                self.dropped += 1


def carry(one: socket.socket, other: socket.socket, seconds: float, loss: float = 0.0) -> None:
    """Frames both ways until standard input ends."""
    ways = {one: Way(one, other, seconds, loss), other: Way(other, one, seconds, loss)}
    while True:
        ready, _, _ = select.select([0, *ways], [], [], _sleep(min(way.due for way in ways.values())))
        for source in ready:
            if source != 0:
                ways[source].take()
            elif os.read(0, 4096):
                print(json.dumps(_counts(ways.values())), flush=True)
            else:
                return
        for way in ways.values():
            way.give()


def _sleep(due: float) -> float | None:
    """How long to sleep at most when the next frame has to go at `due`."""
    if due == float("inf"):
        return None
    left = due - time.monotonic()
    return max(0.0, left - EARLY if left > 2 * EARLY else left)


def _counts(ways: Collection[Way]) -> dict[str, float]:
    sums = {name: sum(getattr(way, name) for way in ways) for name in ("frames", "dropped", "lost", "late")}
    return {**sums, "cpu_seconds": time.process_time()}


def _opened(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # hears nothing before it is bound
    sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    sock.bind((device, _EVERY_PROTOCOL))
    sock.setblocking(False)
    return sock


def _promptly() -> None:
    """Before everything else that wants the core, where that is allowed; sleeps end on time."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text(SLACK_NS)


class Relay:
    """One that runs. `inside`: what to put before a command of its namespace."""

    def __init__(self, inside: Sequence[str], devices: tuple[str, str], seconds: float, loss: float = 0.0) -> None:
        self.seconds = seconds
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-I", __file__, *devices, repr(seconds), repr(loss)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        if self._read() != "ready\n":
            self.end()
            raise RuntimeError(f"the relay between {' and '.join(devices)} did not start")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def counts(self) -> dict[str, float]:
        """So far: `frames` sent, `dropped` (no room), `lost` (drawn), `late` (seconds, all together), `cpu_seconds`."""
        assert self._process.stdin is not None
        self._process.stdin.write("counts\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._read())
        return found

    def end(self) -> None:
        """It is gone."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """What runs in the namespace."""
    one, other, seconds, loss = sys.argv[1:]
    with _opened(one) as near, _opened(other) as far:
        _promptly()
        print("ready", flush=True)
        carry(near, far, float(seconds), float(loss))


if __name__ == "__main__":
    main()

"""Heartbeat: detects processes that hang, keep their connections open and do not answer.

Every worker is pinged once per beat and answers from the thread that reads its network, however long it computes.
Only time in which the coordinator itself was running counts. Costs two small messages per worker and second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gbactl.wire.channel import Channel
from gbactl.wire.messages import Ping, Pong

BEAT_SECONDS = 1.0


def beat(tell: Callable[[], None], seconds: float) -> None:
    """Start a thread that calls `tell` every `seconds`, to show that this process is not stopped."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            tell()

    threading.Thread(target=run, name="beat", daemon=True).start()


class Heartbeat:
    """Heartbeat of one role's nodes. `patience`: seconds of silence after which a node counts as dead.

    `now` in seconds."""

    def __init__(self, patience: float, now: Callable[[], float]) -> None:
        self.patience, self.now = patience, now
        self.beat_seconds = min(BEAT_SECONDS, patience / 4)
        self._beat = 0
        self._last: float | None = None
        self._looked: float | None = None
        self._heard: dict[int, float] = {}

    def answered(self, message: Pong) -> None:
        """Record a worker's answer."""
        if message.worker in self._heard:
            self._heard[message.worker] = self.now()

    @property
    def due(self) -> bool:
        """Whether it is time to check again: four times per beat."""
        return self._looked is None or self.now() >= self._looked + self.beat_seconds / 4

    def silent(self, workers: Mapping[int, Channel]) -> list[int]:
        """Ping the given workers; returns those that have been silent for longer than `patience`."""
        now = self.now()
        self._forgive(now)
        self._heard = {worker: self._heard.get(worker, now) for worker in workers}
        if self._last is None or now >= self._last + self.beat_seconds:
            self._last = now
            self._beat += 1
            for worker in sorted(workers):
                workers[worker].send(Ping(self._beat))
        gone = [worker for worker, heard in self._heard.items() if now - heard > self.patience]
        for worker in gone:
            del self._heard[worker]
        return gone

    def _forgive(self, now: float) -> None:
        """Extend all deadlines where the coordinator itself did not run for two beats: answers may be unread."""
        away = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if away > 2 * self.beat_seconds:
            self._heard = {worker: heard + away for worker, heard in self._heard.items()}

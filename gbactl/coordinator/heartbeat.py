"""Which workers have stopped answering: a process that hangs keeps its connections and says nothing.

Every worker is asked once a beat and answers from the thread that reads its network, however long it computes.
Only time in which the coordinator itself looked counts. Costs two small messages a worker and second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gbactl.wire.channel import Channel
from gbactl.wire.messages import Ping, Pong

BEAT_SECONDS = 1.0


def beat(tell: Callable[[], None], seconds: float) -> None:
    """From now on, say every so many seconds that this process is not stopped: the other way round, in a thread."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            tell()

    threading.Thread(target=run, name="beat", daemon=True).start()


class Heartbeat:
    """`patience`: seconds of silence after which a worker counts as dead; `now` in seconds."""

    def __init__(self, patience: float, now: Callable[[], float]) -> None:
        self.patience, self.now = patience, now
        self.beat_seconds = min(BEAT_SECONDS, patience / 4)
        self._beat = 0
        self._last: float | None = None
        self._looked: float | None = None
        self._heard: dict[int, float] = {}

    def answered(self, message: Pong) -> None:
        """A worker is alive."""
        if message.worker in self._heard:
            self._heard[message.worker] = self.now()

    @property
    def due(self) -> bool:
        """Whether it is time to look again: four times a beat."""
        return self._looked is None or self.now() >= self._looked + self.beat_seconds / 4

    def silent(self, workers: Mapping[int, Channel]) -> list[int]:
        """Ask who is to be asked; returns those among them that have been silent for too long."""
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
        """Where the coordinator was away for longer than a beat, answers may wait to be read."""
        away = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if away > 2 * self.beat_seconds:
            self._heard = {worker: heard + away for worker, heard in self._heard.items()}

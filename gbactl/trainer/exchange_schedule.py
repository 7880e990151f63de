"""Schedule of a trainer's exchanges: periodically in a thread, or every k iterations in the foreground.

The shadow thread costs a core for the time of its passes over the vector and sleeps while it waits for others; the
compute loop never waits for it. It has the scheduling of the compute thread that starts it: where workers share cores,
the same one. A foreground trainer out of data also answers the others from such a thread: a failed
trainer's batch may still come, and is computed meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from gbactl.replicas.base import AveragingRule
from gbactl.trainer.exchange import ExchangeKind

IDLE_SECONDS = 0.001  # between two exchanges of a trainer without data
Stopped = Callable[[], AbstractContextManager[None]]


class ExchangeDriver(Protocol):
    """Interface of a phase's exchange schedule, as the compute loop sees it."""

    def stepped(self, iterations: int) -> None:
        """Start an exchange if one is due after `iterations` local steps. Raises the error of an earlier exchange."""

    def idle(self) -> None:
        """Continue to answer the other trainers' exchanges, as this trainer has no more batches."""

    def close(self) -> None:
        """Join exchanges until every trainer has finished the phase. Raises the error of an earlier exchange."""


class ForegroundDriver:
    """Foreground exchanges every k local iterations, during which no thread of the trainer computes."""

    def __init__(self, exchange: ExchangeKind, k: float, stopped: Stopped = nullcontext) -> None:
        self.exchange, self.k, self.stopped = exchange, k, stopped
        self._next = k
        self._lock = threading.Lock()  # threads that arrive during an exchange wait here
        self._answers: ShadowDriver | None = None

    def stepped(self, iterations: int) -> None:
        with self._lock:
            if self._answers is not None:
                self._answers.stepped(iterations)
            if self._answers is not None or iterations < self._next:
                return
            self._next += self.k
            began = time.perf_counter()
            with self.stopped():
                self.exchange.once(False)
            self.exchange.statistics.foreground += time.perf_counter() - began

    def idle(self) -> None:
        """Join the other trainers' exchanges in a background thread; they no longer count as sync gaps."""
        if self._answers is None and not math.isinf(self.k):
            self.exchange.statistics.idle = True
            self._answers = ShadowDriver(self.exchange, IDLE_SECONDS)

    def close(self) -> None:
        if self._answers is not None:
            self._answers.close()
            return
        while not self.exchange.once(True):
            pass


class ShadowDriver:
    """Background exchanges every `interval` seconds (infinity: never); the first after the fraction `part` of it."""

    def __init__(self, exchange: ExchangeKind, interval: float, part: float = 1.0) -> None:
        self.exchange = exchange
        self._pause = None if math.isinf(interval) else interval
        self._first = None if self._pause is None else part * interval
        self._leaving = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._leaving.wait(self._first)
            while not self.exchange.once(self._leaving.is_set()):
                self._leaving.wait(self._pause)
        except BaseException as error:  # raised in the compute thread
            self._error = error

    def stepped(self, iterations: int) -> None:
        if self._error is not None:
            raise self._error

    def idle(self) -> None:
        """Do nothing: the background thread continues its exchanges without the compute threads."""

    def close(self) -> None:
        self._leaving.set()
        self._thread.join()
        self.stepped(0)


@dataclass(frozen=True)
class ExchangePace:
    """Pace of exchanges: in the background every `interval` seconds, or in the foreground every `k` local iterations.

    The first one in the background comes after `part` of the interval."""

    shadow: bool = False
    interval: float = math.inf
    k: float = math.inf
    part: float = 1.0

    @classmethod
    def of(
        cls, rule: AveragingRule, shadow: bool, trainers: int, index: int, values: Mapping[str, Any]
    ) -> ExchangePace:
        """Make the pace that a mode's options set for worker `index`; one without a replica never starts an exchange.

        Trainers that exchange with a centre in the background are staggered: those that queue together from the
        first exchange on end together, pause equally long, and queue together ever after."""
        if index >= trainers or (trainers == 1 and rule.idle_alone):
            return cls()
        if not shadow:
            return cls(k=values["k"])
        return cls(True, values["shadow_interval"], part=(index + 1) / trainers if rule.centralised else 1.0)

    def drive(self, exchange: ExchangeKind, stopped: Stopped = nullcontext) -> ExchangeDriver:
        """Start the exchanges of a phase at this pace."""
        return (
            ShadowDriver(exchange, self.interval, self.part)
            if self.shadow
            else ForegroundDriver(exchange, self.k, stopped)
        )

"""When a trainer's exchanges happen: without end in a thread of their own, or every k iterations in the foreground.

The shadow thread costs a core for the time of its passes over the vector and sleeps while it waits for others; the
compute loop never waits for it. It has the scheduling of the compute thread that starts it: where workers share cores,
the same one. A trainer in the foreground that is out of data answers the others from such a thread, too: a batch that a
dead trainer had may still come, and is computed meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from gbactl.replicas.base import Rule
from gbactl.trainer.exchange import Meeting

IDLE_SECONDS = 0.001  # between two exchanges of a trainer without data, who would do nothing else
Stopped = Callable[[], AbstractContextManager[None]]


class Drive(Protocol):
    """What the compute loop sees."""

    def stepped(self, iterations: int) -> None:
        """The trainer has done so many iterations in this phase. Raises what ended the exchanges."""

    def idle(self) -> None:
        """Nothing is left to hand out: answer the others, who may still compute."""

    def close(self) -> None:
        """The phase is closed: answer the others until all leave. Raises what ended the exchanges."""


class Foreground:
    """Every k iterations; the trainer stands still meanwhile: within `stopped()` none of its threads computes."""

    def __init__(self, meeting: Meeting, k: float, stopped: Stopped = nullcontext) -> None:
        self.meeting, self.k, self.stopped = meeting, k, stopped
        self._next = k
        self._lock = threading.Lock()  # whoever comes while another exchanges stands still here
        self._answers: Shadow | None = None

    def stepped(self, iterations: int) -> None:
        """See Drive."""
        with self._lock:
            if self._answers is not None:
                self._answers.stepped(iterations)
            if self._answers is not None or iterations < self._next:
                return
            self._next += self.k
            began = time.perf_counter()
            with self.stopped():
                self.meeting.once(False)
            self.meeting.notes.foreground += time.perf_counter() - began

    def idle(self) -> None:
        """See Drive; what is exchanged from now on is no gap."""
        if self._answers is None and not math.isinf(self.k):
            self.meeting.notes.idle = True
            self._answers = Shadow(self.meeting, IDLE_SECONDS)

    def close(self) -> None:
        """See Drive."""
        if self._answers is not None:
            self._answers.close()
            return
        while not self.meeting.once(True):
            pass


class Shadow:
    """In the background, `interval` seconds after each other, `part` of them before the first; infinity: never."""

    def __init__(self, meeting: Meeting, interval: float, part: float = 1.0) -> None:
        self.meeting = meeting
        self._pause = None if math.isinf(interval) else interval
        self._first = None if self._pause is None else part * interval
        self._leaving = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._leaving.wait(self._first)
            while not self.meeting.once(self._leaving.is_set()):
                self._leaving.wait(self._pause)
        except BaseException as error:  # handed to the compute thread
            self._error = error

    def stepped(self, iterations: int) -> None:
        """See Drive."""
        if self._error is not None:
            raise self._error

    def idle(self) -> None:
        """See Drive: as ever."""

    def close(self) -> None:
        """See Drive."""
        self._leaving.set()
        self._thread.join()
        self.stepped(0)


@dataclass(frozen=True)
class Pace:
    """In the background `interval` seconds after each other (the first after `part` of them), or in the foreground
    every `k` iterations."""

    shadow: bool = False
    interval: float = math.inf
    k: float = math.inf
    part: float = 1.0

    @classmethod
    def of(cls, rule: Rule, shadow: bool, trainers: int, index: int, values: Mapping[str, Any]) -> Pace:
        """What a mode's own keys ask for of worker `index`: one of the trainers, or who only answers them.

        Trainers that come to a centre in the background come one after the other: who shares its line from the
        first exchange on ends together with the others, pauses as long as they do, and meets them there ever after.
        """
        if index >= trainers or (trainers == 1 and rule.idle_alone):
            return cls()
        if not shadow:
            return cls(k=values["k"])
        return cls(True, values["shadow_interval"], part=(index + 1) / trainers if rule.centralised else 1.0)

    def drive(self, meeting: Meeting, stopped: Stopped = nullcontext) -> Drive:
        """One for a phase."""
        return Shadow(meeting, self.interval, self.part) if self.shadow else Foreground(meeting, self.k, stopped)

"""Who is silent, on a clock that a test turns."""

from __future__ import annotations

from typing import Any, cast

from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.wire.channel import Channel
from gbactl.wire.messages import Ping, Pong


class Workers:
    """Two workers; those in `deaf` answer nothing. `sent` counts what they were asked."""

    def __init__(self, patience: float = 4.0) -> None:
        self.now, self.sent, self.deaf = 0.0, 0, set[int]()
        self.beat = Heartbeat(patience, lambda: self.now)
        self.channels = {index: cast(Channel, Ear(self, index)) for index in range(2)}

    def passes(self, seconds: float, step: float = 0.25) -> list[int]:
        """Look every `step` seconds; who was missed."""
        gone: list[int] = []
        for _ in range(round(seconds / step)):
            self.now += step
            for worker in self.beat.silent(self.channels) if self.beat.due else ():
                gone.append(worker)
                del self.channels[worker]
        return gone


class Ear:
    """A worker's channel."""

    def __init__(self, workers: Workers, index: int) -> None:
        self.workers, self.index = workers, index

    def send(self, message: Any) -> None:
        assert isinstance(message, Ping)
        self.workers.sent += 1
        if self.index not in self.workers.deaf:
            self.workers.beat.answered(Pong(self.index, message.beat))


def test_who_answers_lives() -> None:
    workers = Workers()
    assert workers.passes(60.0) == []
    assert workers.sent == 2 * 60


def test_who_is_silent_for_too_long_is_missed_once() -> None:
    workers = Workers()
    workers.passes(10.0)
    workers.deaf = {1}
    assert workers.passes(2.75) == []  # the last answer was up to a beat before
    assert workers.passes(2.0) == [1]
    assert workers.passes(20.0) == []


def test_a_coordinator_that_was_away_does_not_take_everybody_for_dead() -> None:
    workers = Workers()
    workers.passes(10.0)
    workers.deaf = {0, 1}  # answers are there, but nobody has read them
    assert workers.passes(30.0, step=30.0) == []
    workers.deaf = set()
    assert workers.passes(5.0) == []


def test_a_successor_begins_anew() -> None:
    workers = Workers()
    workers.passes(3.0)
    workers.deaf = {1}
    workers.passes(3.0)
    del workers.channels[1]
    workers.passes(0.5)
    workers.deaf = set()
    workers.channels[1] = cast(Channel, Ear(workers, 1))
    assert workers.passes(10.0) == []


def test_a_short_patience_has_a_short_beat() -> None:
    workers = Workers(patience=0.4)
    workers.deaf = {0}
    assert workers.passes(0.6, step=0.05) == [0]

"""Nodes of a cluster of threads that die at a message."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.state import JOURNAL_FILE
from gbactl.server.shard_server import Server
from gbactl.wire.messages import KIND
from gbactl.worker.client import WorkerClient
from tests.support.in_memory import MemoryChannel
from tests.support.memory_cluster import Killed


class Victim:
    """A server dies at the `turn`-th message of a kind: before it is handled, or `after`; `lives` times. Not before
    `saved` exists, until which every further message waits for a moment."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], turn: int, index: int = 0, after: bool = False,
        lives: int = 1, saved: Path | None = None,
    ) -> None:  # fmt: skip
        self.deaths = 0
        seen, plain = [0], Server.handle

        def handle(this: Any, channel: Any, frame: Any) -> None:
            due = this.index == index and frame.kind == KIND[kind] and self.deaths < lives
            if due:  # else another server's thread would undo what this one counts
                seen[0] += 1
            early = due and seen[0] >= turn and not (saved is None or saved.exists())
            if early:
                time.sleep(0.1)
            if not due or seen[0] < turn or early:
                plain(this, channel, frame)
                return
            self.deaths, seen[0] = self.deaths + 1, 0
            if after:
                plain(this, channel, frame)
            raise Killed

        monkeypatch.setattr(Server, "handle", handle)


class Orphaned:
    """The coordinator dies when it is about to send its `later`-th message since it sent one of a kind; with more of
    them each that comes in its place dies as many messages after its first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], *later: int) -> None:
        self.deaths = 0
        plain, seen, one = MemoryChannel.send, [-1], threading.Lock()

        def due(me: Any, message: Any) -> bool:
            if me.role != "coordinator" or not me.incarnation == self.deaths < len(later):
                return False
            seen[0] += isinstance(message, kind) or seen[0] >= 0 or me.incarnation > 0
            if seen[0] != later[me.incarnation]:
                return False
            self.deaths, seen[0] = self.deaths + 1, -1
            return True

        def send(this: Any, message: Any, payload: Any = None) -> None:
            with one:  # every channel of every thread comes here
                killed = due(this._hub.me, message)
            if killed:
                raise Killed
            plain(this, message, payload)

        monkeypatch.setattr(MemoryChannel, "send", send)


class Death:
    """The coordinator dies when it is about to send its `turn`-th message of a kind since it keeps a journal: once for
    every turn, in one life after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_dir: Path, *turns: int, of: Any = object) -> None:
        self.turns, self.deaths = list(turns), 0
        plain, seen, note = MemoryChannel.send, Counter[int](), run_dir / JOURNAL_FILE

        def send(this: Any, message: Any, payload: Any = None) -> None:
            me = this._hub.me
            if me.role == "coordinator" and me.incarnation == self.deaths < len(self.turns):
                seen[me.incarnation] += isinstance(message, of) and note.exists()
                if seen[me.incarnation] == self.turns[me.incarnation]:
                    self.deaths += 1
                    raise Killed
            plain(this, message, payload)

        monkeypatch.setattr(MemoryChannel, "send", send)


class DyingWorker:
    """Worker `index`, in its first life, dies when it pushes for the `turn`-th time: before, half-way, after, or when
    that gradient is announced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, index: int, turn: int, when: str) -> None:
        self.index, self.turn, self.when = index, turn, when
        self.pushes = self.announcements = 0
        self.announced = threading.Event()
        plain, plain_init = WorkerClient.push, WorkerClient.__init__
        first: dict[int, WorkerClient] = {}

        def init(this: Any, *args: Any) -> None:
            plain_init(this, *args)
            first.setdefault(this.index, this)

        def push(this: Any, item: Any, row_gradient: Any, dense: Any) -> None:
            if this.index != self.index or first[self.index] is not this:
                return plain(this, item, row_gradient, dense)
            self.pushes += 1
            if self.pushes == self.turn:
                self.die(this, lambda: plain(this, item, row_gradient, dense))
            else:
                plain(this, item, row_gradient, dense)
            return None

        monkeypatch.setattr(WorkerClient, "__init__", init)
        plain_announce = LivePhase._announce

        def announce(this: Any, parts: Any, samples: int) -> None:
            plain_announce(this, parts, samples)
            self.announcements += parts[0].worker == self.index
            if self.announcements == self.turn:
                self.announced.set()

        monkeypatch.setattr(WorkerClient, "push", push)
        monkeypatch.setattr(LivePhase, "_announce", announce)

    def die(self, exchange: Any, push: Callable[[], None]) -> None:
        if self.when == "half":  # one server learns of it
            exchange.servers[1].send = lambda *_: None
        if self.when != "before":
            push()
        if self.when == "announced":
            assert self.announced.wait(30)
        raise Killed


def dies_when_a_server_is_lost(monkeypatch: pytest.MonkeyPatch, worker: int) -> None:
    """Have a worker die, once, when its connection to a server is lost."""
    plain, died = WorkerClient._on_closed, []

    def closed(this: Any, shard: int | None) -> None:
        plain(this, shard)
        if this.index == worker and not died:
            died.append(1)
            this.hub.close()
            raise Killed

    monkeypatch.setattr(WorkerClient, "_on_closed", closed)

"""Nodes of a cluster of threads that die at a message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.cluster import journal
from gbactl.cluster.memory import MemoryChannel
from gbactl.cluster.messages import KIND
from gbactl.cluster.server import Server
from tests.support.memory_cluster import Killed


class Victim:
    """A server dies at the `turn`-th message of a kind: before it is handled, or `after`; `lives` times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], turn: int, index: int = 0, after: bool = False,
        lives: int = 1,
    ) -> None:  # fmt: skip
        self.deaths = 0
        seen, plain = [0], Server.handle

        def handle(this: Any, channel: Any, frame: Any) -> None:
            due = this.index == index and frame.kind == KIND[kind] and self.deaths < lives
            if due:  # else another server's thread would undo what this one counts
                seen[0] += 1
            if not due or seen[0] < turn:
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
        plain, seen = MemoryChannel.send, [-1]

        def send(this: Any, message: Any, payload: Any = None) -> None:
            me = this._hub.me
            if me.role == "coordinator" and me.epoch == self.deaths < len(later):
                seen[0] += isinstance(message, kind) or seen[0] >= 0 or me.epoch > 0
                if seen[0] == later[me.epoch]:
                    self.deaths, seen[0] = self.deaths + 1, -1
                    raise Killed
            plain(this, message, payload)

        monkeypatch.setattr(MemoryChannel, "send", send)


class Death:
    """The coordinator dies when it is about to send its `turn`-th message of a kind since it keeps a journal: once for
    every turn, in one life after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_dir: Path, *turns: int, of: Any = object) -> None:
        self.turns, self.deaths = list(turns), 0
        plain, seen, note = MemoryChannel.send, Counter[int](), run_dir / journal.NAME

        def send(this: Any, message: Any, payload: Any = None) -> None:
            me = this._hub.me
            if me.role == "coordinator" and me.epoch == self.deaths < len(self.turns):
                seen[me.epoch] += isinstance(message, of) and note.exists()
                if seen[me.epoch] == self.turns[me.epoch]:
                    self.deaths += 1
                    raise Killed
            plain(this, message, payload)

        monkeypatch.setattr(MemoryChannel, "send", send)

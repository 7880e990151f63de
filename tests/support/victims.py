"""Servers of an in-memory cluster that die at a message of a kind."""

from __future__ import annotations

from typing import Any

import pytest

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

"""Gradients that a switch did not wait for, and that may still come.

A worker asks for its next batch by announcing one; what was given up is never announced. So the coordinator looks
out for it: when every shard has seen the gradient, its worker is free. One dictionary entry a batch given up.
"""

from __future__ import annotations

from collections.abc import Iterable

from gbactl.wire.messages import Staged


class AbandonedGradients:
    """`servers`: how many shards see a gradient."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self._seen: dict[tuple[int, int], tuple[int, set[int]]] = {}

    def add(self, phase: int, given_up: Iterable[tuple[int, int, set[int]]]) -> None:
        """(worker, batch, shards that have seen it) of gradients of a phase that nobody waits for."""
        for worker, batch, seen in given_up:
            self._seen[phase, batch] = (worker, set(seen))

    def by_worker(self) -> dict[int, list[tuple[int, int]]]:
        """(phase, batch) of those that are still to come, for each worker."""
        found: dict[int, list[tuple[int, int]]] = {}
        for key, (owner, _) in self._seen.items():
            found.setdefault(owner, []).append(key)
        return found

    def staged(self, message: Staged) -> bool:
        """A shard has seen a gradient. Whether it was one of these, now seen by all."""
        worker, seen = self._seen.get((message.phase, message.batch), (-1, set[int]()))
        if worker != message.worker:
            return False
        seen.add(message.shard)
        if len(seen) < self.servers:
            return False
        del self._seen[message.phase, message.batch]
        return True

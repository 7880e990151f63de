"""Which parts of announced gradients wait on the shards, and what of them a lost shard takes with it. Pure.

An addition a part: about two microseconds a gradient with two shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gbactl.checkpoint.updates import UpdateCounter


class Parts:
    """Of one phase. `missed(shard, samples)` hears of a part that is not applied, because its shard was lost."""

    def __init__(self, updates: UpdateCounter, missed: Callable[[int, int], None]) -> None:
        self.updates, self.missed = updates, missed
        self._rows: dict[int, list[int]] = {}

    def announced(self, batch: int, rows: Sequence[int]) -> None:
        """A gradient's part on each shard has so many rows; ~rows where it went to a server that is gone."""
        self._rows[batch] = list(rows)

    def applied(self, batch: int, samples: int, weight: float) -> None:
        """A gradient is in a step that was ordered."""
        rows = self._rows.pop(batch, ())
        for shard, count in enumerate(rows if weight > 0 else ()):
            if count >= 0:
                self.updates.applied(shard, count)
            else:
                self.updates.missed(shard, ~count)
                self.missed(shard, samples)

    def dropped(self, batch: int) -> None:
        """A gradient was discarded."""
        self._rows.pop(batch, None)

    def gone(self, shard: int) -> None:
        """A shard's server is gone, and with it what had not been applied."""
        for rows in self._rows.values():
            rows[shard] = min(rows[shard], ~rows[shard])

    @property
    def waiting(self) -> list[int]:
        """Batches announced whose fate is open."""
        return list(self._rows)

"""Which parts of announced gradients wait on the shards, and what of them a lost shard takes with it. Pure.

An addition a part: about two microseconds a gradient with two shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Parts:
    """Of one phase. `hit(shard, rows)` hears of a part that is applied, `missed(shard, samples, rows)` of one that is
    not, because its shard was lost."""

    def __init__(self, hit: Callable[[int, int], None], missed: Callable[[int, int, int], None]) -> None:
        self.hit, self.missed = hit, missed
        self._rows: dict[int, list[int]] = {}

    def announced(self, batch: int, rows: Sequence[int]) -> None:
        """A gradient's part on each shard has so many rows; ~rows where it went to a server that is gone."""
        self._rows[batch] = list(rows)

    def applied(self, batch: int, samples: int, weight: float) -> None:
        """A gradient is in a step that was ordered."""
        rows = self._rows.pop(batch, ())
        for shard, count in enumerate(rows if weight > 0 else ()):
            if count >= 0:
                self.hit(shard, count)
            else:
                self.missed(shard, samples, ~count)

    def dropped(self, batch: int) -> None:
        """A gradient was discarded."""
        self._rows.pop(batch, None)

    def gone(self, shard: int) -> None:
        """A shard's server is gone, and with it what had not been applied."""
        for rows in self._rows.values():
            rows[shard] = min(rows[shard], ~rows[shard])

    @contextmanager
    def held(self) -> Iterator[list[tuple[Callable[..., None], tuple[int, ...]]]]:
        """Inside, what `hit` and `missed` are to hear of is kept in the list; they hear of what is left of it after."""
        kept: list[tuple[Callable[..., None], tuple[int, ...]]] = []
        hit, missed = self.hit, self.missed
        self.hit, self.missed = lambda *told: kept.append((hit, told)), lambda *told: kept.append((missed, told))
        yield kept
        self.hit, self.missed = hit, missed
        for hear, told in kept:
            hear(*told)

    @property
    def waiting(self) -> list[int]:
        """Batches announced whose fate is open."""
        return list(self._rows)

"""What a shard that is lost does not have any more: samples and updates of rows since what is saved of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gbactl.checkpoint.pls import PlsCounter
from gbactl.checkpoint.row_updates import UpdateCounter

MOST_SAVES = 256  # remembered: more than stay on the disk


class Loss(NamedTuple):
    """One loss: samples since that shard's checkpoint, the PLS they make, and the updates of rows undone."""

    samples: int
    pls: float
    updates: int


@dataclass
class UnsavedWork:
    """What the shards of a job would lose now; `saves`: (step, samples with a fate) of the newest checkpoints."""

    pls: PlsCounter
    updates: UpdateCounter
    saves: list[tuple[int, int]]

    @classmethod
    def begin(cls, samples: int, shards: int, step: int = -1, finished: int = 0) -> UnsavedWork:
        """Count for a job of `samples` on `shards`, from `step` (below 0: no checkpoint) and `finished` samples on."""
        pls = PlsCounter(samples, shards)
        pls.saved(finished)
        return cls(pls, UpdateCounter(shards), [(step, finished)])

    def saved(self, step: int, samples: int | None, updates: Mapping[int, int]) -> None:
        """A checkpoint of a step is complete, with so many updates of each shard's rows that were not saved before.

        `samples` had a fate then; None where it has chosen rows alone, which PLS does not count."""
        if samples is not None:
            self.pls.saved(samples)
        self.saves.append((step, self.saves[-1][1] if samples is None else samples))
        del self.saves[:-MOST_SAVES]
        for shard, count in updates.items():
            self.updates.saved(shard, count)

    def lost(self, shard: int, finished: int) -> Loss:
        """A shard goes back alone when `finished` samples have a fate."""
        samples = max(0, finished - self.pls.saved_at[shard])
        return Loss(samples, self.pls.lost(shard, finished), self.updates.lost(shard))

    def older(self, shard: int, step: int) -> Loss:
        """More, as it could load no newer checkpoint than that of `step`; updates in it are not known."""
        found = [samples for at, samples in self.saves if at == step]
        more = max(0, self.saves[-1][1] - found[-1]) if found else 0
        return Loss(more, self.pls.missed(shard, more), 0)

    def missed(self, shard: int, samples: int, updates: int) -> Loss:
        """A gradient's part, of so many rows, never came to a shard, which was lost before."""
        self.updates.missed(shard, updates)
        return Loss(samples, self.pls.missed(shard, samples), updates)

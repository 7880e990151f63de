"""What losses and saves cost a job, counted as they happen (following the idea of CPR). Pure.

Samples: the portion of lost samples (PLS), exactly, per shard. Updates: one is one row of one gradient, of weight above
0, applied. Where rows are saved at different times, each is undone back to its own last save, and a counter a row (4
bytes) knows how many that are. Seconds: by part, as the equations have them; all is charged as blocking, as nobody
trains meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint.plan import Costs

MOST_SAVES = 256  # remembered: more than stay on the disk
PARTS = ("saving", "loading", "rescheduling", "again")


@dataclass
class PlsCounter:
    """The portion of lost samples by shard: `samples` of the whole job, `shards` of the table.

    Samples are told as finished so far in the job.

    `saved_at`: of each shard, samples finished when it was saved last; `of`: each one's portion."""

    samples: int
    shards: int
    saved_at: list[int] = field(default_factory=list)
    of: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples = max(1, self.samples)
        self.saved_at = self.saved_at or [0] * self.shards
        self.of = self.of or [0.0] * self.shards

    def saved(self, at: int) -> None:
        """A checkpoint of every shard is complete, taken when `at` samples were finished."""
        self.saved_at = [max(at, before) for before in self.saved_at]

    def lost(self, shard: int, at: int) -> float:
        """A shard went back to its checkpoint at `at` samples: what the PLS grows by, (samples since) / (samples N).

        From then on it counts from here: what was lost is lost once."""
        grown = max(0, at - self.saved_at[shard]) / (self.samples * self.shards)
        self.of[shard] += grown
        self.saved_at[shard] = max(at, self.saved_at[shard])
        return grown

    def missed(self, shard: int, samples: int) -> float:
        """The shard's part of gradients of so many samples never came, as it was lost before: what the PLS grows by."""
        grown = samples / (self.samples * self.shards)
        self.of[shard] += grown
        return grown

    @property
    def total(self) -> float:
        """Of all shards together."""
        return sum(self.of)


@dataclass
class UpdateCounter:
    """Updates of rows of a whole job, by shard; `pending`: not saved yet. O(1) a call."""

    shards: int
    applied_on: list[int] = field(default_factory=list)
    lost_on: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.applied_on = self.applied_on or [0] * self.shards
        self.lost_on = self.lost_on or [0] * self.shards
        self.pending = self.pending or [0] * self.shards

    def applied(self, shard: int, updates: int) -> None:
        """A shard has applied so many."""
        self.applied_on[shard] += updates
        self.pending[shard] += updates

    @property
    def unsaved(self) -> list[int]:
        """Of each shard: those that would be undone now."""
        return list(self.pending)

    def saved(self, shard: int, updates: int) -> None:
        """So many of those that were not saved before are on the disk now."""
        self.pending[shard] = max(0, self.pending[shard] - updates)

    def lost(self, shard: int) -> int:
        """A shard went back to what is saved: how many were undone. What was lost is lost once."""
        undone, self.pending[shard] = self.pending[shard], 0
        self.lost_on[shard] += undone
        return undone

    def again(self) -> None:
        """Every shard went back, and what was not saved, or missed, is done again: it counts once."""
        for shard, undone in enumerate(self.pending):
            self.applied_on[shard] -= undone + self.lost_on[shard]
            self.pending[shard] = self.lost_on[shard] = 0

    def missed(self, shard: int, updates: int) -> None:
        """So many went to a shard that was lost before it had applied them, and never come."""
        self.applied_on[shard] += updates
        self.lost_on[shard] += updates

    @property
    def total(self) -> int:
        """All that were applied, or would have been."""
        return sum(self.applied_on)

    @property
    def total_lost(self) -> int:
        """Of these, those undone or missed."""
        return sum(self.lost_on)

    @property
    def share(self) -> float:
        """Lost / all; 0 where there were none."""
        return self.total_lost / self.total if self.total else 0.0


class RowUpdates:
    """Updates of each of a shard's `rows` since it was saved: uint32[rows]."""

    def __init__(self, rows: int) -> None:
        self.counts: NDArray[Any] = np.zeros(rows, np.uint32)

    def touched(self, index: NDArray[np.int32]) -> None:
        """A gradient of weight above 0 is applied to rows `index` int32[n], distinct."""
        self.counts[index] += np.uint32(1)

    def saved(self, index: NDArray[np.int32] | Sequence[int] | None = None) -> int:
        """These rows (None: all) are saved as they are now: how many updates are safe with them."""
        which: Any = slice(None) if index is None else index
        safe = int(self.counts[which].sum(dtype=np.uint64))
        self.counts[which] = 0
        return safe


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


@dataclass
class Spent:
    """Seconds of each part, in the unit of the costs. `again`: what was trained, undone and trained once more, of
    which so many `samples`."""

    saving: float = 0.0
    loading: float = 0.0
    rescheduling: float = 0.0
    again: float = 0.0
    samples: int = 0
    alone: int = 0
    everybody: int = 0

    @property
    def total(self) -> float:
        """All parts together."""
        return self.saving + self.loading + self.rescheduling + self.again

    def save(self, costs: Costs, part: float) -> float:
        """A `part` of everything is saved; returns the seconds that it takes."""
        seconds = costs.save * part
        self.saving += seconds
        return seconds

    def one_back(self, costs: Costs) -> float:
        """A lost server alone goes back; returns the seconds until it is there again."""
        self.alone += 1
        return self._returned(costs.load / costs.servers, costs.reschedule)

    def all_back(self, costs: Costs, again: float, samples: int) -> float:
        """Everybody goes back, and `again` seconds of training, `samples` in all, are to be done once more; returns
        the seconds until everybody is there again."""
        self.everybody += 1
        self.again += again
        self.samples += samples
        return self._returned(costs.load, costs.reschedule)

    def _returned(self, load: float, reschedule: float) -> float:
        self.loading += load
        self.rescheduling += reschedule
        return load + reschedule

    def told(self, seconds: float) -> dict[str, Any]:
        """For result.json; `seconds`: of the whole job. Shares are of the job without all this, T of the equations."""
        job = seconds - self.total
        shares = {part: getattr(self, part) / job if job > 0 else 0.0 for part in PARTS}
        return {
            "job_seconds": job, **{f"{part}_seconds": getattr(self, part) for part in PARTS},
            **shares, "total": sum(shares.values()),
            "samples_rolled_back": self.samples, "went_back_alone": self.alone, "everybody_went_back": self.everybody,
        }  # fmt: skip

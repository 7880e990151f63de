"""Counters of what server failures and saves cost a job. Pure.

The counters follow the idea of CPR and cover three kinds of cost. In samples: the exact portion of lost samples (PLS)
of each shard. In row updates: a row counts once for each applied gradient of weight above 0 that carries it. Where rows
are saved at different times, each row goes back to its own last save; the servers count the updates that this undoes
(server/checkpoint_writer.py). In seconds: each kind of cost in the equations, as if it stopped all training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gbactl.checkpoint.costs_and_interval import JobCosts

MOST_SAVES = 256  # newest checkpoints that UnsavedWork remembers: more than are kept on disk
PARTS = ("saving", "loading", "rescheduling", "again")


@dataclass
class PlsCounter:
    """Portion of lost samples (PLS) of each of `shards` shards in a job that trains on `samples` samples.

    Every `at` is a number of samples finished so far in the job. `saved_at`: for each shard, samples finished at its
    last save; `of`: each shard's PLS."""

    samples: int
    shards: int
    saved_at: list[int] = field(default_factory=list)
    of: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples = max(1, self.samples)
        self.saved_at = self.saved_at or [0] * self.shards
        self.of = self.of or [0.0] * self.shards

    def record_save(self, at: int) -> None:
        """Record a complete checkpoint of all shards, taken when the job had finished `at` samples."""
        self.saved_at = [max(at, before) for before in self.saved_at]

    def count_lost(self, shard: int, at: int) -> float:
        """Count a shard's return to its checkpoint after `at` finished samples; return the increase of the PLS.

        That is (samples since the save) / (samples N). The next count begins at `at`, so that a sample is lost
        only once."""
        grown = max(0, at - self.saved_at[shard]) / (self.samples * self.shards)
        self.of[shard] += grown
        self.saved_at[shard] = max(at, self.saved_at[shard])
        return grown

    def count_missed(self, shard: int, samples: int) -> float:
        """Count `samples` samples whose gradient slices a failed shard never applied; return the PLS's increase."""
        grown = samples / (self.samples * self.shards)
        self.of[shard] += grown
        return grown

    @property
    def total(self) -> float:
        """Portion of lost samples (PLS), summed over all shards."""
        return sum(self.of)


@dataclass
class UpdateCounter:
    """Row updates of a whole job, by shard: applied, lost, and `pending` (applied since the last save)."""

    shards: int
    applied_on: list[int] = field(default_factory=list)
    lost_on: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.applied_on = self.applied_on or [0] * self.shards
        self.lost_on = self.lost_on or [0] * self.shards
        self.pending = self.pending or [0] * self.shards

    def count_applied(self, shard: int, updates: int) -> None:
        """Count row updates that a shard has applied and not saved yet."""
        self.applied_on[shard] += updates
        self.pending[shard] += updates

    def count_saved(self, shard: int, updates: int) -> None:
        """Count `updates` unsaved row updates of a shard as saved."""
        self.pending[shard] = max(0, self.pending[shard] - updates)

    def count_lost(self, shard: int) -> int:
        """Count a shard's unsaved row updates as lost when it reloads its checkpoint; return their number."""
        undone, self.pending[shard] = self.pending[shard], 0
        self.lost_on[shard] += undone
        return undone

    def drop_repeated(self) -> None:
        """Remove unsaved and lost row updates from the counts; after a full recovery training repeats them."""
        for shard, undone in enumerate(self.pending):
            self.applied_on[shard] -= undone + self.lost_on[shard]
            self.pending[shard] = self.lost_on[shard] = 0

    def count_missed(self, shard: int, updates: int) -> None:
        """Count as lost the row updates that a failed shard never applied."""
        self.applied_on[shard] += updates
        self.lost_on[shard] += updates

    @property
    def total(self) -> int:
        """Number of row updates of all shards, including those never applied."""
        return sum(self.applied_on)

    @property
    def total_lost(self) -> int:
        """Number of lost row updates of all shards."""
        return sum(self.lost_on)

    @property
    def share(self) -> float:
        """Share of row updates that were lost; 0 if there were no updates."""
        return self.total_lost / self.total if self.total else 0.0


class ServerFailureLoss(NamedTuple):
    """Loss at one server failure: samples since the shard's checkpoint, their PLS, and row updates."""

    samples: int
    pls: float
    updates: int


@dataclass
class UnsavedWork:
    """Work that a server failure would lose now; `saves`: (step, finished samples) of the newest checkpoints."""

    pls: PlsCounter
    updates: UpdateCounter
    saves: list[tuple[int, int]]

    @classmethod
    def begin(cls, samples: int, shards: int, step: int = -1, finished: int = 0) -> UnsavedWork:
        """Start counting for a job of `samples` samples on `shards` shards.

        `step`: global step of its checkpoint (below 0: none). `finished`: samples finished then."""
        pls = PlsCounter(samples, shards)
        pls.record_save(finished)
        return cls(pls, UpdateCounter(shards), [(step, finished)])

    def record_save(self, step: int, samples: int | None, updates: Mapping[int, int]) -> None:
        """Record a complete checkpoint of step `step`; `updates`: row updates that it saved, by shard.

        `samples` were finished then; None for a checkpoint of chosen rows alone, which PLS does not count."""
        if samples is not None:
            self.pls.record_save(samples)
        self.saves.append((step, self.saves[-1][1] if samples is None else samples))
        del self.saves[:-MOST_SAVES]
        for shard, count in updates.items():
            self.updates.count_saved(shard, count)

    def count_lost(self, shard: int, finished: int) -> ServerFailureLoss:
        """Count the loss when one shard alone returns to its checkpoint after `finished` finished samples."""
        samples = max(0, finished - self.pls.saved_at[shard])
        return ServerFailureLoss(samples, self.pls.count_lost(shard, finished), self.updates.count_lost(shard))

    def count_older(self, shard: int, step: int) -> ServerFailureLoss:
        """Count the additional loss of a shard whose newest valid checkpoint is an older one, of step `step`.

        Its row updates are not known."""
        found = [samples for at, samples in self.saves if at == step]
        more = max(0, self.saves[-1][1] - found[-1]) if found else 0
        return ServerFailureLoss(more, self.pls.count_missed(shard, more), 0)

    def count_missed(self, shard: int, samples: int, updates: int) -> ServerFailureLoss:
        """Count the loss of a gradient slice of `updates` rows that a failed shard never received."""
        self.updates.count_missed(shard, updates)
        return ServerFailureLoss(samples, self.pls.count_missed(shard, samples), updates)


@dataclass
class CostSeconds:
    """Time that saves and recoveries cost a job, by kind, in seconds (or the unit of the costs).

    `again`: training that was undone and repeated, of `samples` samples."""

    saving: float = 0.0
    loading: float = 0.0
    rescheduling: float = 0.0
    again: float = 0.0
    samples: int = 0
    alone: int = 0
    everybody: int = 0

    @property
    def total(self) -> float:
        """Sum of all kinds of cost."""
        return self.saving + self.loading + self.rescheduling + self.again

    def save(self, costs: JobCosts, part: float) -> float:
        """Add the cost of saving the fraction `part` of all data; return its seconds."""
        seconds = costs.save * part
        self.saving += seconds
        return seconds

    def add_partial_recovery(self, costs: JobCosts) -> float:
        """Add the cost of a partial recovery (one server); return the seconds until the server is ready."""
        self.alone += 1
        return self._returned(costs.load / costs.servers, costs.reschedule)

    def add_full_recovery(self, costs: JobCosts) -> float:
        """Add the cost of a full recovery (all servers); return the seconds until all servers are ready."""
        self.everybody += 1
        return self._returned(costs.load, costs.reschedule)

    def add_repeated_training(self, seconds: float, samples: int) -> None:
        """Add training that is repeated after a full recovery."""
        self.again += seconds
        self.samples += samples

    def _returned(self, load: float, reschedule: float) -> float:
        self.loading += load
        self.rescheduling += reschedule
        return load + reschedule

    def to_result(self, seconds: float) -> dict[str, Any]:
        """Encode the costs of saves and recoveries for result.json; `seconds`: duration of the whole job.

        Shares are of the job without all these costs, T in the equations."""
        job = seconds - self.total
        shares = {part: getattr(self, part) / job if job > 0 else 0.0 for part in PARTS}
        return {
            "job_seconds": job, **{f"{part}_seconds": getattr(self, part) for part in PARTS},
            **shares, "total": sum(shares.values()),
            "samples_rolled_back": self.samples, "went_back_alone": self.alone, "everybody_went_back": self.everybody,
        }  # fmt: skip

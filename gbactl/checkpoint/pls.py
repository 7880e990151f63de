"""Counts the portion of lost samples (PLS), exactly, per shard (following the idea of CPR). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PlsCounter:
    """`samples` of the whole job, `shards` of the table. Samples are told as finished so far in the job.

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

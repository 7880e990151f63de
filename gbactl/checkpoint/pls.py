"""Counts the portion of lost samples (PLS), exactly, per shard (following the idea of CPR). Pure."""

from __future__ import annotations

from typing import Any


class PlsCounter:
    """`samples` of the whole job, `shards` of the table. Samples are told as finished so far in the job."""

    def __init__(self, samples: int, shards: int) -> None:
        self.samples, self.shards = max(1, samples), shards
        self.saved_at = [0] * shards
        self.of = [0.0] * shards

    def told(self) -> list[list[float]]:
        """As plain containers."""
        return [list(self.saved_at), list(self.of)]

    def restore(self, told: list[list[Any]]) -> None:
        """As it was when that was told."""
        self.saved_at, self.of = (list(each) for each in told)

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

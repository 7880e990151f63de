"""Records that policies work with: phases, grants, members of steps, drops, and sample counts.

Plain frozen records; making one costs about half a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.errors import AccountingError


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase: one mode within one day (or epoch). Batches are numbered in data order; sizes in samples.

    `joiners` train in other phases; here they only join what needs every worker, as `sync`'s all-reduce does.
    `prefetch`: what a worker fetches of its next batch while it computes: none, data (and ids), or rows (and the dense
    part) too."""

    samples: int
    local_batch: int
    global_batch: int
    first_step: int
    workers: tuple[int, ...]
    joiners: tuple[int, ...] = ()
    prefetch: str = "none"

    @property
    def batches(self) -> int:
        """Number of local batches in the phase; the last one may be short."""
        return -(-self.samples // self.local_batch)

    @property
    def ahead(self) -> bool:
        """Whether a worker is told its next batch while it computes another one."""
        return self.prefetch != "none"

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients that make a step: global batch / local batch."""
        return self.global_batch // self.local_batch

    def size(self, batch: int) -> int:
        """Return the number of samples in a batch; 0 past the end of the data."""
        return max(0, min(self.local_batch, self.samples - batch * self.local_batch))


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant: a batch handed out to a worker.

    `after`: the version a shard must have reached before it serves the rows. `divisor`: divisor of the step's sum
    where the worker applies the dense step itself (`sync`), else 0. `progress`: samples
    of the phase finished before the step (`sync`), else 0. A grant of 0 samples only joins the step."""

    batch: int
    token: int
    start: int
    samples: int
    after: int = 0
    divisor: float = 0.0
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """Member of a step: one gradient with its weight (its decay x its share of a full batch).

    `row_weights`, where rows have a staleness of their own: f(s) x n / B for s = 0 .. token staleness."""

    batch: int
    worker: int
    weight: float
    samples: int
    token_staleness: int
    row_weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Optimizer step: every shard applies the members in this order, and then has version step + 1.

    `accepted`: the divisor is the sum of the members' weights, whatever they are."""

    step: int
    members: tuple[Member, ...]
    divisor: float
    accepted: bool = False

    @property
    def weight_sum(self) -> float:
        """Sum of the members' weights, in order."""
        return sum(m.weight for m in self.members)

    def shares(self, local_batch: int) -> tuple[float, ...]:
        """Compute each member's samples / local batch; empty where all are full-sized."""
        if all(m.samples == local_batch for m in self.members):
            return ()
        return tuple(m.samples / local_batch for m in self.members)


@dataclass(frozen=True, slots=True)
class Drop:
    """Discarded gradient, whose samples are lost."""

    batch: int
    samples: int


Decision = Step | Drop


@dataclass(slots=True)
class Ledger:
    """Counts of samples by fate: trained, decayed, lost. `effective` sums weight x samples of applied gradients."""

    read: int = 0
    trained: int = 0
    decayed: int = 0
    lost: int = 0
    effective: float = 0.0

    def settle(self, step: Step) -> None:
        """Count the samples of an applied step as trained or decayed."""
        for member in step.members:
            if member.weight > 0:
                self.trained += member.samples
                self.effective += member.weight * member.samples
            else:
                self.decayed += member.samples

    @property
    def finished(self) -> int:
        """Number of samples with a fate (trained, decayed, lost), from which schedules compute their progress."""
        return self.trained + self.decayed + self.lost

    def check(self) -> None:
        """Check that read = trained + decayed + lost. Raises AccountingError."""
        if self.read != self.finished:
            raise AccountingError(
                f"Samples do not add up: read {self.read} is not trained {self.trained} + decayed "
                f"{self.decayed} + lost {self.lost}; this is a bug, please report the run directory."
            )

    def add(self, other: Ledger) -> None:
        """Add the counts of another phase."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

"""Policies that apply every M gradients in the order in which they are announced."""

from __future__ import annotations

from gbactl.policies.policy import Policy
from gbactl.policies.records import Decision, Grant, Member, Step


class BufferedPolicy(Policy):
    """Policy with a buffer: any worker takes the next batch at once; a step closes at `size` announced gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer: list[Member] = []
        self.size = self.buffer_size()

    def buffer_size(self) -> int:
        """Number of gradients that make a step: M = G / B_a."""
        return self.phase.gradients_per_step

    def factor(self, token_staleness: int) -> float:
        """Weight f(token staleness) of a full-sized gradient: always 1."""
        return 1.0

    @property
    def divides_by_weights(self) -> bool:
        """Whether a step is divided by the sum of its weights instead of the number of its gradients."""
        return False

    def row_factors(self, token_staleness: int) -> tuple[float, ...]:
        """Weights f(0) .. f(token staleness) where rows have a staleness of their own; else empty."""
        return ()

    def take(self, worker: int) -> Grant | None:
        """Grant the next batch in data order, re-issued ones first."""
        if worker not in self.live:
            return None
        fresh = not self.reissue
        batch = self._next()
        if batch is None:
            return None
        start = batch * self.phase.local_batch
        token = self.token(batch if fresh else self.next_batch)
        return self._lease(worker, Grant(batch, token, start, self.phase.size(batch)))

    def batches_of(self, steps: int) -> int:
        """See Policy.batches_of: a step is a full buffer."""
        return steps * self.size

    def token(self, batch: int) -> int:
        """Token of a batch, the global step for which it is handed out: k_0 + i // M."""
        return self.phase.first_step + batch // self.size

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Put the gradient into the buffer; a full buffer makes a step. Duplicates count once."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        staleness = max(0, self.step - grant.token)
        share = grant.samples / self.phase.local_batch
        rows = tuple(factor * share for factor in self.row_factors(staleness))
        self.buffer.append(Member(batch, worker, self.factor(staleness) * share, grant.samples, staleness, rows))
        return [self._close()] if len(self.buffer) == self.size else []

    def finish(self) -> list[Step]:
        """Apply the rest of the buffer as a weighted mean over its members."""
        return [self._close()] if self.buffer else []

    def _close(self) -> Step:
        members, self.buffer = tuple(self.buffer), []
        accepted = self.divides_by_weights or len(members) < self.size
        divisor = sum(m.weight for m in members) if accepted else self._divisor(members)
        return self._emit(Step(self.step, members, divisor, accepted))

    def _divisor(self, members: tuple[Member, ...]) -> float:
        """Divisor of a step: M; with a short batch the sum of n / B."""
        if all(m.samples == self.phase.local_batch for m in members):
            return float(self.size)
        return sum(m.samples / self.phase.local_batch for m in members)

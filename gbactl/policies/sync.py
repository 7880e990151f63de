"""`sync`: all workers together, step by step; dense all-reduce on the workers, rows on the servers."""

from __future__ import annotations

from typing import ClassVar

from gbactl.policies.base import Grant, Member, Policy, Step, register


@register("sync")
class SyncPolicy(Policy):
    """Step s gives the worker at position j batch s * N + j; a step closes when all N are in."""

    dense_on: ClassVar[str] = "workers"
    prefetch_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.width = len(self.phase.workers)
        self.position = {worker: j for j, worker in enumerate(self.phase.workers)}
        self.taken = dict.fromkeys(self.phase.workers, 0)
        self.arrived: dict[int, dict[int, Member]] = {}
        self.steps = -(-self.phase.batches // self.width)

    def take(self, worker: int) -> Grant | None:
        """The worker's batch of its next step; one of 0 samples where the data end mid-step."""
        turn = self.taken[worker]
        if turn >= self.steps:
            return None
        self.taken[worker] += 1
        batch = turn * self.width + self.position[worker]
        samples = self.phase.size(batch)
        step = self.phase.first_step + turn
        grant = Grant(
            batch,
            step,
            batch * self.phase.local_batch,
            samples,
            after=step,
            divisor=self._divisor(turn),
            progress=turn * self.width * self.phase.local_batch,
        )
        self.ledger.read += samples
        return self._lease(worker, grant) if samples else grant

    @property
    def exhausted(self) -> bool:
        """Every worker has taken its batch of the last step."""
        return all(turn >= self.steps for turn in self.taken.values())

    def announce(self, worker: int, batch: int) -> list[Step]:
        """Close the step once every batch of it is in; members stand in batch order."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        weight = grant.samples / self.phase.local_batch
        step = self.arrived.setdefault(grant.token, {})
        step[batch] = Member(batch, worker, weight, grant.samples, 0)
        closed = []
        while len(self.arrived.get(self.step, ())) == self._expected(self.step - self.phase.first_step):
            members = tuple(m for _, m in sorted(self.arrived.pop(self.step).items()))
            turn = self.step - self.phase.first_step
            closed.append(self._emit(Step(self.step, members, self._divisor(turn))))
        return closed

    def _expected(self, turn: int) -> int:
        """Gradients with samples in a step; past the end no count matches."""
        first = turn * self.width
        return min(self.width, self.phase.batches - first) if turn < self.steps else -1

    def _divisor(self, turn: int) -> float:
        """N_s; in the last, partial step the sum of n / B over what is there."""
        first = turn * self.width
        sizes = [self.phase.size(batch) for batch in range(first, first + self.width)]
        if all(size == self.phase.local_batch for size in sizes):
            return float(self.width)
        return sum(size / self.phase.local_batch for size in sizes if size)

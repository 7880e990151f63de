"""Policy of `sync`: all workers step together; dense all-reduce on the workers, rows on the servers."""

from __future__ import annotations

from typing import ClassVar

from gbactl.policies.base import Policy, register
from gbactl.policies.dealing import Dealer
from gbactl.policies.records import Decision, Grant, Member, Step


@register("sync", 0)
class SyncPolicy(Policy):
    """Policy of `sync`: step s gives the worker at position j batch s * N + j; it closes when all N have arrived.

    A failed worker's batches are dealt to those left, some of which do two; the divisor stays N."""

    home: ClassVar[str] = "workers"
    collective: ClassVar[bool] = True
    in_step: ClassVar[bool] = True
    prefetch_rows: ClassVar[bool] = False
    forgoes: ClassVar[bool] = False  # an all-reduce waits for every worker

    def __post_init__(self) -> None:
        super().__post_init__()
        self.width = len(self.phase.workers)
        self.dealer = Dealer(self.phase.workers, self.phase.batches, self.phase.joiners)
        self.arrived: dict[int, dict[int, Member]] = {}

    def take(self, worker: int) -> Grant | None:
        """Grant the worker its batch of its next step; one of 0 samples where none is left for it."""
        card = self.dealer.next(worker)
        if card is None:
            return None
        samples = self.phase.size(card.batch)
        step = self.phase.first_step + card.turn
        grant = Grant(
            card.batch,
            step,
            card.batch * self.phase.local_batch,
            samples,
            after=step,
            divisor=self._divisor(card.turn),
            progress=card.turn * self.width * self.phase.local_batch,
        )
        self.ledger.read += samples if card.fresh else 0
        return self._lease(worker, grant) if samples else grant

    def stop(self, batch: int = 0) -> None:
        """End the phase with the step that `batch` would begin, or with those that some worker has begun."""
        turns = max(-(-batch // self.width), self.dealer.reached)
        super().stop(turns * self.width)
        self.dealer.end(turns, self.phase.batches)

    def _last_batch(self, batch: int) -> int:
        return batch

    def batches_of(self, steps: int) -> int:
        """See Policy.batches_of: a step has a batch of every worker."""
        return steps * self.width

    @property
    def exhausted(self) -> bool:
        """Whether every live worker has taken its batches of the last step."""
        return self.dealer.empty

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Close the step once all its batches have arrived; members are in batch order."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        weight = grant.samples / self.phase.local_batch
        step = self.arrived.setdefault(grant.token, {})
        step[batch] = Member(batch, worker, weight, grant.samples, 0)
        closed: list[Decision] = []
        while len(self.arrived.get(self.step, ())) == self._expected(self.step - self.phase.first_step):
            members = tuple(m for _, m in sorted(self.arrived.pop(self.step).items()))
            turn = self.step - self.phase.first_step
            closed.append(self._emit(Step(self.step, members, self._divisor(turn))))
        return closed

    def lost_worker(self, worker: int) -> list[int]:
        """See Policy.lost_worker; batches that the failed worker had yet to take are dealt, too."""
        back = super().lost_worker(worker)
        self.reissue.clear()
        self.dealer.lose(worker, back)
        return back

    def owes(self, worker: int) -> bool:
        """See Policy.owes: a failed worker's batches of the steps that this one has begun."""
        return self.dealer.owes(worker)

    def joined_worker(self, worker: int) -> None:
        """See Policy.joined_worker; the worker shares the steps that no worker has begun."""
        super().joined_worker(worker)
        self.dealer.join(worker)

    def _expected(self, turn: int) -> int:
        """Number of gradients with samples in a step; -1 past the end."""
        first = turn * self.width
        return min(self.width, self.phase.batches - first) if first < self.phase.batches else -1

    def _divisor(self, turn: int) -> float:
        """Divisor of a step: N_s; in the last, partial step the sum of n / B of its batches."""
        first = turn * self.width
        if (first + self.width) * self.phase.local_batch <= self.phase.samples:
            return float(self.width)
        sizes = [self.phase.size(batch) for batch in range(first, first + self.width)]
        return sum(size / self.phase.local_batch for size in sizes if size)

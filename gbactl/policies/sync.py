"""Policy of `sync`: all workers step together, with a dense all-reduce on the workers and the rows on the servers.

Dealer decides which worker computes which local batch of which step. Step s of the phase has `width` batches, from
batch s * width on. Without failures the worker at position j has batch j of every step; a failed worker's batches are
dealt to those left. A batch costs O(1), a worker's loss an operation for each batch that the worker leaves behind.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from gbactl.policies.policy import Decision, Grant, Member, Policy, Step


class DealtBatch(NamedTuple):
    """Batch assigned to a worker; `phase_step`: number of the step within the phase that the batch belongs to.

    `fresh`: it was not handed out before."""

    batch: int
    phase_step: int
    fresh: bool


class DealRing(NamedTuple):
    """Workers that share the batches of step `phase_step` of the phase and of all later steps, with their positions."""

    phase_step: int
    positions: dict[int, int]


class Dealer:
    """Assignment of a phase's batches to workers; every step of the phase has `width` batches.

    `joiners` also take part in every step, but get no batches."""

    def __init__(self, workers: tuple[int, ...], batches: int, joiners: tuple[int, ...] = ()) -> None:
        self.width, self.batches = len(workers), batches
        self.steps = -(-batches // self.width)
        self.steps_begun = 0  # steps that some worker has begun
        self._next_step = dict.fromkeys((*workers, *joiners), 0)
        self._assigned: dict[int, list[DealtBatch]] = {worker: [] for worker in self._next_step}
        self._unassigned: list[DealtBatch] = []
        self._pending = 0
        self._workers_behind = len(self._next_step) if self.steps else 0
        self._rings = [DealRing(0, {worker: position for position, worker in enumerate(workers)})]

    @property
    def exhausted(self) -> bool:
        """Whether every batch was handed out, and every live worker has begun the phase's last step."""
        return (
            self._workers_behind == 0
            and self._pending == 0
            and (bool(self._next_step) or self.steps_begun >= self.steps)
        )

    def next(self, worker: int) -> DealtBatch | None:
        """Remove and return a worker's next batch, earlier steps first; None if the worker has none left.

        Its batch lies past the end where the worker only joins in."""
        step, assigned = self._next_step.get(worker), self._assigned.get(worker)
        if step is None or assigned is None:
            return None
        if assigned and assigned[0].phase_step <= step:
            self._pending -= 1
            return heappop(assigned)
        if step >= self.steps:
            return None
        self._begin(worker, step)
        share = self._share(worker, step)
        if not share:
            position = self._ring(step).positions.get(worker, worker)
            return DealtBatch(max(self.batches, step * self.width + position), step, True)
        self._give(worker, share[1:])
        return share[0]

    def owes_batch(self, worker: int) -> bool:
        """Whether a worker still has to be handed a batch of a step that it has already begun."""
        assigned = self._assigned.get(worker)
        return bool(assigned and assigned[0].phase_step < self._next_step[worker])

    def lose(self, worker: int, leased: list[int]) -> None:
        """Reassign a failed worker's batches: leased, not yet granted, or due to it in steps that others have begun."""
        step = self._next_step.pop(worker, None)
        if step is None:
            return
        assigned = self._assigned.pop(worker)
        self._pending -= len(assigned)
        self._workers_behind -= step < self.steps
        owed = [DealtBatch(batch, batch // self.width, False) for batch in leased]
        owed += assigned + [dealt for later in range(step, self.steps_begun) for dealt in self._share(worker, later)]
        self._deal(owed)

    def join(self, worker: int) -> None:
        """Add a worker, which takes part in the steps not begun yet; deal out batches that had no live worker."""
        if worker in self._next_step:
            return
        self._next_step[worker], self._assigned[worker] = self.steps_begun, []
        self._workers_behind += self.steps_begun < self.steps
        unassigned, self._unassigned = self._unassigned, []
        self._pending -= len(unassigned)
        self._deal(unassigned)

    def end(self, steps: int, batches: int) -> None:
        """Shorten the phase to `steps` steps and `batches` batches, but keep the steps that some worker has begun."""
        self.steps, self.batches = min(self.steps, max(steps, self.steps_begun)), min(self.batches, batches)
        self._workers_behind = sum(step < self.steps for step in self._next_step.values())

    def _begin(self, worker: int, step: int) -> None:
        self._next_step[worker] = step + 1
        self._workers_behind -= step + 1 == self.steps
        self.steps_begun = max(self.steps_begun, step + 1)

    def _share(self, worker: int, step: int) -> list[DealtBatch]:
        """List the batches of step `step` of the phase that are a worker's own share, within the data."""
        positions = self._ring(step).positions
        first, end = step * self.width, min((step + 1) * self.width, self.batches)
        if worker not in positions:
            return []
        return [DealtBatch(batch, step, True) for batch in range(first + positions[worker], end, len(positions))]

    def _ring(self, step: int) -> DealRing:
        return next(ring for ring in reversed(self._rings) if ring.phase_step <= step)

    def _deal(self, batches: list[DealtBatch]) -> None:
        """Distribute a failed worker's batches over the live workers, which also share all steps not begun yet."""
        live = sorted(self._next_step)
        if not live:
            self._unassigned += batches
            self._pending += len(batches)
            return
        self._rings.append(DealRing(self.steps_begun, {worker: position for position, worker in enumerate(live)}))
        for number, dealt in enumerate(sorted(batches)):
            self._give(live[number % len(live)], [dealt])

    def _give(self, worker: int, batches: list[DealtBatch]) -> None:
        self._pending += len(batches)
        for dealt in batches:
            heappush(self._assigned[worker], dealt)


class SyncPolicy(Policy):
    """Policy of `sync`: every worker computes one batch of every step, which closes when all have arrived.

    With N workers at first, the worker at position j has batch s * N + j of step s. A failed worker's batches are
    dealt to those left, some of which do two; the divisor stays N."""

    number: ClassVar[int | None] = 0
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
        """Grant a worker its batch of its next step; an empty one (0 samples) if no data is left for the worker."""
        dealt = self.dealer.next(worker)
        if dealt is None:
            return None
        samples = self.phase.size(dealt.batch)
        step = self.phase.first_step + dealt.phase_step
        grant = Grant(
            dealt.batch,
            step,
            dealt.batch * self.phase.local_batch,
            samples,
            after=step,
            divisor=self._divisor(dealt.phase_step),
            progress=dealt.phase_step * self.width * self.phase.local_batch,
        )
        self.ledger.read += samples if dealt.fresh else 0
        return self._lease(worker, grant) if samples else grant

    def stop(self, batch: int = 0) -> None:
        """End the phase at `batch`, rounded up to whole steps, or after the last step that some worker has begun."""
        steps = max(-(-batch // self.width), self.dealer.steps_begun)
        super().stop(steps * self.width)
        self.dealer.end(steps, self.phase.batches)

    def _last_batch(self, batch: int) -> int:
        return batch

    def batches_of(self, steps: int) -> int:
        """Compute the number of batches that make `steps` steps, of one batch per worker."""
        return steps * self.width

    @property
    def exhausted(self) -> bool:
        """Whether every live worker was granted its batches of the last step."""
        return self.dealer.exhausted

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Record a gradient, and close the step once all its batches have arrived; members are in batch order."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        weight = grant.samples / self.phase.local_batch
        step = self.arrived.setdefault(grant.token, {})
        step[batch] = Member(batch, worker, weight, grant.samples, 0)
        closed: list[Decision] = []
        while len(self.arrived.get(self.step, ())) == self._expected(self.step - self.phase.first_step):
            members = tuple(m for _, m in sorted(self.arrived.pop(self.step).items()))
            phase_step = self.step - self.phase.first_step
            closed.append(self._emit(Step(self.step, members, self._divisor(phase_step))))
        return closed

    def lost_worker(self, worker: int) -> list[int]:
        """Reassign a failed worker's batches: those not finished, and those not yet granted to it."""
        back = super().lost_worker(worker)
        self.reissue.clear()
        self.dealer.lose(worker, back)
        return back

    def owes_batch(self, worker: int) -> bool:
        """Whether a worker was assigned a failed worker's batch of a step that it has already begun."""
        return self.dealer.owes_batch(worker)

    def joined_worker(self, worker: int) -> None:
        """Add a worker, which takes part in the steps that no worker has begun."""
        super().joined_worker(worker)
        self.dealer.join(worker)

    def _expected(self, phase_step: int) -> int:
        """Compute the number of non-empty gradients in a step; -1 past the last step."""
        first = phase_step * self.width
        return min(self.width, self.phase.batches - first) if first < self.phase.batches else -1

    def _divisor(self, phase_step: int) -> float:
        """Compute the divisor of a step: its number of batches; a short batch counts as samples / local batch."""
        first = phase_step * self.width
        if (first + self.width) * self.phase.local_batch <= self.phase.samples:
            return float(self.width)
        sizes = [self.phase.size(batch) for batch in range(first, first + self.width)]
        return sum(size / self.phase.local_batch for size in sizes if size)

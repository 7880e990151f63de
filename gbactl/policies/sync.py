"""Policy of `sync`: all workers step together, with a dense all-reduce on the workers and the rows on the servers.

Dealer decides which worker computes which local batch of which step. Turn t has the `width` batches from t * width on.
Without failures the worker at position j has batch j of every turn; a failed worker's batches are dealt to those left.
O(1) a batch; a loss costs the batches left behind.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from gbactl.policies.policy import Decision, Grant, Member, Policy, Step


class DealtBatch(NamedTuple):
    """Batch assigned to a worker; `turn`: number of the step within the phase that the batch belongs to.

    `fresh`: it was not handed out before."""

    batch: int
    turn: int
    fresh: bool


class DealRing(NamedTuple):
    """Workers that share the batches of step `turn` of the phase and of all later steps, with their positions."""

    turn: int
    places: dict[int, int]


class Dealer:
    """Assignment of a phase's batches to workers; every step of the phase (a turn) has `width` batches.

    `joiners` also take part in every step, but get no batches."""

    def __init__(self, workers: tuple[int, ...], batches: int, joiners: tuple[int, ...] = ()) -> None:
        self.width, self.batches = len(workers), batches
        self.turns = -(-batches // self.width)
        self.reached = 0  # turns that some worker has begun
        self._turn = dict.fromkeys((*workers, *joiners), 0)
        self._hands: dict[int, list[DealtBatch]] = {worker: [] for worker in self._turn}
        self._orphans: list[DealtBatch] = []
        self._held = 0
        self._behind = len(self._turn) if self.turns else 0
        self._rings = [DealRing(0, {worker: place for place, worker in enumerate(workers)})]

    @property
    def exhausted(self) -> bool:
        """Whether every batch was handed out, and every live worker has begun the phase's last step."""
        return self._behind == 0 and self._held == 0 and (bool(self._turn) or self.reached >= self.turns)

    def next(self, worker: int) -> DealtBatch | None:
        """Remove and return a worker's next batch, earlier steps first; None where the worker has none left.

        Its batch lies past the end where the worker only joins in."""
        turn, hand = self._turn.get(worker), self._hands.get(worker)
        if turn is None or hand is None:
            return None
        if hand and hand[0].turn <= turn:
            self._held -= 1
            return heappop(hand)
        if turn >= self.turns:
            return None
        self._begin(worker, turn)
        share = self._share(worker, turn)
        if not share:
            place = self._ring(turn).places.get(worker, worker)
            return DealtBatch(max(self.batches, turn * self.width + place), turn, True)
        self._give(worker, share[1:])
        return share[0]

    def owes_batch(self, worker: int) -> bool:
        """Whether a worker still has to be handed a batch of a step that it has already begun."""
        hand = self._hands.get(worker)
        return bool(hand and hand[0].turn < self._turn[worker])

    def lose(self, worker: int, leased: list[int]) -> None:
        """Reassign a failed worker's batches: leased, not yet granted, or due to it in steps that others have begun."""
        turn = self._turn.pop(worker, None)
        if turn is None:
            return
        hand = self._hands.pop(worker)
        self._held -= len(hand)
        self._behind -= turn < self.turns
        owed = [DealtBatch(batch, batch // self.width, False) for batch in leased]
        owed += hand + [dealt for t in range(turn, self.reached) for dealt in self._share(worker, t)]
        self._deal(owed)

    def join(self, worker: int) -> None:
        """Add a worker, which takes part in the steps not begun yet; deal out batches that had no live worker."""
        if worker in self._turn:
            return
        self._turn[worker], self._hands[worker] = self.reached, []
        self._behind += self.reached < self.turns
        orphans, self._orphans = self._orphans, []
        self._held -= len(orphans)
        self._deal(orphans)

    def end(self, turns: int, batches: int) -> None:
        """Shorten the phase to `turns` steps and `batches` batches, but keep the steps that some worker has begun."""
        self.turns, self.batches = min(self.turns, max(turns, self.reached)), min(self.batches, batches)
        self._behind = sum(turn < self.turns for turn in self._turn.values())

    def _begin(self, worker: int, turn: int) -> None:
        self._turn[worker] = turn + 1
        self._behind -= turn + 1 == self.turns
        self.reached = max(self.reached, turn + 1)

    def _share(self, worker: int, turn: int) -> list[DealtBatch]:
        """List the batches of step `turn` of the phase that are a worker's own share, within the data."""
        places = self._ring(turn).places
        first, end = turn * self.width, min((turn + 1) * self.width, self.batches)
        if worker not in places:
            return []
        return [DealtBatch(batch, turn, True) for batch in range(first + places[worker], end, len(places))]

    def _ring(self, turn: int) -> DealRing:
        return next(ring for ring in reversed(self._rings) if ring.turn <= turn)

    def _deal(self, batches: list[DealtBatch]) -> None:
        """Distribute a failed worker's batches over the live workers, which also share all steps not begun yet."""
        left = sorted(self._turn)
        if not left:
            self._orphans += batches
            self._held += len(batches)
            return
        self._rings.append(DealRing(self.reached, {worker: place for place, worker in enumerate(left)}))
        for number, dealt in enumerate(sorted(batches)):
            self._give(left[number % len(left)], [dealt])

    def _give(self, worker: int, batches: list[DealtBatch]) -> None:
        self._held += len(batches)
        for dealt in batches:
            heappush(self._hands[worker], dealt)


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
        """Grant a worker its batch of its next step; an empty one (0 samples) where no data is left for the worker."""
        dealt = self.dealer.next(worker)
        if dealt is None:
            return None
        samples = self.phase.size(dealt.batch)
        step = self.phase.first_step + dealt.turn
        grant = Grant(
            dealt.batch,
            step,
            dealt.batch * self.phase.local_batch,
            samples,
            after=step,
            divisor=self._divisor(dealt.turn),
            progress=dealt.turn * self.width * self.phase.local_batch,
        )
        self.ledger.read += samples if dealt.fresh else 0
        return self._lease(worker, grant) if samples else grant

    def stop(self, batch: int = 0) -> None:
        """End the phase at `batch`, rounded up to whole steps, or after the last step that some worker has begun."""
        turns = max(-(-batch // self.width), self.dealer.reached)
        super().stop(turns * self.width)
        self.dealer.end(turns, self.phase.batches)

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
            turn = self.step - self.phase.first_step
            closed.append(self._emit(Step(self.step, members, self._divisor(turn))))
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

    def _expected(self, turn: int) -> int:
        """Compute the number of non-empty gradients in a step; -1 past the last step."""
        first = turn * self.width
        return min(self.width, self.phase.batches - first) if first < self.phase.batches else -1

    def _divisor(self, turn: int) -> float:
        """Compute the divisor of a step: its number of batches; a short batch counts as samples / local batch."""
        first = turn * self.width
        if (first + self.width) * self.phase.local_batch <= self.phase.samples:
            return float(self.width)
        sizes = [self.phase.size(batch) for batch in range(first, first + self.width)]
        return sum(size / self.phase.local_batch for size in sizes if size)

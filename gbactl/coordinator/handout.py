"""One training phase, driven by its policy: grants out, announcements in, steps ordered and journaled.

The only place where a policy meets the world. A gradient costs the coordinator about 60 us.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gbactl.checkpoint.ranges import Finished, Ranges
from gbactl.coordinator.event_log import EventLog, OrderRecord
from gbactl.coordinator.gradient_slices import Parts
from gbactl.coordinator.membership import Members
from gbactl.coordinator.statistics import Statistics
from gbactl.errors import WireError
from gbactl.policies import Decision, Drop, Grant, Policy, Step
from gbactl.store.schedule import due
from gbactl.wire.messages import DropPart, Granted, OrderStep, Prepare, Staged

if TYPE_CHECKING:
    from gbactl.coordinator.phase_rebuild import Rebuilt


@dataclass
class Clock:
    """First and last hand-out of a phase, first and last announced gradient, in seconds by `now`."""

    now: Callable[[], float]
    first: float | None = None
    last: float = 0.0
    gradients: tuple[float, float] | None = None  # when the first and the last one was announced

    def tick(self) -> None:
        """A batch was handed out."""
        self.last = self.now()
        self.first = self.last if self.first is None else self.first

    def announced(self) -> None:
        """A gradient was announced."""
        now = self.now()
        self.gradients = (now if self.gradients is None else self.gradients[0], now)

    @property
    def seconds(self) -> float:
        """First hand-out to last announced gradient, which EPS counts."""
        return 0.0 if self.first is None or self.gradients is None else self.gradients[1] - self.first


class Training:
    """`progress` maps samples finished in this phase to the learning-rate factor of the step at hand."""

    def __init__(
        self, number: int, policy: Policy, members: Members, log: EventLog, statistics: Statistics,
        lr_scale: Callable[[int], float], waiting: deque[int],
        now: Callable[[], float] = time.monotonic, checksum_every: int = 0,
    ) -> None:  # fmt: skip
        self.number, self.policy, self.members, self.log = number, policy, members, log
        self.statistics, self.lr_scale, self.waiting = statistics, lr_scale, waiting
        self.clock, self.checksum_every = Clock(now), checksum_every
        self.reissued = 0
        self.finished = Finished()
        self.ranges: Ranges = ((0, policy.phase.samples),)
        self.granted: Callable[[int, int], None] = lambda worker, token: None
        self.ordered: Callable[[int], None] = lambda steps: None
        self.told_loss: Callable[[int, float], None] = lambda worker, loss: None  # before its gradient is logged
        self.stop_at: int | None = None  # the global step at which the phase ends
        self.stopped: float | None = None  # when it was told to
        self.one_each = False  # whether a worker that asks early has to wait: without prefetch in this phase
        self._flying: Counter[int] = Counter()  # batches of each worker
        self._openings = -1
        self._parts: dict[int, dict[int, Staged]] = {}
        self._leaving: set[int] = set()
        self._untold: set[int] = set()  # workers that have not heard of the phase yet
        self._unasked: set[int] = set()
        self.parts: Parts | None = None  # what is known of gradients on shards that may be lost
        self.shards = members.expected["server"]
        self._reach_servers()
        self.workers = members.of("worker")

    def _reach_servers(self) -> None:
        """Those that are there; what concerns one that is not, its successor has no use for."""
        self.servers = [channel for _, channel in sorted(self.members.of("server").items())]

    def server_gone(self, shard: int) -> None:
        """A server is gone: no gradient is announced before another one has a part of it."""
        self._reach_servers()
        for told in self._parts.values():
            told.pop(shard, None)
        if self.parts is not None:
            self.parts.gone(shard)

    def server_back(self) -> list[int]:
        """Another one is there. Returns the batches, announced and open, of which it has no part."""
        self._reach_servers()
        return [] if self.parts is None else self.parts.waiting

    def owed(self, worker: int) -> list[int]:
        """The batches that a worker has and that are not announced."""
        return [batch for batch, (owner, _) in self.policy.leases.items() if owner == worker]

    def serve(self) -> None:
        """Hand batches to whoever waits, as far as the policy allows."""
        if self.policy.openings == self._openings:
            return
        self._openings = self.policy.openings
        for _ in range(len(self.waiting)):
            worker = self.waiting.popleft()
            if not self.take(worker):
                self.waiting.append(worker)

    def take(self, worker: int, asked: bool = True) -> bool:
        """Try to hand a worker its next batch."""
        absent = worker not in self.workers or worker in self._untold  # another coordinator's, not brought up yet
        grant = None if absent or (self.one_each and self._flying[worker]) else self.policy.take(worker)
        if grant is None:
            return False
        if not asked:
            self._unasked.add(grant.batch)
        self.clock.tick()
        self._flying[worker] += grant.samples > 0
        if grant.samples or self.log.ahead:
            self.log.grant(worker, grant.batch, grant.token)
        self.hand(worker, grant)
        self._tell_ahead()
        self.granted(worker, grant.token)
        return True

    def _tell_ahead(self) -> None:
        """Tell workers which batches they will get next, if that was settled with a hand-out."""
        phase = self.policy.phase
        for worker, batch in self.policy.ahead:
            if worker in self.workers and worker not in self._leaving | self._untold:
                message = Prepare(self.number, batch, batch * phase.local_batch, phase.size(batch))
                self.workers[worker].send(message)

    def hand(self, worker: int, grant: Grant) -> None:
        """Tell a worker of a batch that is its own."""
        scale = self.lr_scale(grant.progress) if grant.divisor else 0.0
        self.workers[worker].send(
            Granted(
                self.number, grant.batch, grant.token, grant.start, grant.samples,
                grant.after, grant.divisor, scale, self.statistics.usual(worker, grant.samples),
            )
        )

    def take_up(self, rebuilt: Rebuilt, untold: set[int]) -> None:
        """Go on where another coordinator's log ends; `policy` is there already. What it had decided is carried out.

        Workers that are `untold` get nothing before `tell` is called."""
        self._untold = untold
        if self.parts is not None:
            self.parts.take_up(rebuilt.parts)
            for shard, rows in rebuilt.applied.items():
                self.parts.hit(shard, rows)
            for missed in rebuilt.missed:
                self.parts.missed(*missed)
        self.finished, self.reissued = rebuilt.finished, rebuilt.reissued
        self._flying.update(owner for owner, _ in self.policy.leases.values())
        if rebuilt.stopped:
            self.stop_at, self.stopped = None, self.clock.now()
        for each in rebuilt.decided:
            if isinstance(each.decision, Drop):
                self._drop(each.worker, each.decision)
                self.finished.drop(each.decision)
            else:
                self._order(each.decision, each.lr_scale)
                self.finished.settle(each.decision)

    def tell(self) -> None:
        """Everybody has heard of the phase."""
        self._untold, self._openings = set(), -1
        self.serve()
        self._hand_out_unasked()

    @property
    def unread(self) -> Ranges:
        """What of the samples that the phase began with has no fate yet."""
        return self.finished.unread(self.ranges, self.policy.phase.local_batch)

    def staged(self, message: Staged) -> bool:
        """A shard has its part of a gradient. True when it was the last one: the gradient is announced."""
        owner, grant = self.policy.leases.get(message.batch, (None, None))
        if grant is None or message.worker in self._leaving or owner != message.worker or message.phase != self.number:
            return False
        parts = self._parts.setdefault(message.batch, {})
        parts[message.shard] = message
        if len(parts) < self.shards:
            return False
        del self._parts[message.batch]
        self._announce([parts[shard] for shard in sorted(parts)], grant.samples)
        return True

    def leaving(self, worker: int) -> list[int]:
        """A worker is gone: nothing that it says counts any more. Returns the batches that it has."""
        self._leaving.add(worker)
        mine = sorted(batch for batch, (owner, _) in self.policy.leases.items() if owner == worker)
        for batch in mine:
            self._parts.pop(batch, None)
        self._flying.pop(worker, None)  # one in its place has none
        return mine

    def left(self, worker: int) -> None:
        """Every server knows that a worker is gone: its batches may be handed out again."""
        if worker not in self.policy.live:
            return
        self._leaving.add(worker)
        self.log.left(worker)
        before = self.policy.ledger.finished
        self.reissued += len(self.policy.lost_worker(worker))
        self._carry_out(self.policy.poll(), before, -1)
        self.serve()
        self._hand_out_unasked()

    def _hand_out_unasked(self) -> None:
        """Steps that others are in wait for what the dead worker left of them."""
        for worker in sorted(self.policy.live):
            while self.policy.owes(worker) and self.take(worker, asked=False):
                pass

    def asked(self, batch: int) -> bool:
        """Whether a worker had asked for a batch: when it is announced, the worker wants the next one."""
        if batch not in self._unasked:
            return True
        self._unasked.discard(batch)
        return False

    def joined(self, worker: int) -> None:
        """A worker is there in the place of one that left; it shares what is left, if it has a part in the phase."""
        self._leaving.discard(worker)
        self.workers[worker] = self.members.of("worker")[worker]
        if worker not in (*self.policy.phase.workers, *self.policy.phase.joiners):
            return
        self.log.joined(worker)
        before = self.policy.ledger.finished
        self.policy.joined_worker(worker)
        self._carry_out(self.policy.poll(), before, -1)
        self.serve()

    def _announce(self, parts: list[Staged], samples: int) -> None:
        """A gradient is on every shard: let the policy decide, order what it decides."""
        one = parts[0]
        rows, dense = [part.row_version for part in parts], [part.dense_version for part in parts]
        pulled = self._pulled(rows, dense)
        self.statistics.announced(one.worker, one.batch, samples, one.loss, one.seconds, pulled, one.slowdown)
        self.told_loss(one.worker, one.loss)
        part_rows = [] if self.parts is None else [part.rows for part in parts]
        self.log.announce(one.worker, one.batch, rows, dense, part_rows if self.log.ahead else ())
        if self.parts is not None:
            self.parts.announced(one.batch, part_rows)
        self._flying[one.worker] -= 1
        self.clock.announced()
        before = self.policy.ledger.finished
        self._carry_out(self.policy.announce(one.worker, one.batch), before, one.worker)
        if self.stop_at is not None and self.policy.step >= self.stop_at:
            self.stop()
        self.serve()

    def _pulled(self, rows: list[int], dense: list[int]) -> int:
        """The oldest version a gradient was computed from. Raises WireError for what cannot be."""
        if min(rows) < 0 or min(dense) < -1 or max(rows + dense) > self.policy.step:
            raise WireError(f"versions {rows} and {dense} at step {self.policy.step}")
        return min(version for version in rows + dense if version >= 0)

    def stop(self, batch: int = 0) -> None:
        """The phase ends at a batch, or as soon as it can: a switch comes (see Policy.stop)."""
        self.policy.stop(batch)
        self.log.stop(self.policy.phase.batches)  # where it is depends on who has begun a step, which no log tells
        self.stop_at, self.stopped = None, self.clock.now()
        self.serve()

    def forgo(self) -> list[tuple[int, int, set[int]]]:
        """Give up what is in flight: (worker, batch, shards that have their part) of what is still to come."""
        owners = {batch: owner for batch, (owner, _) in self.policy.leases.items()}
        parts = self._parts
        decayed = self.policy.ledger.decayed
        given_up = self.policy.forgo()
        self.finished.forgo(given_up, self.policy.ledger.decayed - decayed)
        self.log.forgo(len(given_up))
        for batch in given_up:
            for channel in self.servers:
                channel.send(DropPart(self.number, batch))
        return [(owners[batch], batch, set(parts.pop(batch, ()))) for batch in given_up if batch in owners]

    def finish(self) -> None:
        """Nothing is in flight: apply what is left over and check the accounting."""
        before = self.policy.ledger.finished
        self._carry_out(self.policy.finish(), before, -1)
        self.policy.ledger.check()

    def _carry_out(self, decisions: Sequence[Decision], finished: int, worker: int) -> None:
        """Order steps, discard the worker's drops; `finished`: samples with a fate before the first of them."""
        for decision in decisions:
            if isinstance(decision, Drop):
                finished += decision.samples
                self._drop(worker, decision)
                self.finished.drop(decision)
            else:
                self._order(decision, self.lr_scale(finished))
                finished += sum(m.samples for m in decision.members)
                self.finished.settle(decision)
                self.ordered(decision.step + 1)

    def _drop(self, worker: int, drop: Drop) -> None:
        self.log.drop(worker, drop.batch)
        if self.parts is not None:
            self.parts.dropped(drop.batch)
        for channel in self.servers:
            channel.send(DropPart(self.number, drop.batch))
        self.statistics.dropped(drop.batch)

    def _order(self, step: Step, scale: float) -> None:
        members = tuple((m.batch, m.weight) for m in step.members)
        self.log.order(OrderRecord(step.step, step.divisor, step.weight_sum, scale, members))
        order = self.told(step, scale)
        for channel in self.servers:
            channel.send(order)
        self.statistics.applied(step)
        if self.parts is not None:
            for member in step.members:
                self.parts.applied(member.batch, member.samples, member.weight)

    def told(self, step: Step, scale: float) -> OrderStep:
        """A step as servers are told of it."""
        batches, weights = [m.batch for m in step.members], [m.weight for m in step.members]
        return OrderStep(
            self.number, step.step, batches, weights, step.divisor, step.weight_sum, scale, *_row_weights(step),
            due(self.checksum_every, step.step), step.accepted, list(step.shares(self.policy.phase.local_batch)),
        )  # fmt: skip


def _row_weights(step: Step) -> tuple[list[float], list[int]]:
    """Weights by row staleness, one member's after the other, and how many each has; empty without them."""
    if not any(m.row_weights for m in step.members):
        return [], []
    return [w for m in step.members for w in m.row_weights], [len(m.row_weights) for m in step.members]

"""One training phase, driven by its policy: grants out, announcements in, steps ordered and journaled.

The only place where a policy meets the world. A gradient costs the coordinator about 60 us.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gbactl.cluster.eventlog import EventLog, OrderRecord
from gbactl.cluster.members import Members
from gbactl.cluster.messages import Announce, Granted, OrderStep
from gbactl.cluster.statistics import Statistics
from gbactl.errors import WireError
from gbactl.policies import Policy, Step


@dataclass
class Clock:
    """First and last hand-out of a phase, in seconds."""

    first: float = 0.0
    last: float = 0.0

    def tick(self) -> None:
        """A batch was handed out."""
        self.last = time.monotonic()
        self.first = self.first or self.last

    @property
    def seconds(self) -> float:
        """First hand-out to last."""
        return self.last - self.first


class Training:
    """`progress` maps samples finished in this phase to the learning-rate factor of the step at hand."""

    def __init__(
        self, number: int, policy: Policy, members: Members, log: EventLog, statistics: Statistics,
        lr_scale: Callable[[int], float], waiting: deque[int],
    ) -> None:  # fmt: skip
        self.number, self.policy, self.members, self.log = number, policy, members, log
        self.statistics, self.lr_scale, self.waiting = statistics, lr_scale, waiting
        self.clock = Clock()
        self.servers = [channel for _, channel in sorted(members.of("server").items())]
        self.workers = members.of("worker")

    def serve(self) -> None:
        """Hand batches to whoever waits, as far as the policy allows."""
        for _ in range(len(self.waiting)):
            worker = self.waiting.popleft()
            if not self.take(worker):
                self.waiting.append(worker)

    def take(self, worker: int) -> bool:
        """Try to hand a worker its next batch."""
        grant = self.policy.take(worker)
        if grant is None:
            return False
        self.clock.tick()
        if grant.samples:
            self.log.grant(worker, grant.batch, grant.token)
        scale = self.lr_scale(grant.progress) if grant.divisor else 0.0
        self.workers[worker].send(
            Granted(
                self.number, grant.batch, grant.token, grant.start, grant.samples,
                grant.after, grant.divisor, scale,
            )
        )
        return True

    def announce(self, message: Announce) -> None:
        """A gradient is on every shard: let the policy decide, order what it decides."""
        owner, grant = self.policy.leases.get(message.batch, (None, None))
        if grant is None or owner != message.worker or message.phase != self.number:
            return
        pulled = self._pulled(message)
        self.statistics.announced(
            message.worker, message.batch, grant.samples, message.loss, message.compute_seconds, pulled
        )
        self.log.announce(message.worker, message.batch, message.row_versions, message.dense_versions)
        before = self.policy.ledger.finished
        for step in self.policy.announce(message.worker, message.batch):
            self._order(step, before)
            before = self.policy.ledger.finished
        self.serve()

    def _pulled(self, message: Announce) -> int:
        """The oldest version a gradient was computed from. Raises WireError for what cannot be."""
        rows, dense = message.row_versions, message.dense_versions
        if len(rows) != len(self.servers) or len(dense) != len(self.servers):
            raise WireError(f"versions of {len(rows)} and {len(dense)} shards instead of {len(self.servers)}")
        if min(rows) < 0 or min(dense) < -1 or max(rows + dense) > self.policy.step:
            raise WireError(f"versions {rows} and {dense} at step {self.policy.step}")
        return min(version for version in rows + dense if version >= 0)

    def finish(self) -> None:
        """Nothing is in flight: apply what is left over and check the accounting."""
        for step in self.policy.finish():
            self._order(step, self.policy.ledger.finished - sum(m.samples for m in step.members))
        self.policy.ledger.check()

    def _order(self, step: Step, finished: int) -> None:
        members = tuple((m.batch, m.weight) for m in step.members)
        scale = self.lr_scale(finished)
        self.log.order(OrderRecord(step.step, step.divisor, step.weight_sum, scale, members))
        order = OrderStep(
            self.number, step.step, [b for b, _ in members], [w for _, w in members],
            step.divisor, step.weight_sum, scale,
        )  # fmt: skip
        for channel in self.servers:
            channel.send(order)
        self.statistics.applied(step)

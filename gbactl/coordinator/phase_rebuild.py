"""A training phase as the event log tells it, up to the log's last record: what a coordinator that goes on from there
has to know. Pure: the phase's own policy is driven again, and must decide what the log says it decided.

Costs 15 us a gradient, and the phase's steps in memory until they are not needed any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from gbactl.checkpoint.ranges import Finished
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    ForgoRecord,
    GrantRecord,
    InfoRecord,
    JoinedRecord,
    LeftRecord,
    OrderRecord,
    Record,
    StopRecord,
)
from gbactl.coordinator.gradient_slices import Parts
from gbactl.coordinator.statistics import Statistics
from gbactl.policies import Drop, Grant, Policy, Step
from gbactl.replay.decisions import Decisions, Due

MOST_JOINS = 4  # more than a worker may have at once


class Rebuilt:
    """Feed it the records of one phase. `policy` is new; `lr_scale` as Training's; `statistics` are added to.

    Row updates that shards `applied`, and parts (shard, samples, rows) that were `missed`, are those since the last
    note, which tells of all before.

    Raises DivergenceError where the policy decides otherwise than the log says."""

    def __init__(self, policy: Policy, lr_scale: Callable[[int], float], statistics: Statistics) -> None:
        self.policy, self.statistics = policy, statistics
        self.finished = Finished()
        self.orders: list[tuple[Step, float]] = []  # with their learning-rate factors
        self.applied: Counter[int] = Counter()
        self.missed: list[tuple[int, int, int]] = []
        self.parts = Parts(self._hit, lambda *missed: self.missed.append(missed))
        self.joins: dict[int, deque[Grant]] = {}  # the last hand-outs of no samples, by worker
        self.reissued = 0
        self.stopped = self.begun = self.announced = False
        self._decisions = Decisions(policy, lr_scale)

    @property
    def decided(self) -> tuple[Due, ...]:
        """What the policy has decided and the log does not show: it was cut off before."""
        return self._decisions.due

    def feed(self, record: Record) -> None:
        """The next record."""
        if isinstance(record, OrderRecord):
            step, scale = self._decisions.order(record)
            self.orders.append((step, scale))
            self.finished.settle(step)
            self.statistics.applied(step)
            for member in step.members:
                self.parts.applied(member.batch, member.samples, member.weight)
        elif isinstance(record, DropRecord):
            self._drop(record)
        elif isinstance(record, InfoRecord):
            self._told(record)
        else:
            self._decisions.undisturbed()
            self._happened(record)

    def _hit(self, shard: int, rows: int) -> None:
        self.applied[shard] += rows

    def _told(self, record: InfoRecord) -> None:
        if record.kind == event_log.NOTE:
            self.applied.clear()
            self.missed.clear()
        elif record.kind == event_log.SERVER and record.fields["state"] == "lost":
            self.parts.gone(record.fields["shard"])

    def _drop(self, record: DropRecord) -> None:
        [due, *_] = self._decisions.due or (None,)
        self._decisions.drop(record)
        assert due is not None and isinstance(due.decision, Drop)
        self.finished.drop(due.decision)
        self.parts.dropped(record.batch)
        self.statistics.dropped(record.batch)

    def _happened(self, record: Record) -> None:
        if isinstance(record, GrantRecord):
            self.begun = True
            grant = self._decisions.grant(record)
            if not grant.samples:
                self.joins.setdefault(record.worker, deque(maxlen=MOST_JOINS)).append(grant)
        elif isinstance(record, AnnounceRecord):
            self._announced(record)
        elif isinstance(record, LeftRecord):
            leases = len(self.policy.leases)
            self._decisions.left(record.worker)
            self.reissued += leases - len(self.policy.leases)
        elif isinstance(record, JoinedRecord):
            self._decisions.joined(record.worker)
        elif isinstance(record, StopRecord):
            self.policy.stop(record.batch)
            self.stopped = True
        elif isinstance(record, ForgoRecord):
            decayed = self.policy.ledger.decayed
            given_up = self._decisions.forgo(record)
            self.finished.forgo(given_up, self.policy.ledger.decayed - decayed)

    def _announced(self, record: AnnounceRecord) -> None:
        self.announced = True
        samples = self.policy.phase.size(record.batch)
        pulled = min(version for version in (*record.row_versions, *record.dense_versions) if version >= 0)
        self.statistics.noted(record.worker, record.batch, samples, pulled)
        self._decisions.announce(record)
        if record.part_rows:
            self.parts.announced(record.batch, record.part_rows)

"""Training phase as a fold: `apply(event) -> commands`. No I/O, no channel, no clock.

The same object is driven by a live coordinator (handout.py), which writes each event and each command into the event
log before it carries the command out; by a failover coordinator, which feeds it that log; and by a replay, which
compares its commands with the log (both by phase_log.py). Commands are settled in order, so that a checkpoint between
two of them sees the state of that point. An event costs a few microseconds beside the policy's own decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gbactl.checkpoint.sample_ranges import FinishedBatches
from gbactl.coordinator.event_log import AnnounceRecord, FinishRecord, JoinedRecord, LeftRecord, StopRecord
from gbactl.coordinator.statistics import Statistics
from gbactl.policies import Decision, Drop, Grant, Policy, Step


@dataclass(frozen=True, slots=True)
class Take:
    """Event: a worker asks for its next batch. In the log it is the hand-out that follows."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forgo:
    """Event: give up what is in flight. The log has it with the number of batches given up."""


Event = Take | Forgo | AnnounceRecord | LeftRecord | JoinedRecord | StopRecord | FinishRecord


@dataclass(frozen=True, slots=True)
class HandOut:
    """Command: send a worker its batch. `lr_scale`: of a step that workers apply themselves (`sync`), else 0."""

    worker: int
    grant: Grant
    lr_scale: float


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """Command: every shard applies a step, with this learning-rate factor."""

    step: Step
    lr_scale: float


@dataclass(frozen=True, slots=True)
class DiscardGradient:
    """Command: every shard discards an announced gradient. `worker`: its sender (-1: nobody in particular)."""

    worker: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class GiveUpBatch:
    """Command: every shard discards its slice of a batch in flight; `worker`: the holder of its lease (-1: nobody)."""

    worker: int
    batch: int


Command = HandOut | ApplyStep | DiscardGradient | GiveUpBatch


class StagedSlices:
    """Slices of announced gradients that wait on the shards, and those that a failed shard loses.

    `hit(shard, rows)` is called for a slice that is applied, `missed(shard, samples, rows)` for one that is
    not, because its shard failed."""

    def __init__(self, hit: Callable[[int, int], None], missed: Callable[[int, int, int], None]) -> None:
        self.hit, self.missed = hit, missed
        self._rows: dict[int, list[int]] = {}

    def announced(self, batch: int, rows: Sequence[int]) -> None:
        """Record the rows of an announced gradient's slice on each shard; ~rows where it went to a failed server."""
        self._rows[batch] = list(rows)

    def applied(self, batch: int, samples: int, weight: float) -> None:
        """Count the slices of a gradient that is in an ordered step."""
        rows = self._rows.pop(batch, ())
        for shard, count in enumerate(rows if weight > 0 else ()):
            if count >= 0:
                self.hit(shard, count)
            else:
                self.missed(shard, samples, ~count)

    def dropped(self, batch: int) -> None:
        """Forget the slices of a discarded gradient."""
        self._rows.pop(batch, None)

    def gone(self, shard: int) -> None:
        """Mark the waiting slices of a failed shard as lost."""
        for rows in self._rows.values():
            rows[shard] = min(rows[shard], ~rows[shard])

    @contextmanager
    def held(self) -> Iterator[list[tuple[Callable[..., None], tuple[int, ...]]]]:
        """Defer calls of `hit` and `missed` in the context to a list; those left in it are made at its end."""
        kept: list[tuple[Callable[..., None], tuple[int, ...]]] = []
        hit, missed = self.hit, self.missed
        self.hit, self.missed = lambda *told: kept.append((hit, told)), lambda *told: kept.append((missed, told))
        yield kept
        self.hit, self.missed = hit, missed
        for hear, told in kept:
            hear(*told)

    @property
    def waiting(self) -> list[int]:
        """Announced batches that are not applied yet."""
        return list(self._rows)


class TrainingPhase:
    """Training phase driven by a policy.

    `lr_scale` maps samples finished in this phase to a step's learning-rate factor; `statistics` are updated.
    `slices`: counter of gradient slices on shards that may fail, where they are to be counted."""

    def __init__(
        self, policy: Policy, lr_scale: Callable[[int], float], statistics: Statistics,
        slices: StagedSlices | None = None,
    ) -> None:  # fmt: skip
        self.policy, self.lr_scale, self.statistics, self.slices = policy, lr_scale, statistics, slices
        self.finished = FinishedBatches()
        self.stopped = False  # ordered to end early
        self.closed = False  # the rest of the buffer is applied

    def apply(self, event: Event) -> list[Command]:
        """Let the policy decide what follows from an event. Each command takes effect when it is settled."""
        policy, before = self.policy, self.policy.ledger.finished
        if isinstance(event, Take):
            return self._take(event.worker)
        if isinstance(event, AnnounceRecord):
            self._count(event)
            return self._decided(policy.announce(event.worker, event.batch), before, event.worker)
        if isinstance(event, Forgo):
            return self._forgo()
        if isinstance(event, FinishRecord):
            self.closed = True
            return self._decided(policy.finish(), before, -1)
        if isinstance(event, StopRecord):
            self.stopped = True
            policy.stop(event.batch)
            return []
        if isinstance(event, LeftRecord):
            policy.lost_worker(event.worker)
        else:
            policy.joined_worker(event.worker)
        return self._decided(policy.poll(), before, -1)

    def settle(self, command: Command) -> None:
        """Count the effects of a command: fates of samples, staleness, gradient slices that no longer wait."""
        if isinstance(command, ApplyStep):
            self.finished.settle(command.step)
            self.statistics.applied(command.step)
            if self.slices is not None:
                for member in command.step.members:
                    self.slices.applied(member.batch, member.samples, member.weight)
        elif isinstance(command, DiscardGradient):
            self.finished.drop(command.drop)
            self.statistics.dropped(command.drop.batch)
            if self.slices is not None:
                self.slices.dropped(command.drop.batch)
        elif isinstance(command, GiveUpBatch):
            self.finished.forgo([command.batch], self.policy.phase.size(command.batch))

    def server_lost(self, shard: int) -> None:
        """Mark the slices that a failed shard had not applied as lost."""
        if self.slices is not None:
            self.slices.gone(shard)

    def lr_scale_of(self, grant: Grant) -> float:
        """Learning-rate factor of a step that workers apply to the dense parameters themselves; else 0."""
        return self.lr_scale(grant.progress) if grant.divisor else 0.0

    def _take(self, worker: int) -> list[Command]:
        grant = self.policy.take(worker)
        if grant is None:
            return []
        return [HandOut(worker, grant, self.lr_scale_of(grant))]

    def _count(self, record: AnnounceRecord) -> None:
        pulled = min(version for version in (*record.row_versions, *record.dense_versions) if version >= 0)
        self.statistics.announced(record.worker, record.batch, self.policy.phase.size(record.batch), pulled)
        if self.slices is not None and record.part_rows:
            self.slices.announced(record.batch, record.part_rows)

    def _forgo(self) -> list[Command]:
        owners = {batch: owner for batch, (owner, _) in self.policy.leases.items()}
        return [GiveUpBatch(owners.get(batch, -1), batch) for batch in self.policy.forgo()]

    def _decided(self, decisions: Sequence[Decision], finished: int, worker: int) -> list[Command]:
        """Turn decisions into commands; `finished`: samples of the phase with a fate before the first of them."""
        commands: list[Command] = []
        for decision in decisions:
            if isinstance(decision, Drop):
                commands.append(DiscardGradient(worker, decision))
                finished += decision.samples
            else:
                commands.append(ApplyStep(decision, self.lr_scale(finished)))
                finished += sum(member.samples for member in decision.members)
        return commands

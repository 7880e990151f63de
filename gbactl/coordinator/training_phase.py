"""Training phase as a fold, `apply(event) -> commands`, and its replay from the event log. No I/O, channel or clock.

The same fold is driven by a live coordinator (live_phase.py), which writes each event and each command into the
event log before it carries the command out, and by the records of that log (LoggedPhase). A failover coordinator brings
its phase to the log's end with them and carries out what is still `due`; a replay drives shards with the commands that
the log confirms. Commands are settled in order, so that a checkpoint between two of them sees the state of that point.
An event costs a few microseconds beside the policy's own decision; a replayed gradient 15 us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from gbactl.checkpoint.remaining_samples import FinishedBatches
from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    FinishRecord,
    ForgoRecord,
    GrantRecord,
    InfoRecord,
    JoinedRecord,
    LeftRecord,
    OrderRecord,
    Record,
    StopRecord,
)
from gbactl.coordinator.statistics import Statistics
from gbactl.errors import AccountingError, GbactlError
from gbactl.policies.policy import Decision, Drop, Grant, Phase, Policy, Step
from gbactl.store.gradient_slice import StepOrder
from gbactl.store.optimizer_settings import factor

Event = AnnounceRecord | LeftRecord | JoinedRecord | StopRecord | FinishRecord


class HandOut(NamedTuple):
    """Command: send a worker its batch."""

    worker: int
    grant: Grant


class ApplyStep(NamedTuple):
    """Command: every shard applies a step, with this learning-rate factor."""

    step: Step
    lr_scale: float


class DiscardGradient(NamedTuple):
    """Command: every shard discards an announced gradient. `worker`: its sender (-1: none in particular)."""

    worker: int
    drop: Drop


class GiveUpBatch(NamedTuple):
    """Command: every shard discards its slice of a batch in flight; `worker`: holder of its lease (-1: none)."""

    worker: int
    batch: int


Decided = ApplyStep | DiscardGradient
Command = HandOut | Decided | GiveUpBatch


class StagedSlices:
    """Staged slices of announced gradients that are not applied yet, and those that a failed shard has lost.

    `on_applied(shard, rows)` is called for a slice that is applied, `on_missed(shard, samples, rows)` for one that is
    not, because its shard failed; neither while `reported` says that both were told of it before."""

    def __init__(self, on_applied: Callable[[int, int], None], on_missed: Callable[[int, int, int], None]) -> None:
        self.on_applied, self.on_missed, self.reported = on_applied, on_missed, False
        self._rows: dict[int, list[int]] = {}

    def add(self, batch: int, rows: Sequence[int]) -> None:
        """Record the number of rows in each shard's slice of an announced gradient; ~rows if the server had failed."""
        self._rows[batch] = list(rows)

    def report_step(self, batch: int, samples: int, weight: float) -> None:
        """Report the slices of an ordered gradient to `on_applied`, its slices on failed shards to `on_missed`."""
        rows = self._rows.pop(batch, ())
        for shard, count in enumerate(rows if weight > 0 and not self.reported else ()):
            if count >= 0:
                self.on_applied(shard, count)
            else:
                self.on_missed(shard, samples, ~count)

    def discard(self, batch: int) -> None:
        """Forget the slices of a discarded gradient."""
        self._rows.pop(batch, None)

    def on_server_failure(self, shard: int) -> None:
        """Mark as lost the staged, not yet applied slices of a failed shard."""
        for rows in self._rows.values():
            rows[shard] = min(rows[shard], ~rows[shard])

    @property
    def unapplied(self) -> list[int]:
        """Announced batches whose gradients are not applied yet."""
        return list(self._rows)


class TrainingPhase:
    """Training phase driven by a policy.

    `lr_scale` maps samples finished in this phase to a step's learning-rate factor; `statistics` are updated."""

    def __init__(self, policy: Policy, lr_scale: Callable[[int], float], statistics: Statistics) -> None:
        self.policy, self.lr_scale, self.statistics = policy, lr_scale, statistics
        self.slices: StagedSlices | None = None  # slices on shards that may fail, where they are to be counted
        self.finished = FinishedBatches()
        self.stopped = False  # whether the phase was ordered to end early
        self.closed = False  # whether the gradients left in the buffer are applied

    @classmethod
    def of(
        cls, cfg: RunConfig, processes: int, samples: int, first_step: int, finished: int, statistics: Statistics
    ) -> TrainingPhase:
        """Make the phase of `samples` samples, from global step `first_step` on, in the mode of `cfg`.

        `processes`: number of the run's workers, of which the mode may need fewer; `finished`: samples of the run
        trained, decayed or lost before."""
        trains = cfg.cluster.workers
        phase = Phase(
            samples, cfg.local_batch, cfg.train.global_batch, first_step, tuple(range(trains)),
            tuple(range(trains, processes)), prefetch=cfg.mode.prefetch,
        )  # fmt: skip

        def lr_scale(done: int) -> float:
            return factor(cfg.optim.schedule, (finished + done) / cfg.train.global_batch)

        return cls(cfg.mode.policy(phase, cfg.policy_options()), lr_scale, statistics)

    def apply(self, event: Event) -> list[Decided]:
        """Apply an event. Returns the policy's decisions as commands, each of which takes effect by `account`."""
        policy, before = self.policy, self.policy.ledger.finished
        if isinstance(event, AnnounceRecord):
            self._count(event)
            return self._decided(policy.announce(event.worker, event.batch), before, event.worker)
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

    def forgo(self) -> list[GiveUpBatch]:
        """Give up the batches in flight, and end the phase."""
        owners = {batch: worker for worker, held in self.policy.leases.items() for batch in held}
        return [GiveUpBatch(owners.get(batch, -1), batch) for batch in self.policy.forgo()]

    def account(self, command: Command) -> None:
        """Apply a command's effect on the accounts: sample counts, staleness, and staged slices no longer waiting."""
        if isinstance(command, ApplyStep):
            self.finished.add_step(command.step)
            self.statistics.count_step(command.step)
            if self.slices is not None:
                for member in command.step.members:
                    self.slices.report_step(member.batch, member.samples, member.weight)
        elif isinstance(command, DiscardGradient):
            self.finished.drop(command.drop)
            self.statistics.count_discarded(command.drop.batch)
            if self.slices is not None:
                self.slices.discard(command.drop.batch)
        elif isinstance(command, GiveUpBatch):
            self.finished.add_abandoned([command.batch], self.policy.phase.size(command.batch))

    def on_server_failure(self, shard: int) -> None:
        """Mark as lost the gradient slices that a failed shard had not applied."""
        if self.slices is not None:
            self.slices.on_server_failure(shard)

    def _count(self, record: AnnounceRecord) -> None:
        pulled = min([version for version in (*record.row_versions, *record.dense_versions) if version >= 0])
        self.statistics.count_gradient(record.worker, record.batch, self.policy.phase.size(record.batch), pulled)
        if self.slices is not None and record.part_rows:
            self.slices.add(record.batch, record.part_rows)

    def _decided(self, decisions: Sequence[Decision], finished: int, worker: int) -> list[Decided]:
        """Convert a policy's decisions to commands; `finished`: samples trained, decayed or lost before them."""
        commands: list[Decided] = []
        for decision in decisions:
            if isinstance(decision, Drop):
                commands.append(DiscardGradient(worker, decision))
                finished += decision.samples
            else:
                commands.append(ApplyStep(decision, self.lr_scale(finished)))
                finished += decision.samples
        return commands


MOST_NAMED = 8


@dataclass(eq=False)
class DivergenceError(GbactlError):
    """Error for the first difference between a replay and its run. Exit code 1.

    `kind` is decision (the policy), bits (a checksum) or accounting. `shard` -1: all."""

    kind: str
    step: int
    text: str
    shard: int = -1
    workers: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text


class LoggedPhase:
    """Replayed phase, driven by a log's records in order. Raises DivergenceError if log and policy differ."""

    def __init__(self, phase: TrainingPhase) -> None:
        self.phase = phase
        self.due: deque[Decided] = deque()  # steps and drops that the policy decided and the log has yet to confirm

    def feed(self, record: Record) -> Sequence[Command]:
        """Apply the log's next record. Returns the policy's commands that it confirms, with their effects applied."""
        if isinstance(record, InfoRecord):
            if record.kind == event_log.SERVER and record.fields["state"] == "lost":
                self.phase.on_server_failure(record.fields["shard"])
            return []
        if isinstance(record, OrderRecord):
            confirmed: Sequence[Command] = [self._order(record)]
        elif isinstance(record, DropRecord):
            confirmed = [self._drop(record)]
        else:
            self._check_no_command_due()
            confirmed = self._replay(record)
        for command in confirmed:
            self.phase.account(command)
        return confirmed

    def feed_tail(self, records: Sequence[Record]) -> list[Command]:
        """Apply the records at the end of a failed coordinator's log. Returns the policy's commands that they confirm.

        Of slices, only those after the last note are reported: the note contains the others."""
        infos = [(number, each) for number, each in enumerate(records) if isinstance(each, InfoRecord)]
        last_note = max((number for number, each in infos if each.kind == event_log.NOTE), default=0)
        confirmed: list[Command] = []
        for number, record in enumerate(records):
            if self.phase.slices is not None:
                self.phase.slices.reported = number < last_note
            confirmed += self.feed(record)
        return confirmed

    def discards(self, batch: int) -> bool:
        """Whether the policy has decided to discard an announced gradient of `batch`."""
        return any(isinstance(command, DiscardGradient) and command.drop.batch == batch for command in self.due)

    def close(self) -> None:
        """Check that the replayed phase is over and that its samples add up."""
        self._check_no_command_due("The phase ends in the log")
        self._check_idle("The phase ends in the log")
        if not self.phase.closed:
            self._diverge("The phase ends in the log before what was left over was applied", [])
        try:
            self.phase.policy.ledger.check()
        except AccountingError as error:
            raise DivergenceError("accounting", self.phase.policy.step, str(error)) from error

    def _replay(self, record: Any) -> Sequence[Command]:
        if isinstance(record, GrantRecord):
            return [self._grant(record)]
        if isinstance(record, ForgoRecord):
            return self._forgo(record)
        if isinstance(record, AnnounceRecord):
            self._check_lease(record)
        if isinstance(record, FinishRecord):
            self._check_idle("The log finishes the phase")
        self.due.extend(self.phase.apply(record))
        return []

    def _grant(self, record: GrantRecord) -> Command:
        grant = self.phase.policy.take(record.worker)
        if grant is None or (grant.batch, grant.token) != (record.batch, record.token):
            policy = "nothing" if grant is None else f"batch {grant.batch} with token {grant.token}"
            self._diverge(
                f"The log hands W{record.worker} batch {record.batch} with token {record.token}, the policy {policy}",
                [(record.worker, record.batch)],
            )
        return HandOut(record.worker, grant)

    def _forgo(self, record: ForgoRecord) -> Sequence[Command]:
        commands = self.phase.forgo()
        if len(commands) != record.batches:
            self._diverge(f"The log gives {record.batches} batches up, the policy {len(commands)}", [])
        return commands

    def _check_lease(self, record: AnnounceRecord) -> None:
        if record.batch not in self.phase.policy.leased_to(record.worker):
            gradient = (record.worker, record.batch)
            self._diverge(f"The log announces {named([gradient])}, which was not handed to it", [gradient])

    def _order(self, record: OrderRecord) -> Command:
        due = self.due.popleft() if self.due else None
        if not isinstance(due, ApplyStep):
            batches = [batch for batch, _ in record.members]
            self._diverge(f"The log orders step {record.step} of batches {batches}, the policy {_shown(due)}", [])
        decided = order_record(due)
        if decided != record:
            members = [(member.worker, member.batch) for member in due.step.members]
            self._diverge(f"Step {record.step}: {_difference(record, decided)} ({named(members)})", members)
        return due

    def _drop(self, record: DropRecord) -> Command:
        due = self.due.popleft() if self.due else None
        gradient = (record.worker, record.batch)
        if not isinstance(due, DiscardGradient) or (due.worker, due.drop.batch) != gradient:
            self._diverge(f"The log discards {named([gradient])}, the policy {_shown(due)}", [gradient])
        return due

    def _check_no_command_due(self, text: str = "The log goes on") -> None:
        """Check that the log has a record of every command that the policy decided."""
        if self.due:
            self._diverge(f"{text}, but the policy {_shown(self.due[0])}", [])

    def _check_idle(self, text: str) -> None:
        """Check that no batch is in flight at this record."""
        if not self.phase.policy.idle:
            leases = [(worker, batch) for worker, held in sorted(self.phase.policy.leases.items()) for batch in held]
            self._diverge(f"{text} while something is in flight ({named(leases)})", leases)

    def _diverge(self, text: str, gradients: list[tuple[int, int]]) -> NoReturn:
        workers, batches = tuple(w for w, _ in gradients), tuple(b for _, b in gradients)
        first = self.due[0] if self.due else None
        step = first.step.step if isinstance(first, ApplyStep) else self.phase.policy.step
        raise DivergenceError("decision", step, f"{text}.", -1, workers, batches)


def order_record(command: ApplyStep) -> OrderRecord:
    """Convert a step command to its record in the event log."""
    step = command.step
    return OrderRecord(step.step, step.divisor, step.weight_sum, command.lr_scale, _members(step))


def step_order(command: ApplyStep, local_batch: int) -> StepOrder:
    """Convert a step command to the order that shards take; `local_batch`: samples of a full batch."""
    step = command.step
    rows = tuple(member.row_weights for member in step.members) if any(m.row_weights for m in step.members) else ()
    return StepOrder(
        step.step, _members(step), step.divisor, step.weight_sum, command.lr_scale, rows, step.accepted,
        step.shares(local_batch),
    )  # fmt: skip


def named(gradients: Sequence[tuple[int, int]]) -> str:
    """Format (worker, batch) pairs as `W0 batch 3, W2 batch 5`; of many, the first few."""
    text = ", ".join(f"W{worker} batch {batch}" for worker, batch in gradients[:MOST_NAMED])
    more = len(gradients) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text or "no gradient"


def _members(step: Step) -> tuple[tuple[int, float], ...]:
    return tuple([(member.batch, member.weight) for member in step.members])


def _shown(due: Decided | None) -> str:
    if isinstance(due, DiscardGradient):
        return f"discards {named([(due.worker, due.drop.batch)])}"
    if isinstance(due, ApplyStep):
        return f"orders step {due.step.step} of batches {[m.batch for m in due.step.members]}"
    return "decides nothing"


def _difference(logged: OrderRecord, decided: OrderRecord) -> str:
    """Describe the first field in which a logged and a replayed record differ."""
    for name, log_has, policy_has in zip(OrderRecord._fields, logged, decided, strict=True):
        if name == "members":
            return _member_difference(logged, decided)
        if log_has != policy_has:
            return f"the log has {name.replace('_', ' ')} {log_has}, the policy {policy_has}"
    raise AssertionError("nothing differs")


def _member_difference(logged: OrderRecord, decided: OrderRecord) -> str:
    log_has: list[Any] = [batch for batch, _ in logged.members]
    policy_has: list[Any] = [batch for batch, _ in decided.members]
    if log_has != policy_has:
        return f"the log has batches {log_has}, the policy {policy_has}"
    (batch, log_weight), (_, weight) = next(
        pair for pair in zip(logged.members, decided.members, strict=True) if pair[0] != pair[1]
    )
    return f"the log gives batch {batch} weight {log_weight}, the policy {weight}"

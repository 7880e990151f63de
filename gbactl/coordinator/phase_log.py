"""Replay of a training phase from its event log: events are applied again, and the policy must decide the same again.

A failover coordinator brings its phase to the log's end with it, and carries out what is still `due`; a replay
drives shards with the commands that it confirms. Pure; 15 us a gradient.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    FinishRecord,
    ForgoRecord,
    GrantRecord,
    InfoRecord,
    OrderRecord,
    Record,
)
from gbactl.coordinator.phase import ApplyStep, Command, DiscardGradient, Forgo, HandOut, Take, TrainingPhase
from gbactl.errors import AccountingError, GbactlError
from gbactl.policies import Step

MOST_NAMED = 8


@dataclass(frozen=True)
class Divergence:
    """First difference between a log and its replay.

    `kind` is decision (the policy), bits (a checksum) or accounting. `shard` -1: all."""

    kind: str
    step: int
    text: str
    shard: int = -1
    workers: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Convert to plain containers."""
        return {**asdict(self), "workers": list(self.workers), "batches": list(self.batches)}


class DivergenceError(GbactlError):
    """Error: the replay differs from the run. Exit code 1."""

    def __init__(self, found: Divergence) -> None:
        super().__init__(found.text)
        self.found = found


class LoggedPhase:
    """Phase driven by the records of a log, fed in order. Raises DivergenceError where log and policy differ."""

    def __init__(self, phase: TrainingPhase) -> None:
        self.phase = phase
        self.due: deque[Command] = deque()  # steps and drops that the policy decided and the log has yet to confirm

    def feed(self, record: Record) -> list[Command]:
        """Apply the next record. Returns the commands that it confirms, each of them settled."""
        if isinstance(record, InfoRecord):
            if record.kind == event_log.SERVER and record.fields["state"] == "lost":
                self.phase.server_lost(record.fields["shard"])
            return []
        if isinstance(record, OrderRecord):
            confirmed: list[Command] = [self._order(record)]
        elif isinstance(record, DropRecord):
            confirmed = [self._drop(record)]
        else:
            self._undisturbed()
            confirmed = self._happened(record)
        for command in confirmed:
            self.phase.settle(command)
        return confirmed

    def discards(self, batch: int) -> bool:
        """Whether the policy has decided to discard an announced gradient."""
        return any(isinstance(command, DiscardGradient) and command.drop.batch == batch for command in self.due)

    def close(self) -> None:
        """Check that the phase is over and that its samples add up."""
        self._undisturbed("The phase ends in the log")
        self._idle("The phase ends in the log")
        if not self.phase.closed:
            self._part("The phase ends in the log before what was left over was applied", [])
        try:
            self.phase.policy.ledger.check()
        except AccountingError as error:
            raise DivergenceError(Divergence("accounting", self.phase.policy.step, str(error))) from error

    def _happened(self, record: Any) -> list[Command]:
        if isinstance(record, GrantRecord):
            return self._grant(record)
        if isinstance(record, ForgoRecord):
            return self._forgo(record)
        if isinstance(record, AnnounceRecord):
            self._leased(record)
        if isinstance(record, FinishRecord):
            self._idle("The log finishes the phase")
        self.due.extend(self.phase.apply(record))
        return []

    def _grant(self, record: GrantRecord) -> list[Command]:
        commands = self.phase.apply(Take(record.worker))
        own = [(each.grant.batch, each.grant.token) for each in commands if isinstance(each, HandOut)]
        if own != [(record.batch, record.token)]:
            now = " ".join(f"batch {batch} with token {token}" for batch, token in own) or "nothing"
            self._part(
                f"The log hands W{record.worker} batch {record.batch} with token {record.token}, the policy {now}",
                [(record.worker, record.batch)],
            )
        return commands

    def _forgo(self, record: ForgoRecord) -> list[Command]:
        commands = self.phase.apply(Forgo())
        if len(commands) != record.batches:
            self._part(f"The log gives {record.batches} batches up, the policy {len(commands)}", [])
        return commands

    def _leased(self, record: AnnounceRecord) -> None:
        owner, _ = self.phase.policy.leases.get(record.batch, (None, None))
        if owner != record.worker:
            gradient = (record.worker, record.batch)
            self._part(f"The log announces {named([gradient])}, which was not handed to it", [gradient])

    def _order(self, record: OrderRecord) -> Command:
        due = self.due.popleft() if self.due else None
        if not isinstance(due, ApplyStep):
            batches = [batch for batch, _ in record.members]
            self._part(f"The log orders step {record.step} of batches {batches}, the policy {_shown(due)}", [])
        assert isinstance(due, ApplyStep)
        own = order_record(due)
        if own != record:
            members = [(member.worker, member.batch) for member in due.step.members]
            self._part(f"Step {record.step}: {_difference(record, own)} ({named(members)})", members)
        return due

    def _drop(self, record: DropRecord) -> Command:
        due = self.due.popleft() if self.due else None
        gradient = (record.worker, record.batch)
        if not isinstance(due, DiscardGradient) or (due.worker, due.drop.batch) != gradient:
            self._part(f"The log discards {named([gradient])}, the policy {_shown(due)}", [gradient])
        assert due is not None
        return due

    def _undisturbed(self, text: str = "The log goes on") -> None:
        """Check that the log has confirmed everything that was decided."""
        if self.due:
            self._part(f"{text}, but the policy {_shown(self.due[0])}", [])

    def _idle(self, text: str) -> None:
        """Check that no batch is in flight."""
        if not self.phase.policy.idle:
            leases = [(worker, batch) for batch, (worker, _) in sorted(self.phase.policy.leases.items())]
            self._part(f"{text} while something is in flight ({named(leases)})", leases)

    def _part(self, text: str, gradients: list[tuple[int, int]]) -> None:
        workers, batches = tuple(w for w, _ in gradients), tuple(b for _, b in gradients)
        first = self.due[0] if self.due else None
        step = first.step.step if isinstance(first, ApplyStep) else self.phase.policy.step
        raise DivergenceError(Divergence("decision", step, f"{text}.", -1, workers, batches))


def order_record(command: ApplyStep) -> OrderRecord:
    """Convert a step to its record in the event log."""
    step = command.step
    return OrderRecord(step.step, step.divisor, step.weight_sum, command.lr_scale, _members(step))


def named(gradients: Sequence[tuple[int, int]]) -> str:
    """Format (worker, batch) pairs as `W0 batch 3, W2 batch 5`, the first few of them."""
    text = ", ".join(f"W{worker} batch {batch}" for worker, batch in gradients[:MOST_NAMED])
    more = len(gradients) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text or "no gradient"


def _members(step: Step) -> tuple[tuple[int, float], ...]:
    return tuple((member.batch, member.weight) for member in step.members)


def _shown(due: Command | None) -> str:
    if isinstance(due, DiscardGradient):
        return f"discards {named([(due.worker, due.drop.batch)])}"
    if isinstance(due, ApplyStep):
        return f"orders step {due.step.step} of batches {[m.batch for m in due.step.members]}"
    return "decides nothing"


def _difference(logged: OrderRecord, own: OrderRecord) -> str:
    """Describe the first field that differs."""
    for name, log_has, policy_has in zip(OrderRecord._fields, logged, own, strict=True):
        if name == "members":
            return _member_difference(logged, own)
        if log_has != policy_has:
            return f"the log has {name.replace('_', ' ')} {log_has}, the policy {policy_has}"
    raise AssertionError("nothing differs")


def _member_difference(logged: OrderRecord, own: OrderRecord) -> str:
    log_has: list[Any] = [batch for batch, _ in logged.members]
    policy_has: list[Any] = [batch for batch, _ in own.members]
    if log_has != policy_has:
        return f"the log has batches {log_has}, the policy {policy_has}"
    (batch, log_weight), (_, weight) = next(
        pair for pair in zip(logged.members, own.members, strict=True) if pair[0] != pair[1]
    )
    return f"the log gives batch {batch} weight {log_weight}, the policy {weight}"

"""The policy driven again: fed what the log says happened, it must decide what the log says it decided."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gbactl.coordinator.event_log import AnnounceRecord, DropRecord, ForgoRecord, GrantRecord, OrderRecord
from gbactl.errors import AccountingError
from gbactl.policies import Decision, Drop, Grant, Policy, Step
from gbactl.replay.divergence import Divergence, DivergenceError, named


@dataclass(frozen=True)
class Due:
    """A decision that the log has yet to show; `lr_scale` is that of a step, `worker` a drop's."""

    decision: Decision
    lr_scale: float = 0.0
    worker: int = -1


class Decisions:
    """One phase. Every method raises DivergenceError where log and policy part."""

    def __init__(self, policy: Policy, lr_scale: Callable[[int], float]) -> None:
        self.policy, self.lr_scale = policy, lr_scale
        self._due: deque[Due] = deque()
        self._finished = False

    def grant(self, record: GrantRecord) -> Grant:
        """A batch was handed out."""
        grant = self.policy.take(record.worker)
        own = None if grant is None else (grant.batch, grant.token)
        if own != (record.batch, record.token):
            now = "nothing" if own is None else f"batch {own[0]} with token {own[1]}"
            self._part(
                f"The log hands W{record.worker} batch {record.batch} with token {record.token}, the policy {now}",
                [(record.worker, record.batch)],
            )
        assert grant is not None
        return grant

    def announce(self, record: AnnounceRecord) -> bool:
        """A gradient was announced. False if the policy discards it at once."""
        owner, grant = self.policy.leases.get(record.batch, (None, None))
        if grant is None or owner != record.worker:
            gradient = (record.worker, record.batch)
            self._part(f"The log announces {named([gradient])}, which was not handed to it", [gradient])
        before = self.policy.ledger.finished
        decisions = self.policy.announce(record.worker, record.batch)
        self._expect(decisions, before, record.worker)
        return not any(isinstance(d, Drop) and d.batch == record.batch for d in decisions)

    def left(self, worker: int) -> None:
        """A worker was lost."""
        before = self.policy.ledger.finished
        self.policy.lost_worker(worker)
        self._expect(self.policy.poll(), before, -1)

    def joined(self, worker: int) -> None:
        """A worker came."""
        before = self.policy.ledger.finished
        self.policy.joined_worker(worker)
        self._expect(self.policy.poll(), before, -1)

    def forgo(self, record: ForgoRecord) -> list[int]:
        """What was in flight was given up: those batches."""
        flying = self.policy.forgo()
        if len(flying) != record.batches:
            self._part(f"The log gives {record.batches} batches up, the policy {len(flying)}", [])
        return flying

    def order(self, record: OrderRecord) -> tuple[Step, float]:
        """A step was ordered: (the policy's own, its learning-rate factor)."""
        if not self._due:
            self._finish()
        due = self._due.popleft() if self._due else None
        if due is None or isinstance(due.decision, Drop):
            self._part(
                f"The log orders step {record.step} of batches {[b for b, _ in record.members]}, the policy "
                f"{_shown(due)}", []
            )  # fmt: skip
        assert due is not None and isinstance(due.decision, Step)
        step = due.decision
        own = OrderRecord(step.step, step.divisor, step.weight_sum, due.lr_scale, _members(step))
        if own != record:
            members = [(member.worker, member.batch) for member in step.members]
            self._part(f"Step {record.step}: {_difference(record, own)} ({named(members)})", members)
        return step, due.lr_scale

    def drop(self, record: DropRecord) -> None:
        """A gradient was discarded."""
        due = self._due.popleft() if self._due else None
        gradient = (record.worker, record.batch)
        if due is None or not isinstance(due.decision, Drop) or (due.worker, due.decision.batch) != gradient:
            self._part(f"The log discards {named([gradient])}, the policy {_shown(due)}", [gradient])

    def close(self) -> None:
        """The phase is over."""
        if not self._due:
            self._finish()
        if self._due:
            self._part(f"The phase ends in the log, but the policy {_shown(self._due[0])}", [])
        if not self.policy.idle:
            leases = [(worker, batch) for batch, (worker, _) in sorted(self.policy.leases.items())]
            self._part(f"The phase ends in the log while something is in flight ({named(leases)})", leases)
        try:
            self.policy.ledger.check()
        except AccountingError as error:
            raise DivergenceError(Divergence("accounting", self.policy.step, str(error))) from error

    def undisturbed(self) -> None:
        """Nothing else may happen before what was decided is in the log."""
        if self._due:
            self._part(f"The log goes on, but the policy {_shown(self._due[0])}", [])

    @property
    def due(self) -> tuple[Due, ...]:
        """What was decided and is not in the log."""
        return tuple(self._due)

    def _finish(self) -> None:
        self._join()
        if self.policy.idle and not self._finished:
            self._finished = True
            before = self.policy.ledger.finished
            self._expect(self.policy.finish(), before, -1)

    def _join(self) -> None:
        """Where everybody takes part in every step, those without a batch of the last one, too: no log has that."""
        policy = self.policy
        if policy.dense_on == "workers" and policy.ledger.read == policy.phase.samples:
            for worker in (*policy.phase.workers, *policy.phase.joiners):
                while policy.take(worker) is not None:
                    pass

    def _expect(self, decisions: Sequence[Decision], finished: int, worker: int) -> None:
        for decision in decisions:
            if isinstance(decision, Drop):
                self._due.append(Due(decision, worker=worker))
                finished += decision.samples
            else:
                self._due.append(Due(decision, self.lr_scale(finished)))
                finished += sum(member.samples for member in decision.members)

    def _part(self, text: str, gradients: list[tuple[int, int]]) -> None:
        workers, batches = tuple(w for w, _ in gradients), tuple(b for _, b in gradients)
        step = self.policy.step if not self._due else getattr(self._due[0].decision, "step", self.policy.step)
        raise DivergenceError(Divergence("decision", step, f"{text}.", -1, workers, batches))


def _members(step: Step) -> tuple[tuple[int, float], ...]:
    return tuple((member.batch, member.weight) for member in step.members)


def _shown(due: Due | None) -> str:
    if due is None:
        return "decides nothing"
    if isinstance(due.decision, Drop):
        return f"discards {named([(due.worker, due.decision.batch)])}"
    return f"orders step {due.decision.step} of batches {[m.batch for m in due.decision.members]}"


def _difference(logged: OrderRecord, own: OrderRecord) -> str:
    """The first field that is not the same, in words."""
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

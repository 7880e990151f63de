"""Training phase with its I/O: hands out batches, takes announcements, orders and journals steps.

The phase (training_phase.py) makes every decision. Here each event and each command is written into the event log,
and then carried out on the channels to workers and servers. A gradient costs the coordinator about 60 us.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gbactl.checkpoint.remaining_samples import Ranges
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    EventLog,
    FinishRecord,
    ForgoRecord,
    GrantRecord,
    JoinedRecord,
    LeftRecord,
    StopRecord,
)
from gbactl.coordinator.membership import Membership
from gbactl.coordinator.training_phase import (
    ApplyStep,
    Decided,
    DiscardGradient,
    GiveUpBatch,
    TrainingPhase,
    order_record,
    step_order,
)
from gbactl.errors import ClusterError, WireError
from gbactl.policies.policy import Grant, refusal
from gbactl.store.optimizer_settings import due
from gbactl.wire.messages import DropSlice, Granted, OrderStep, PrefetchHint, Staged

MOST_JOINS = 4  # more than a worker may hold at once


@dataclass
class PhaseClock:
    """Times of a phase's first and last hand-out and first and last announced gradient, in seconds by `now`."""

    now: Callable[[], float]
    first: float | None = None
    last: float = 0.0
    gradients: tuple[float, float] | None = None  # times of the first and last announcement

    def tick(self) -> None:
        """Record the time of a hand-out."""
        self.last = self.now()
        self.first = self.last if self.first is None else self.first

    def announced(self) -> None:
        """Record the present time as that of the last announced gradient, at first also as that of the first one."""
        now = self.now()
        self.gradients = (now if self.gradients is None else self.gradients[0], now)

    @property
    def seconds(self) -> float:
        """Seconds from the first hand-out to the last announced gradient: the time base of EPS (samples per second)."""
        return 0.0 if self.first is None or self.gradients is None else self.gradients[1] - self.first


class LivePhase:
    """Training phase number `number` on live channels; `waiting`: workers whose request for a batch is unanswered."""

    def __init__(
        self, number: int, phase: TrainingPhase, members: Membership, log: EventLog, waiting: deque[int],
        now: Callable[[], float] = time.monotonic, checksum_every: int = 0,
    ) -> None:  # fmt: skip
        self.number, self.phase, self.members, self.log, self.waiting = number, phase, members, log, waiting
        self.policy = phase.policy  # decides about batches and steps
        self.clock, self.checksum_every = PhaseClock(now), checksum_every
        self.ranges: Ranges = ((0, self.policy.phase.samples),)
        self.on_grant: Callable[[int, int], None] = lambda worker, token: None
        self.on_order: Callable[[int], None] = lambda steps: None
        self.on_loss: Callable[[int, float], None] = lambda worker, loss: None  # called before the gradient is logged
        self.mode = ""  # its name, for statistics
        self.stop_at: int | None = None  # the global step at which the phase ends
        self.stopped: float | None = None  # time at which the phase was ordered to end
        self.single_batch = False  # whether a worker gets no second batch while it has one: without prefetch
        self._openings = -1
        self._staged: dict[int, dict[int, Staged]] = {}  # batch -> shard -> its staged gradient slice
        self._ignored: set[int] = set()
        self.empty_grants: dict[int, deque[Granted]] = {}  # per worker: its last ones, which no gradient confirms
        self._uninformed: set[int] = set()  # workers to which the phase was not announced yet
        self._unrequested: set[int] = set()  # batches in flight whose workers had not asked for one
        self.shards = members.expected["server"]
        self._refresh_servers()
        self.workers = members.channels_of("worker")

    def _refresh_servers(self) -> None:
        """Refresh the list of connected servers.

        A missing server's successor does not need the messages that the others get until it is connected."""
        self.servers = [channel for _, channel in sorted(self.members.channels_of("server").items())]

    def on_server_failure(self, shard: int) -> None:
        """Handle a server failure: announce a gradient only after the server's successor has staged its slice."""
        self._refresh_servers()
        for staged in self._staged.values():
            staged.pop(shard, None)
        self.phase.on_server_failure(shard)

    def on_server_replaced(self) -> list[int]:
        """Connect a failed server's successor. Returns the batches whose gradients arrived and are not applied yet.

        The successor has no slices of these gradients."""
        self._refresh_servers()
        return [] if self.phase.slices is None else self.phase.slices.unapplied

    def serve(self) -> None:
        """Hand batches to the workers that wait for one, as far as the policy allows."""
        if self.policy.openings == self._openings:
            return
        self._openings = self.policy.openings
        for _ in range(len(self.waiting)):
            worker = self.waiting.popleft()
            if not self.take(worker):
                self.waiting.append(worker)

    def check_hand_out(self) -> None:
        """Raise ClusterError if a user's policy refuses every worker, and no event is left to change this.

        Not to be called while a failed worker's successor is awaited."""
        policy, kind = self.policy, type(self.policy)
        if kind.__module__.startswith("gbactl.") or policy.leases or policy.exhausted or self._uninformed:
            return
        if policy.openings == self._openings and policy.live and policy.live.issubset(self.waiting):
            which = f"mode.target={kind.__module__}.{kind.__qualname__}"
            raise ClusterError(f"{which} {refusal(policy.phase.samples - policy.ledger.read)}.")

    def take(self, worker: int, requested: bool = True) -> bool:
        """Hand a worker its next batch, if the policy allows."""
        # a worker may not know the phase yet after a failover
        unreachable = worker not in self.workers or worker in self._uninformed
        if unreachable or (self.single_batch and self.policy.leased_to(worker)):
            return False
        grant = self.policy.take(worker)
        if grant is None:
            return False
        if requested:
            self._unrequested.discard(grant.batch)  # another worker had got it unrequested, and failed
        else:
            self._unrequested.add(grant.batch)
        self.clock.tick()
        self.log.write(GrantRecord(worker, grant.batch, grant.token))
        self.send_grant(worker, grant)
        self._send_hints()
        self.on_grant(worker, grant.token)
        return True

    def _send_hints(self) -> None:
        """Announce to workers the batches that they will get next, if the policy has already fixed those."""
        phase = self.policy.phase
        for worker, batch in self.policy.ahead:
            if worker in self.workers and worker not in self._ignored | self._uninformed:
                message = PrefetchHint(self.number, batch, batch * phase.local_batch, phase.size(batch))
                self.workers[worker].send(message)

    def send_grant(self, worker: int, grant: Grant) -> None:
        """Send a worker the grant of a batch."""
        message = Granted(
            self.number,
            grant.batch,
            grant.token,
            grant.start,
            grant.samples,
            grant.after,
            grant.divisor,
            self.phase.lr_scale(grant.progress) if grant.divisor else 0.0,  # of a step that the workers apply
            self.phase.statistics.unslowed_seconds(worker, grant.samples),
        )
        self.workers[worker].send(message)
        if not grant.samples:
            self.empty_grants.setdefault(worker, deque(maxlen=MOST_JOINS)).append(message)

    def resume_after_failover(self, due: Iterable[Decided], uninformed: set[int]) -> None:
        """Continue a phase after a coordinator failover, once the log's records are applied to it.

        `due`: commands still to be carried out; `uninformed`: workers that get no message before `resume_hand_out`."""
        self._uninformed = uninformed
        if self.phase.stopped:
            self.stop_at, self.stopped = None, self.clock.now()
        for command in due:
            self._carry_out(command)

    def resume_hand_out(self) -> None:
        """Resume the hand-out after a failover, once all workers know the phase."""
        self._uninformed, self._openings = set(), -1
        self.serve()
        self._hand_out_unrequested()

    @property
    def remaining_ranges(self) -> Ranges:
        """Sample ranges of the phase that are not yet trained, decayed or lost."""
        return self.phase.finished.remaining(self.ranges, self.policy.phase.local_batch)

    def on_staged(self, message: Staged) -> bool:
        """Record a shard's staged gradient slice. Returns whether all shards have theirs, so that it is announced."""
        grant = self.policy.leased_to(message.worker).get(message.batch)
        if grant is None or message.worker in self._ignored or message.phase != self.number:
            return False
        staged = self._staged.setdefault(message.batch, {})
        staged[message.shard] = message
        if len(staged) < self.shards:
            return False
        del self._staged[message.batch]
        self._announce([staged[shard] for shard in sorted(staged)], grant.samples)
        return True

    def ignore_worker(self, worker: int) -> list[int]:
        """Ignore a failed worker's messages from now on. Returns the batches that it holds."""
        self._ignored.add(worker)
        leased = sorted(self.policy.leased_to(worker))
        for batch in leased:
            self._staged.pop(batch, None)
        self.empty_grants.pop(worker, None)
        return leased

    def release_batches(self, worker: int) -> None:
        """Let a failed worker's batches be handed out again, once every server refuses its messages."""
        if worker not in self.policy.live:
            return
        self._ignored.add(worker)
        self._log_and_decide(LeftRecord(worker))
        self.serve()
        self._hand_out_unrequested()

    def _hand_out_unrequested(self) -> None:
        """Hand a failed worker's batches of open steps to the workers that take part in those steps, unrequested."""
        for worker in sorted(self.policy.live):
            while self.policy.owes_batch(worker) and self.take(worker, requested=False):
                pass

    def requested(self, batch: int) -> bool:
        """Whether the worker requested this batch; only then its announced gradient also requests the next one."""
        if batch not in self._unrequested:
            return True
        self._unrequested.discard(batch)
        return False

    def on_worker_joined(self, worker: int) -> None:
        """Add a failed worker's successor to the phase, if the phase admits this worker."""
        self._ignored.discard(worker)
        self.workers[worker] = self.members.channels_of("worker")[worker]
        if worker not in (*self.policy.phase.workers, *self.policy.phase.joiners):
            return
        self._log_and_decide(JoinedRecord(worker))
        self.serve()

    def _announce(self, slices: list[Staged], samples: int) -> None:
        """Log a gradient that every shard has staged, and carry out the policy's decisions."""
        first = slices[0]
        rows = tuple([staged.row_version for staged in slices])
        dense = tuple([staged.dense_version for staged in slices])
        self._check(rows, dense)
        self.on_loss(first.worker, first.loss)
        counted = () if self.phase.slices is None else tuple(staged.rows for staged in slices)
        gradient = AnnounceRecord(first.worker, first.batch, rows, dense, counted)
        self.log.write(gradient if self.log.ahead else gradient._replace(part_rows=()))
        self.clock.announced()
        commands = self.phase.apply(gradient)
        self.phase.statistics.add_timing(
            first.worker, samples, first.loss, first.seconds, first.slowdown, (first.won, first.pairs)
        )
        times = self.phase.statistics.times
        times.add(self.clock.now(), first.worker, first.seconds, first.waits, self.mode)
        for command in commands:
            self._carry_out(command)
        if self.stop_at is not None and self.policy.step >= self.stop_at:
            self.stop()
        self.serve()

    def _check(self, rows: tuple[int, ...], dense: tuple[int, ...]) -> None:
        """Check that a gradient was computed from versions that exist. Raises WireError otherwise."""
        if min(rows) < 0 or min(dense) < -1 or max(rows + dense) > self.policy.step:
            versions = f"{list(rows)} (rows) and {list(dense)} (dense)"
            raise WireError(f"not all versions {versions} of a gradient exist at step {self.policy.step}")

    def stop(self) -> None:
        """End the phase as soon as possible, for a switch, successor or rollback."""
        self._log_and_decide(StopRecord(0))
        self.stop_at, self.stopped = None, self.clock.now()
        self.serve()

    def forgo(self) -> list[tuple[int, int, set[int]]]:
        """Give up the batches in flight. Returns each as (worker, batch, shards that staged its gradient slice)."""
        commands = self.phase.forgo()
        self.log.write(ForgoRecord(len(commands)))
        for command in commands:
            self._drop(command)
        staged = {command.batch: set(self._staged.pop(command.batch, ())) for command in commands}
        return [(worker, batch, staged[batch]) for worker, batch in commands if worker >= 0]

    def finish(self) -> None:
        """Apply the gradients left in the buffer once no batch is in flight, and check the sample counts."""
        if not self.phase.closed:
            self._log_and_decide(FinishRecord())
        self.policy.ledger.check()

    def _log_and_decide(self, event: LeftRecord | JoinedRecord | StopRecord | FinishRecord) -> None:
        """Log an event, pass it to the policy, and carry out the policy's decisions."""
        self.log.write(event)
        for command in self.phase.apply(event):
            self._carry_out(command)

    def _carry_out(self, command: Decided) -> None:
        """Log a command, apply its effects, and send it to the servers."""
        if isinstance(command, ApplyStep):
            self._order(command)
        else:
            self._drop(command)

    def _drop(self, command: DiscardGradient | GiveUpBatch) -> None:
        batch = command.drop.batch if isinstance(command, DiscardGradient) else command.batch
        if isinstance(command, DiscardGradient):
            self.log.write(DropRecord(command.worker, batch))
        self.phase.account(command)
        for channel in self.servers:
            channel.send(DropSlice(self.number, batch))

    def _order(self, command: ApplyStep) -> None:
        self.log.write(order_record(command))
        order = self.order_message(command)
        for channel in self.servers:
            channel.send(order)
        self.phase.account(command)
        self.on_order(command.step.step + 1)

    def order_message(self, command: ApplyStep) -> OrderStep:
        """Convert a step command to the message that orders it on the servers."""
        order = step_order(command, self.policy.phase.local_batch)
        return OrderStep(self.number, order, due(self.checksum_every, order.step))

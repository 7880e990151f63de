"""Coordinator failover: a new coordinator restores the run to where its predecessor's log ends.

Every decision of the failed coordinator that another process can know of is in its log (see state.py), so the policy is
driven to the log's end again. Then servers report their state and get the orders that they miss; gradients that were
staged there and never announced are announced now. Workers report their grants and get the grants that they have not
received; a worker with fewer batches than it asked for waits for one. No batch is trained twice or lost; an evaluation
begins anew, and a checkpoint in progress is given up. A failover costs a message to and from every node.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from gbactl.checkpoint.remaining_samples import Ranges
from gbactl.config import mode_values
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, InfoRecord
from gbactl.coordinator.event_routing import CoordinatorCore
from gbactl.coordinator.failure_recovery import UNANSWERED
from gbactl.coordinator.live_phase import MOST_JOINS, LivePhase
from gbactl.coordinator.run_context import Flow, WaitCondition
from gbactl.coordinator.state import EVALUATE, OVER, TRAIN, JournalState
from gbactl.coordinator.training_phase import ApplyStep, Command, HandOut, LoggedPhase
from gbactl.errors import ClusterError, PeerGoneError, WireError
from gbactl.policies.policy import Grant
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import (
    Abandon,
    BeginPhase,
    Granted,
    Hello,
    MoveDense,
    RingBroken,
    ServerState,
    Staged,
    SummandsLost,
    TakeBatch,
    Takeover,
    WorkerFailed,
    WorkerState,
)

log = logging.getLogger(__name__)


class Failover:
    """Takeover of a run by a new coordinator, until every node continues. `journal`: the failed one's saved state."""

    def __init__(self, core: CoordinatorCore, journal: JournalState) -> None:
        self.core, self.run, self.journal, self.state = core, core.run, journal, journal.state
        incarnations, self.stage = journal.state.ongoing.lives, journal.state.standstill.stage
        self.incarnations, self.servers = dict(incarnations.workers), dict(incarnations.servers)
        self.failed_workers = list(incarnations.failed_workers)
        self.live_workers = set(range(core.run.cfg.processes)) - set(self.failed_workers)
        infos = [record for record in journal.records if isinstance(record, InfoRecord)]
        phases = [record.fields for record in infos if record.kind == event_log.PHASE]
        self.number = journal.state.standstill.phase + len(phases)
        self.run.begin_phase = BeginPhase(**phases[-1]) if phases and self.stage == TRAIN else None
        self.server_failures = [record.fields for record in infos if record.kind == event_log.SERVER]
        self.failures = [record.fields for record in infos if record.kind == event_log.FAILURE]
        self.announced = any(isinstance(record, AnnounceRecord) for record in journal.records)
        self._server_states: dict[int, ServerState] = {}
        self._worker_states: dict[int, WorkerState] = {}
        self._staged: list[tuple[Channel, Staged]] = []
        self._sums: list[SummandsLost | RingBroken] = []
        self._round_state: tuple[Ranges, bool, bool] | None = None

    # -- reconnecting nodes -------------------------------------------------------------------------

    def gather(self) -> Flow[None]:
        """Wait for servers and launcher to reconnect; for workers at most as long as a worker may be silent.

        Raises ClusterError that names the missing servers, or those that were lost just before."""
        run, cluster = self.run, self.run.cfg.cluster
        servers = set(range(cluster.servers))
        self.core.servers.check_failover(self.server_failures)
        run.members.informed |= self.live_workers

        def all_connected() -> bool:
            return servers <= set(self._server_states) and run.launcher is not None

        def complete() -> bool:
            return all_connected() and self.live_workers <= set(self._worker_states)

        if (yield WaitCondition(all_connected, run.hub.now() + cluster.start_timeout)):
            yield WaitCondition(complete, run.hub.now() + cluster.hang_seconds)
        if not all_connected():
            missing = ", ".join(f"S{shard}" for shard in sorted(servers - set(self._server_states))) or "The launcher"
            raise ClusterError(f"{missing} did not reconnect to the new coordinator; look into the logs.")
        run.members.settled = True

    def hello(self, channel: Channel, hello: Hello) -> None:
        """Let a node reconnect. Raises WireError for one that the journal does not know."""
        known = self.servers if hello.role == "server" else self.incarnations
        failed = hello.role == "worker" and hello.number not in self.live_workers
        if failed or channel.peer.incarnation != known.get(hello.number, 0):
            raise WireError(f"{channel.peer} is none of the nodes that were live before the failover.")
        self.run.members.hello(channel, hello)
        channel.send(Takeover(self.journal.term))

    def on_lost(self, channel: Channel) -> bool:
        """Forget a node that was lost during the failover; it may reconnect. Returns False if the failover is over."""
        if self.run.members.settled:
            return False
        if self.run.members.forget(channel):
            answers: dict[int, Any] = self._server_states if channel.peer.role == "server" else self._worker_states
            answers.pop(channel.peer.index, None)
        return True

    def holds_back(self, channel: Channel, message: Any) -> bool:
        """Hold back or discard a message that must not be handled yet. Returns False if it can be handled now.

        Raises WireError where its sender may not send it."""
        if isinstance(message, Staged):
            self.run.members.authentic(channel, "server", message.shard)
            if message.shard in self._server_states:
                self._staged.append((channel, message))
            return True
        if isinstance(message, SummandsLost | RingBroken):
            self._sums.append(message)
            return True
        return isinstance(message, TakeBatch) and message.worker not in self._worker_states

    def server_state(self, message: ServerState) -> None:
        """Record a server's answer to Takeover; ignore one for an earlier coordinator."""
        if message.term == self.journal.term:
            self._server_states[message.shard] = message

    def worker_state(self, message: WorkerState) -> None:
        """Record a worker's answer to Takeover; ignore one for an earlier coordinator."""
        if message.term == self.journal.term:
            self._worker_states[message.worker] = message

    # -- restoring the run --------------------------------------------------------------------------

    def restore(self) -> Flow[bool]:
        """Restore the run to the last point at which no batch was in flight. Returns whether all rounds are over."""
        run, standstill, position = self.run, self.state.standstill, self.state.standstill.position
        assert position is not None
        run.record.continue_clock(run.hub.now() - standstill.began)
        run.record.restore(position)
        run.record.inherited = position.inherited
        run.record.optimizer_reset = self.state.ongoing.optimizer_reset_at == position.step
        run.restore_times(replaced=False)
        run.step, run.phase_number = position.step, self.number
        if position.mode != mode_values(run.current):
            run.current = run.cfg.in_mode(position.mode)
        run.switch_plan.taken = position.switches
        if self.announced:  # a switch before this phase is reported without its pause, whose start is unknown
            self.state.switch.gradient = None
        if (observed := run.record.statistics.observed) is not None:
            observed.acted.restore(self.state.ongoing.acted)
        run.failures.restore_from_log(self.failures)
        if self.stage != OVER:  # no round is open: one that a rollback opens again is trained from the checkpoint on
            round_begun = standstill.round_begun or self.stage == EVALUATE
            self._round_state = (tuple(standstill.rest), round_begun, self.stage == TRAIN)
        if run.begin_phase is None:
            yield from self._resume(None, {})
        return self.stage == OVER

    def resumed_round(self) -> tuple[Ranges, bool, bool] | None:
        """Return, at the first call, the state of the round that the failed coordinator had begun; else None."""
        state, self._round_state = self._round_state, None
        return state

    # -- within a phase -----------------------------------------------------------------------------

    def go_on(self, training: LivePhase) -> Flow[None]:
        """Restore a resumed phase, on the coordinator and every node, to the point where the log ends.

        Raises ClusterError or DivergenceError where the log does not belong to this run."""
        begin_phase, policy = self.run.begin_phase, training.policy
        assert begin_phase is not None
        logged_phase = (begin_phase.samples, begin_phase.first_step, begin_phase.number)
        if (policy.phase.samples, policy.step, training.number) != logged_phase:
            raise ClusterError(f"The event log has a phase {begin_phase.number} that this run cannot have had.")
        logged = LoggedPhase(training.phase)
        commands = logged.feed_tail(self.journal.records)
        clock = training.clock
        if any(isinstance(command, HandOut) for command in commands):
            clock.first, clock.last = self.state.standstill.at, self.run.hub.now()
        if self.announced:  # the latest time possible: the log has no times
            clock.gradients = (self.journal.detected_at, self.journal.detected_at)
        for shard, state in sorted(self._server_states.items()):
            self._update_server(training, self.run.members.channels_of("server")[shard], state, commands)
        training.resume_after_failover(logged.due, set(self._worker_states))
        joins = [command for command in commands if isinstance(command, HandOut) and not command.grant.samples]
        missing = {
            worker: self._unreceived_grants(training, worker_state, joins)
            for worker, worker_state in self._worker_states.items()
        }
        yield from self._resume(training, missing)

    def _update_server(
        self, training: LivePhase, channel: Channel, state: ServerState, commands: Sequence[Command]
    ) -> None:
        """Send a server the phase and the step orders that it has not received."""
        if state.phase != training.number:
            channel.send(self.run.begin_phase_for_servers)
        for command in commands:
            if isinstance(command, ApplyStep) and command.step.step >= state.version:
                channel.send(training.order_message(command))

    def _unreceived_grants(
        self, training: LivePhase, state: WorkerState, empty_grants: Sequence[HandOut]
    ) -> list[Grant]:
        """Grants that a worker never received: of its leased batches, and of the last few empty grants."""
        received = set(state.granted)
        empty = [command.grant for command in empty_grants if command.worker == state.worker][-MOST_JOINS:]
        grants = (*training.policy.leased_to(state.worker).values(), *empty)
        return [grant for grant in grants if (self.number, grant.batch) not in received]

    def _unreceived_empty_grants(self, state: WorkerState) -> list[Granted]:
        """Empty grants of the phase before the last standstill that a worker never received.

        A worker that knows a later phase has received them, since messages keep their order."""
        received, empty_grants = set(state.granted), self._empty_grants(state.worker)
        return [grant for batch, grant in empty_grants.items() if grant.phase == state.phase and batch not in received]

    def _empty_grants(self, worker: int) -> dict[tuple[int, int], Granted]:
        """Empty grants that a worker was sent in the phase before the last standstill, by phase and batch."""
        return {
            (grant.phase, grant.batch): grant for owner, grant in self.state.standstill.empty_grants if owner == worker
        }

    # -- going on -----------------------------------------------------------------------------------

    def _resume(self, training: LivePhase | None, missing: dict[int, list[Grant]]) -> Flow[None]:
        run, core = self.run, self.core
        unreceived = {worker: self._unreceived_empty_grants(state) for worker, state in self._worker_states.items()}
        awaited = {
            worker: self._batches_awaited(training, state, missing.get(worker, []), len(unreceived[worker]))
            for worker, state in self._worker_states.items()
        }
        run.taking_over = False
        self._handle_lost_workers(training)
        if training is not None:
            for channel, staged in self._staged:
                if run.members.channels.get(("server", staged.shard)) is channel:
                    core.on_staged(staged)
            yield from core.requests.barrier(training.policy.step)
        for channel in run.members.channels_of("server").values():
            if channel.peer.incarnation:
                core.tell_workers_of(channel)
        for worker, state in sorted(self._worker_states.items()):
            if worker in run.members.channels_of("worker"):
                for grant in unreceived[worker]:
                    run.members.channels_of("worker")[worker].send(grant)
                if training is not None:
                    self._update_worker(training, state, missing[worker])
                for _ in range(awaited[worker]):
                    run.hand_out(worker)
        if training is not None:
            training.resume_hand_out()
        yield from core.migration.complete_migration(run.home)
        run.fencing.tell_workers()
        for message in self._sums:
            core.on_summed(message)
        log.info("coordinator %d goes on at step %d", self.journal.term, run.step_now)
        core.on_took_over(self.journal.failure, self.journal.detected_at, self.journal.last_sign)

    def _update_worker(self, training: LivePhase, state: WorkerState, missing: list[Grant]) -> None:
        """Send a worker the dense placement, the phase and the batches that it has not received."""
        if self.run.home == "servers" and self.incarnations.get(state.worker):
            self.run.members.channels_of("worker")[state.worker].send(MoveDense("servers", -1, UNANSWERED))
        if state.phase != training.number:
            self.run.members.channels_of("worker")[state.worker].send(self.run.begin_phase)
        for grant in missing:
            training.send_grant(state.worker, grant)

    def _batches_awaited(
        self, training: LivePhase | None, state: WorkerState, missing: list[Grant], unreceived: int
    ) -> int:
        """Number of batches that a worker still waits for: the number it may hold, less the number it holds.

        It is about to hold the empty grants among `missing`, and `unreceived` more of the phase before."""
        policy, worker = None if training is None else training.policy, state.worker
        leased = {} if policy is None else policy.leased_to(worker)
        held = len(leased) + sum(grant.samples == 0 for grant in missing) + unreceived
        empty_grants = self._empty_grants(worker)
        for phase, batch, trains in state.held:
            if phase == self.number and batch in leased:
                continue
            held += 1
            joins = phase == self.number and policy is not None and batch >= policy.phase.batches
            if trains and not joins and (phase, batch) not in empty_grants:  # this batch was given up at a switch
                self.core.switch.abandoned.add(phase, [(worker, batch, set())])
                self.run.members.channels_of("worker")[worker].send(Abandon(phase))
        may_have = 1 + self.run.cfg.prefetched_batches
        may_have += self.core.replicas.extra_requests(worker)
        if held > may_have:
            self.run.surplus_requests[worker] = held - may_have
        return max(0, may_have - held)

    def _handle_lost_workers(self, training: LivePhase | None) -> None:
        """Handle as failed the workers that had failed before or did not reconnect.

        Add to the phase the reconnected workers that it lacks."""
        run, core = self.run, self.core
        run.fencing.failed_workers.clear()
        for worker in self.failed_workers:
            batches = [] if training is None else training.ignore_worker(worker)
            run.fencing.fence(worker, self.number, batches, self.incarnations.get(worker, 0))
            run.members.send_to_all("worker", WorkerFailed(worker))
            core.report_lost(Peer("worker", worker, self.incarnations.get(worker, 0)), len(batches))
        for worker in sorted(self.live_workers - set(self._worker_states)):
            peer = Peer("worker", worker, self.incarnations.get(worker, 0))
            silent = run.members.channels_of("worker").get(worker)
            if silent is not None:
                run.members.forget(silent)
            if not core.on_worker_lost(peer):
                raise PeerGoneError(f"{peer} is gone.")
        if training is not None:
            self._add_reconnected_workers(training)

    def _add_reconnected_workers(self, training: LivePhase) -> None:
        """Add reconnected workers to the phase if the log does not record that they had joined it."""
        policy, members = training.policy, self.run.members.channels_of("worker")
        for worker in sorted(set(self._worker_states) & set(members) & set(policy.phase.workers) - policy.live):
            training.on_worker_joined(worker)

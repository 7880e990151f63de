"""Coordinator failover: a new coordinator restores the run to where its predecessor's log ends.

What any other process can know of the failed coordinator's decisions is in its log (see state.py), so the policy is
driven to the log's end again. Then servers report their state and get the orders that they miss; gradients staged there
and never announced are announced now. Workers report their grants and get those that they have not received; a worker
with fewer batches than it asked for waits for one. No batch is trained twice or lost; an evaluation begins
anew, and a checkpoint in progress is given up. Costs a message to and from every node.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
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
from gbactl.policies import Grant
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
    """Takeover of a run by a new coordinator, until every node continues. `found`: state that the failed one left."""

    def __init__(self, core: CoordinatorCore, found: JournalState) -> None:
        self.core, self.run, self.found, self.state = core, core.run, found, found.state
        lives, self.stage = found.state.ongoing.lives, found.state.stood.stage
        self.incarnations, self.servers = dict(lives.workers), dict(lives.servers)
        self.gone = list(lives.gone)
        self.known = set(range(core.run.cfg.processes)) - set(self.gone)
        infos = [record for record in found.records if isinstance(record, InfoRecord)]
        phases = [record.fields for record in infos if record.kind == event_log.PHASE]
        self.number = found.state.stood.phase + len(phases)
        self.begun = BeginPhase(**phases[-1]) if phases and self.stage == TRAIN else None
        self.server_records = [record.fields for record in infos if record.kind == event_log.SERVER]
        self.failures = [record.fields for record in infos if record.kind == event_log.FAILURE]
        self.announced = any(isinstance(record, AnnounceRecord) for record in found.records)
        self._standing: dict[int, ServerState] = {}
        self._holding: dict[int, WorkerState] = {}
        self._staged: list[tuple[Channel, Staged]] = []
        self._sums: list[SummandsLost | RingBroken] = []
        self._stood: tuple[int, tuple[Ranges, bool, bool]] | None = None

    # -- reconnecting nodes -------------------------------------------------------------------------

    def gather(self) -> Flow[None]:
        """Wait for servers and launcher to reconnect; for workers at most as long as a worker may be silent.

        Raises ClusterError that names the missing servers, or those that were lost just before."""
        run, cluster = self.run, self.run.cfg.cluster
        servers = set(range(cluster.servers))
        self.core.servers.restore(self.server_records)
        run.members.set_informed(self.known)

        def there() -> bool:
            return servers <= set(self._standing) and run.launcher is not None

        if not (yield WaitCondition(there, run.hub.now() + cluster.start_timeout)):
            missing = ", ".join(f"S{shard}" for shard in sorted(servers - set(self._standing))) or "The launcher"
            raise ClusterError(f"{missing} did not come back when another coordinator took over.")
        yield WaitCondition(lambda: self.known <= set(self._holding), run.hub.now() + cluster.hang_seconds)
        run.members.settled = True

    def hello(self, channel: Channel, hello: Hello) -> None:
        """Let a node reconnect. Raises WireError for one that the journal does not know."""
        incarnation = self.incarnations.get(hello.number, 0)
        if hello.role == "worker" and (hello.number not in self.known or channel.peer.incarnation != incarnation):
            raise WireError(f"{channel.peer} is not who was there before.")
        if hello.role == "server" and channel.peer.incarnation != self.servers.get(hello.number, 0):
            raise WireError(f"{channel.peer} is not who served there before.")
        self.run.members.hello(channel, hello)
        self.run.members.ready.add((hello.role, hello.number))
        channel.send(Takeover(self.found.term))

    def on_lost(self, channel: Channel) -> bool:
        """Forget a node whose connection is lost. Returns whether the failover goes on, as the node may reconnect."""
        if self.run.members.settled:
            return False
        if self.run.members.forget(channel):
            answers: dict[int, Any] = self._standing if channel.peer.role == "server" else self._holding
            answers.pop(channel.peer.index, None)
        return True

    def holds_back(self, channel: Channel, message: Any) -> bool:
        """Hold back or discard a message that must not be handled yet. Returns False if it can be handled now.

        Raises WireError where its sender may not send it."""
        if isinstance(message, Staged):
            self.run.members.authentic(channel, "server", message.shard)
            if message.shard in self._standing:
                self._staged.append((channel, message))
            return True
        if isinstance(message, SummandsLost | RingBroken):
            self._sums.append(message)
            return True
        return isinstance(message, TakeBatch) and message.worker not in self._holding

    def server_state(self, message: ServerState) -> None:
        """Record a server's answer to Revive; ignore one for an earlier coordinator."""
        if message.term == self.found.term:
            self._standing[message.shard] = message

    def worker_state(self, message: WorkerState) -> None:
        """Record a worker's answer to Revive; ignore one for an earlier coordinator."""
        if message.term == self.found.term:
            self._holding[message.worker] = message

    # -- restoring the run --------------------------------------------------------------------------

    def restore(self) -> Flow[bool]:
        """Restore the run to the last point at which no batch was in flight. Returns whether all rounds are over."""
        run, stood, position = self.run, self.state.stood, self.state.stood.position
        assert position is not None
        run.record.restore(position)
        run.record.inherited = position.inherited
        run.record.continue_clock(run.hub.now() - stood.began)
        run.restore_times(replaced=False)
        run.step, run.phase_number, run.started = position.step, self.number, True
        if position.mode != mode_values(run.current):
            run.current = run.cfg.in_mode(position.mode)
        self.core.switch.restore(stood.round, position.switches)
        if self.announced:  # a switch before this phase is reported without its pause, whose start is unknown
            self.state.switch.gradient = None
        run.record.statistics.restore_observed_faults(self.state.ongoing.acted)
        run.failures.restore_from_log(self.failures)
        inside = stood.inside or self.stage == EVALUATE
        self._stood = (stood.round, (tuple(stood.rest), inside, self.stage == TRAIN))
        if self.begun is None:
            yield from self._go_on(None, {})
        return self.stage == OVER

    def resumed_round(self, number: int) -> tuple[Ranges, bool, bool] | None:
        """Return the state of round `number` if the failed coordinator had begun it, at the first call; else None."""
        if self._stood is None or self._stood[0] != number:
            return None
        stood, self._stood = self._stood[1], None
        return stood

    # -- within a phase -----------------------------------------------------------------------------

    def go_on(self, training: LivePhase) -> Flow[None]:
        """Restore a resumed phase, on the coordinator and every node, to the point where the log ends.

        Raises ClusterError or DivergenceError where the log does not belong to this run."""
        begun, policy = self.begun, training.policy
        assert begun is not None
        if (policy.phase.samples, policy.step, training.number) != (begun.samples, begun.first_step, begun.number):
            raise ClusterError(f"The event log has a phase {begun.number} that this run cannot have had.")
        logged = LoggedPhase(training.phase)
        commands = self._replay_records(logged)
        clock = training.clock
        if any(isinstance(command, HandOut) for command in commands):
            clock.first, clock.last = self.state.stood.at, self.run.hub.now()
        if self.announced:  # the latest time possible: the log has no times
            clock.gradients = (self.found.missed, self.found.missed)
        for shard, standing in sorted(self._standing.items()):
            self._tell_server(training, self.run.members.channels_of("server")[shard], standing, commands)
        training.resume_after_failover(logged.due, set(self._holding))
        joins = [each for each in commands if isinstance(each, HandOut) and not each.grant.samples]
        missing = {worker: self._unreceived_grants(training, each, joins) for worker, each in self._holding.items()}
        yield from self._go_on(training, missing)

    def _replay_records(self, logged: LoggedPhase) -> list[Command]:
        """Replay the log's records on a phase. Returns the policy's commands that are in the log."""
        commands: list[Command] = []
        slices = logged.phase.slices
        with nullcontext(list[Any]()) if slices is None else slices.delayed_calls() as counted:
            for record in self.found.records:
                if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                    counted.clear()  # a note contains all row updates before it
                commands += logged.feed(record)
        return commands

    def _tell_server(
        self, training: LivePhase, channel: Channel, standing: ServerState, commands: Sequence[Command]
    ) -> None:
        """Send a server the phase and the step orders that it has not received."""
        assert self.begun is not None
        if standing.phase != training.number:
            channel.send(self._begun_for_servers)
        for command in commands:
            if isinstance(command, ApplyStep) and command.step.step >= standing.version:
                channel.send(training.order_message(command))

    @property
    def _begun_for_servers(self) -> BeginPhase:
        """Message that announces the current phase to servers (see RunFlow._begin)."""
        assert self.begun is not None
        return self.begun._replace(served_dense=self.run.home != "workers")

    def _unreceived_grants(self, training: LivePhase, holding: WorkerState, joins: Sequence[HandOut]) -> list[Grant]:
        """Grants that a worker never received: of its leased batches, and of the last few empty grants."""
        heard = set(holding.granted)
        leases = [grant for owner, grant in training.policy.leases.values() if owner == holding.worker]
        joined = [each.grant for each in joins if each.worker == holding.worker][-MOST_JOINS:]
        return [grant for grant in (*leases, *joined) if (self.number, grant.batch) not in heard]

    def _unreceived_empty_grants(self, holding: WorkerState) -> list[Granted]:
        """Empty grants of the phase before the last standstill that a worker never received.

        A worker that knows a later phase has received them, since messages keep their order."""
        heard, joins = set(holding.granted), self._empty_grants(holding.worker)
        return [grant for batch, grant in joins.items() if grant.phase == holding.phase and batch not in heard]

    def _empty_grants(self, worker: int) -> dict[tuple[int, int], Granted]:
        """Empty grants that a worker was sent in the phase before the last standstill, by phase and batch."""
        return {(grant.phase, grant.batch): grant for owner, grant in self.state.stood.joins if owner == worker}

    # -- going on -----------------------------------------------------------------------------------

    def _go_on(self, training: LivePhase | None, missing: dict[int, list[Grant]]) -> Flow[None]:
        run, core = self.run, self.core
        unheard = {worker: self._unreceived_empty_grants(each) for worker, each in self._holding.items()}
        waits = {
            worker: self._batches_awaited(training, each, missing.get(worker, []), len(unheard[worker]))
            for worker, each in self._holding.items()
        }
        run.taking_over = False
        self._handle_lost_workers(training)
        if training is not None:
            core.workers.begun, core.servers.begun = self.begun, self._begun_for_servers
            for channel, staged in self._staged:
                if run.members.channels.get(("server", staged.shard)) is channel:
                    core.on_staged(staged)
            yield from core.requests.barrier(training.policy.step)
        for channel in run.members.channels_of("server").values():
            if channel.peer.incarnation:
                core.tell_workers_of(channel)
        for worker, holding in sorted(self._holding.items()):
            if worker in run.members.channels_of("worker"):
                for grant in unheard[worker]:
                    run.members.channels_of("worker")[worker].send(grant)
                if training is not None:
                    self._tell_worker(training, holding, missing[worker])
                for _ in range(waits[worker]):
                    run.hand_out(worker)
        if training is not None:
            training.resume_hand_out()
        yield from core.migration.complete_migration(run.home)
        run.fencing.tell_workers()
        for told in self._sums:
            core.on_summed(told)
        self._report_takeover()

    def _tell_worker(self, training: LivePhase, holding: WorkerState, missing: list[Grant]) -> None:
        """Send a worker the dense placement, the phase and the batches that it has not received."""
        if self.run.home == "servers" and self.incarnations.get(holding.worker):
            self.run.members.channels_of("worker")[holding.worker].send(MoveDense("servers", -1, UNANSWERED))
        if holding.phase != training.number:
            self.run.members.channels_of("worker")[holding.worker].send(self.begun)
        for grant in missing:
            training.send_grant(holding.worker, grant, training.phase.lr_scale_of(grant))

    def _batches_awaited(
        self, training: LivePhase | None, holding: WorkerState, missing: list[Grant], unheard: int
    ) -> int:
        """Number of batches that a worker still waits for: the number it may hold, less the number it holds.

        It is about to hold the empty grants among `missing`, and `unheard` more of the phase before."""
        policy, worker = None if training is None else training.policy, holding.worker
        mine = set() if policy is None else {batch for batch, (owner, _) in policy.leases.items() if owner == worker}
        has, joined = len(mine) + sum(grant.samples == 0 for grant in missing) + unheard, self._empty_grants(worker)
        for phase, batch, trains in holding.held:
            if phase == self.number and batch in mine:
                continue
            has += 1
            joins = phase == self.number and policy is not None and batch >= policy.phase.batches
            if trains and not joins and (phase, batch) not in joined:  # this batch was given up at a switch
                self.core.switch.abandoned.add(phase, [(worker, batch, set())])
                self.run.members.channels_of("worker")[worker].send(Abandon(phase))
        may_have = 1 + max(each.mode.prefetched_batches for each in self.run.cfg.possible)
        may_have += self.core.replicas.extra_requests(worker)
        if has > may_have:
            self.run.surplus[worker] = has - may_have
        return max(0, may_have - has)

    def _handle_lost_workers(self, training: LivePhase | None) -> None:
        """Handle as failed the workers that had failed before the failover, and those that have not reconnected."""
        run, core = self.run, self.core
        run.fencing.gone.clear()
        for worker in self.gone:
            batches = [] if training is None else training.ignore_worker(worker)
            if batches:
                run.fencing.fence(worker, self.number, batches, self.incarnations.get(worker, 0))
            else:
                run.fencing.gone.append(worker)
            run.members.send_to_all("worker", WorkerFailed(worker))
            core.report_lost(Peer("worker", worker, self.incarnations.get(worker, 0)), len(batches))
        for worker in sorted(self.known - set(self._holding)):
            peer = Peer("worker", worker, self.incarnations.get(worker, 0))
            silent = run.members.channels_of("worker").get(worker)
            if silent is not None:
                run.members.forget(silent)
            if not core.on_worker_lost(peer):
                raise PeerGoneError(f"{peer} is gone.")
        if training is not None:
            self._let_in(training)

    def _let_in(self, training: LivePhase) -> None:
        """Add reconnected workers to the phase if the log does not record that they had joined it."""
        policy, members = training.policy, self.run.members.channels_of("worker")
        for worker in sorted(set(self._holding) & set(members) & set(policy.phase.workers) - policy.live):
            training.on_worker_joined(worker)

    def _report_takeover(self) -> None:
        """Report in log, result and launcher that the new coordinator has taken over."""
        found = self.found
        log.info("coordinator %d goes on at step %d", found.term, self.run.step_now)
        self.core.on_took_over(found.failure, found.missed, found.sign)

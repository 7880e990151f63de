"""Recovery from failures of workers and servers by their successors; injection of the fault plan's failures.

For workers, this module tells the launcher which faults are due, detects workers that hang, and keeps successors
waiting until every server refuses their predecessors; then the successors join the phase. Dense gradients that are
lost with workers are counted once, as samples: the rows were trained with those batches, the dense parameters took
their step without them.

A server's successor loads the last checkpoint. In a partial recovery that server alone goes back; the others and the
workers keep their state and wait for the successor. In a full one, once the successor is there and nothing is in
flight, all nodes go back to the last complete checkpoint, and what was trained after that checkpoint is trained again.
Between the failure and the successor no gradient can be announced, since every one has a slice on that shard.

All this costs a comparison for each message, and the heartbeats. event_routing.py has the order of the actions after a
failure.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gbactl.collective.base import SHARED_MEMORY
from gbactl.collective.shared_memory import available
from gbactl.coordinator import event_log
from gbactl.coordinator.membership import Heartbeat
from gbactl.coordinator.run_context import RunContext
from gbactl.errors import ClusterError, WireError
from gbactl.faults.fault_kinds import Hang
from gbactl.faults.fault_plan import FaultInjector, Injection
from gbactl.policies.policy import Phase
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import BeginPhase, Inspected, MoveDense, ShardRelocated, Stop, SummandsLost

log = logging.getLogger(__name__)
MESSAGE_OUTCOMES = ("dropped", "duplicated", "reordered", "delayed", "retried")
UNANSWERED = -1  # request number of a MoveDense whose answer is ignored
MOST_SUCCESSORS = 3  # successors of a process that may die in a row without useful work: the next would die, too


def hang_error(peer: Peer, seconds: float) -> ClusterError:
    """Error for a node that does not answer and that the run cannot continue without."""
    silent = f"{peer} has not answered for {seconds:g} s (is it stopped?)"
    longer = f"cluster.hang_seconds={2 * seconds:g}"
    if peer.role == "worker":
        return ClusterError(f"{silent}; type {longer} if it was only slow.")
    return ClusterError(
        f"{silent}, and no other can take its place without checkpoints; type checkpoint=cpr, or {longer} if it was "
        "only slow."
    )


class WorkerRecovery:
    """Worker failures and successors. Faults that a failed coordinator has already injected are not repeated."""

    def __init__(self, run: RunContext) -> None:
        self.run = run
        cfg, plan = run.cfg, run.cfg.fault_plan()
        self.injector = FaultInjector(plan)
        self.injector.due(*run.state.ongoing.failures.last_injection)
        self.heartbeat = Heartbeat(cfg.cluster.hang_seconds, run.hub.now)
        self._uses_heartbeat = cfg.engine.real or any(isinstance(fault, Hang) for fault in plan.faults)
        self._has_failures = plan.has_failures
        self._fault_periods = plan.fault_periods() if plan.has_message_faults else None

    def skip_past_faults(self) -> None:
        """Leave out the kills and hangs that were due before the checkpoint from which the run goes on."""
        self.run.state.ongoing.failures.last_injection = reached = (self.run.step, self.run.record.seconds)
        self.injector.due(*reached)

    def replaces(self, worker: int) -> bool:
        """Whether a failed worker gets a successor."""
        deaths = self.run.failures.deaths_without_work(f"W{worker}")
        return self.run.cfg.cluster.lost_worker == "replace" and deaths <= MOST_SUCCESSORS

    @property
    def training_progress(self) -> tuple[int, float]:
        """Global step and seconds of training so far; negative values before training begins."""
        return (self.run.step_now, self.run.record.seconds) if self.run.members.settled else (-1, -1.0)

    @property
    def progress_since_resume(self) -> tuple[int, float]:
        """Global step and seconds for the periods of message faults, whose time begins anew in a resumed run."""
        step, seconds = self.training_progress
        return step, seconds - self.run.record.seconds_at_resume

    # -- while the coordinator waits ----------------------------------------------------------------

    def shorten_wait(self, seconds: float) -> float:
        """Shorten a wait of `seconds` to end when the next fault or heartbeat is due."""
        if not self.run.members.settled or self.run.stopped:
            return seconds
        least = min(seconds, self.heartbeat.beat_seconds) if self._uses_heartbeat else seconds
        return (
            max(0.0, min(least, self.injector.next_seconds - self.run.record.seconds)) if self._has_failures else least
        )

    def poll(self) -> list[int]:
        """Inject the faults that are due. Returns the workers that have been silent for too long."""
        run = self.run
        observed = run.record.statistics.observed
        if self._fault_periods is not None and observed is not None and run.training is not None:
            observed.note_message_faults(self._fault_periods.active_indexes(*self.progress_since_resume))
        if self._has_failures:
            progress = self.training_progress
            for injection in self.injector.due(*progress):
                self._inject(injection, progress)
        if not (self._uses_heartbeat and self.heartbeat.due):
            return []
        return self.heartbeat.silent(run.members.channels_of("worker"))

    def _inject(self, injection: Injection, progress: tuple[int, float]) -> None:
        run = self.run
        if injection.process in ("C", *(str(channel.peer) for channel in run.members.channels.values())):
            run.failures.record_injection(injection.process, injection.kind)
        run.state.ongoing.failures.last_injection = progress
        run.log_note()
        fields = {"step": run.step_now, "at": run.record.seconds, "seconds": injection.seconds, "plan": injection.index}
        run.send_event("inject", {"kind": injection.kind, "process": injection.process, **fields})

    def look_for_successors(self) -> None:
        """Admit successors of failed workers, or end the phase so that they can be admitted."""
        run = self.run
        ready, unequal = self.admissible, run.state.ongoing.unequal
        if ready and run.home == "servers" and (run.training is not None or run.evaluation is not None):
            self.admit(run.begin_phase)
        elif (ready or unequal) and run.training is not None and run.training.stopped is None:
            run.training.stop()  # a successor gets the dense parameters between two steps: a new phase begins with it

    def on_server_failure(self) -> None:
        """Mark the workers' dense parameters as perhaps unequal: a server failure may have cut off a migration."""
        self.run.state.ongoing.unequal |= self.run.cfg.collects

    # -- successors ---------------------------------------------------------------------------------

    def on_worker_failure(self) -> None:
        """Mark the workers' dense parameters as perhaps unequal if a failed worker took part in a ring all-reduce."""
        cfg = self.run.cfg
        ring = cfg.collective.name != SHARED_MEMORY and cfg.engine.real
        self.run.state.ongoing.unequal |= ring and self.run.home == "workers"

    @property
    def survivable(self) -> bool:
        """Whether the current mode can continue after the worker failures so far."""
        cfg = self.run.current
        trainers = [worker for worker in self.run.members.channels_of("worker") if worker < cfg.cluster.workers]
        if cfg.home == "workers" and cfg.engine.real:
            return not cfg.engine.one_host or available()  # else they cannot sum once their ring is broken
        return cfg.home != "replicas" or bool(trainers)

    @property
    def admissible(self) -> list[int]:
        """Failed workers whose successors are ready and can be admitted: all servers refuse their predecessors."""
        waiting = self.run.members.successors.items()
        ready = sorted(number for (role, number), each in waiting if role == "worker" and each.ready)
        return [worker for worker in ready if not self.run.fencing.fencing(worker)]

    def admit(self, begin_phase: BeginPhase | None, home: str | None = None) -> None:
        """Admit ready successors of failed workers.

        `begin_phase`: the current one, which the successors do not know; `home`: the holder of the dense parameters."""
        for worker in self.admissible:
            self._admit(worker, begin_phase, home or self.run.home)

    def _admit(self, worker: int, begin_phase: BeginPhase | None, home: str) -> None:
        run = self.run
        successor = run.members.admit("worker", worker)
        channel = successor.channel
        run.fencing.on_replaced(worker, channel.peer.incarnation)
        run.log_note()
        channel.send(MoveDense(home, -1, UNANSWERED))
        if begin_phase is not None:
            channel.send(begin_phase)
        if run.training is not None:
            run.training.on_worker_joined(worker)
        run.failures.record_ready(f"W{worker}")
        run.log_note()
        run.send_event("joined", {"process": f"W{worker}", "step": run.step_now})
        for _ in range(successor.requests):
            run.hand_out(worker)

    def summary(self, inspected: Mapping[str, Inspected]) -> dict[str, Any]:
        """Fields of result.json about failures, and about messages if the fault plan disturbed any."""
        counts: Counter[str] = Counter(getattr(self.run.hub, "counts", None))
        for node in inspected.values():
            counts.update(node.counters)
        outcomes = {name: counts[name] for name in MESSAGE_OUTCOMES if counts[name]}
        messages = {"messages": outcomes} if outcomes else {}
        return {
            "fenced_frames": counts["fenced"],
            "recovery": self.run.failures.to_result(self.run.record.began),
            **messages,
        }

    def dismiss(self) -> None:
        """Stop the successors not admitted yet, at the end of the run."""
        for (role, _), successor in self.run.members.successors.items():
            if role == "worker":
                successor.channel.send(Stop())


class ServerRecovery:
    """Coordinator's handling of server failures: deadlines, successors, and the rows that these recover.

    `full`: after a server failure all nodes roll back to a checkpoint."""

    def __init__(self, run: RunContext, full: bool) -> None:
        self.run, self.full = run, full
        self.restart_deadlines(False)

    def restart_deadlines(self, reading: bool) -> None:
        """Restart the servers' heartbeat deadlines, when a request is sent to them and when all have answered it.

        `reading`: the request makes them read all their data, so they may be silent for longer."""
        c = self.run.cfg.cluster
        patience = max(c.hang_seconds, c.start_timeout) if reading else c.hang_seconds
        self.heartbeat = Heartbeat(patience, self.run.hub.now)

    # -- failures -----------------------------------------------------------------------------------

    def poll(self) -> list[int]:
        """End the phase if a rollback is pending. Returns the shards whose servers have been silent for too long.

        Raises ClusterError where a failed server gets no successor in time."""
        run = self.run
        if run.rollback_pending and run.training is not None and run.training.stopped is None:
            run.training.stop()
        if not run.cfg.engine.real:
            return []
        self._check_successor_deadlines()
        return self.heartbeat.silent(run.members.channels_of("server")) if self.heartbeat.due else []

    def _check_successor_deadlines(self) -> None:
        limit = self.run.cfg.cluster.start_timeout
        for shard, since in self.run.failed_servers.items():
            if self.run.hub.now() - since > limit:
                raise ClusterError(
                    f"S{shard} did not come back within {limit:.0f} s; look into its logs, or type "
                    f"cluster.start_timeout={2 * limit:.0f}."
                )

    def replaces(self, shard: int) -> bool:
        """Whether a failed server gets a successor."""
        deaths = self.run.failures.deaths_without_work(f"S{shard}")
        return self.run.cfg.server_returns and self.run.members.settled and deaths <= MOST_SUCCESSORS

    def on_failure(self, shard: int) -> None:
        """Record a server failure whose successor is expected."""
        self.run.server_losses += 1
        self.run.failed_servers[shard] = self.run.hub.now()

    def check_failover(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Raise ClusterError if a server had no successor, or a rollback was pending, when the coordinator failed.

        The log does not tell what each node holds then. `records`: server failures logged since the last standstill."""
        replaced = {record["shard"] for record in records if record["state"] == "back"}
        lost = {record["shard"] for record in records if record["state"] == "lost"}
        if records and (self.full or lost - replaced or records[-1]["state"] == "lost"):
            which = ", ".join(f"S{shard}" for shard in sorted(lost))
            raise ClusterError(f"The coordinator failed before {which} had recovered from a failure; type resume=RUN.")

    # -- successors ---------------------------------------------------------------------------------

    def on_replaced(self, shard: int) -> None:
        """Record that a failed server's successor has loaded a checkpoint and replaces it."""
        del self.run.failed_servers[shard]
        if self.full:
            self.run.rollback_pending = True
        else:
            self.run.failures.record_ready(f"S{shard}")

    def tell_workers(self, server: Channel, abandoned: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Tell workers the new address of a shard, and which gradients need a slice on its new server.

        These are the batches that they have leased, and (phase, batch) of those that they have `abandoned`."""
        run, shard = self.run, server.peer.index
        address, incarnation = run.members.addresses[shard], server.peer.incarnation
        for worker, channel in run.members.channels_of("worker").items():
            pairs = list(abandoned.get(worker, ()))
            if run.training is not None:
                pairs += [(run.training.number, batch) for batch in run.training.policy.leased_to(worker)]
            channel.send(ShardRelocated(shard, address, incarnation, pairs))
        run.members.tell_successors(ShardRelocated(shard, address, incarnation, []))


class LostDenseGradients:
    """Counter of dense gradients that were lost with failed workers.

    Keeps the last phase that trained and the one before, to which late reports may belong."""

    def __init__(self, run: RunContext) -> None:
        self.run, self.state = run, run.state.ongoing.sums

    def on_phase_begin(self, phase: Phase) -> None:
        """Record the start of a phase; called a second time if a failover or rollback repeats it."""
        before = [each for each in self.state.phases if each.first_step < phase.first_step]
        self.state.phases[:] = [*before[-1:], phase]

    def on_phase_end(self, phase: Phase) -> None:
        """Record a phase's final number of samples at its end: a switch may have shortened the phase."""
        self.state.phases[-1] = phase

    def add(self, message: SummandsLost) -> None:
        """Record the batches whose dense gradients are missing from a sum of the all-reduce fallback.

        Raises WireError for an unknown phase."""
        known = set(self.state.lost.get(message.step, ()))
        new = set(message.parts) - known
        self.state.lost[message.step] = sorted(known | new)
        if new:
            phase = self._phase(message.step)
            batches = sorted(_batch(phase, message.step, part) for part in new)
            self.run.log.info(event_log.DENSE_LOST, {"step": message.step, "batches": batches})
            self.run.failures.add_lost_dense(sum(phase.size(batch) for batch in batches))
            self.run.log_note()

    def _phase(self, step: int) -> Phase:
        """Phase to which a step belongs. Raises WireError if no known phase contains it."""
        for phase in reversed(self.state.phases):
            if step >= phase.first_step:
                return phase
        raise WireError(f"a part of step {step} is missing, but the step belongs to no known phase")


def _batch(phase: Phase, step: int, part: int) -> int:
    """Batch number, within its phase, of gradient `part` of a step. Raises WireError for one outside the phase."""
    width = phase.gradients_per_step
    batch = (step - phase.first_step) * width + part
    if not 0 <= part < width or not phase.size(batch):
        raise WireError(f"part {part} of step {step} is missing, but its phase has no such part")
    return batch

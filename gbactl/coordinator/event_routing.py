"""Routing of events to the parts of the coordinator, in the order in which they must handle each event.

No part knows another one. An event that concerns several of them (a worker or server failure, its successor, a
staged gradient slice) is a method of CoordinatorCore, which calls these parts one after the other.
"""

from __future__ import annotations

import logging

from gbactl.coordinator import event_log
from gbactl.coordinator.checkpointing import Checkpointing
from gbactl.coordinator.failure_recovery import LostDenseGradients, ServerRecovery, WorkerRecovery, hang_error
from gbactl.coordinator.mode_switch import DenseMigration, ModeSwitch
from gbactl.coordinator.replica_phases import ReplicaPhases
from gbactl.coordinator.run_context import NodeRequests, RunContext
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import (
    AdoptVersion,
    CheckpointLoaded,
    Event,
    Fenced,
    RingBroken,
    Staged,
    SummandsLost,
    WorkerFailed,
)

log = logging.getLogger(__name__)


class CoordinatorCore:
    """All parts of one run's coordinator. `term`: number of coordinators of this run before this one."""

    def __init__(self, run: RunContext, term: int = 0) -> None:
        self.run = run
        self.replicas = ReplicaPhases(run, term)
        self.checkpoints = Checkpointing(run, self.replicas.gathering)
        self.workers = WorkerRecovery(run)
        self.servers = ServerRecovery(run, full=self.checkpoints.estimate.recovery == "full")
        self.requests = NodeRequests(run, self.servers.restart_deadlines)
        self.migration = DenseMigration(run)
        self.switch = ModeSwitch(run, self.requests, self.migration)
        self.sums = LostDenseGradients(run)

    def poll(self) -> None:
        """Do periodic work between two messages: checkpoints, heartbeats, successors, mode switches, replica phases."""
        run = self.run
        self.checkpoints.poll()
        if run.members.settled and not run.stopped:
            for worker in self.workers.poll():
                self._on_silent("worker", worker)
            self.workers.look_for_successors()
            for shard in self.servers.poll():
                self._on_silent("server", shard)
        if run.training is not None:
            if not any(map(self.workers.replaces, run.fencing.failed_workers)):
                run.training.check_hand_out()
            self.switch.poll()
            self.replicas.poll(run.training.policy)

    def on_launcher_request(self, event: Event) -> None:
        """Handle a request of the launcher: switch the mode, or save a checkpoint and stop."""
        if event.name == "stop":
            self.checkpoints.stop(float(event.fields["seconds"]))
        else:
            self.switch.ask(event.fields)

    def on_staged(self, message: Staged) -> None:
        """Record a shard's staged gradient slice; once all shards have theirs, hand the worker its next batch."""
        training = self.run.training
        if message.rows >= 0:  # else its gradient was pushed to a failed server: an empty slice
            self.run.failures.record_useful_work(f"S{message.shard}")
        wants_next = False
        if training is not None and training.on_staged(message):
            self.run.failures.record_useful_work("C", f"W{message.worker}")
            wants_next = training.requested(message.batch)
        if wants_next or (
            self.switch.abandoned.staged(message) and message.worker not in self.run.fencing.failed_workers
        ):
            self.run.hand_out(message.worker)

    # -- failures -----------------------------------------------------------------------------------

    def on_node_lost(self, peer: Peer, failure: str = "death") -> bool:
        """Handle the failure of a server or worker that is already removed. Returns whether the run goes on."""
        return self.on_server_lost(peer.index, failure) if peer.role == "server" else self.on_worker_lost(peer, failure)

    def _on_silent(self, role: str, index: int) -> None:
        """Treat a node that does not answer as failed; its later messages are refused."""
        channel = self.run.members.channels_of(role)[index]
        log.warning("%s has not answered for %.1f s", channel.peer, self.run.cfg.cluster.hang_seconds)
        self.run.members.forget(channel)
        if role == "server":
            channel.close()
        if not self.on_node_lost(channel.peer, "hang"):
            raise hang_error(channel.peer, self.run.cfg.cluster.hang_seconds)

    # -- workers ------------------------------------------------------------------------------------

    def on_worker_lost(self, peer: Peer, failure: str = "death") -> bool:
        """Handle the failure of a worker that is already removed. Returns whether the run goes on without it."""
        self.run.failures.record_detection(str(peer), failure)
        self.workers.on_worker_failure()
        if not self._can_go_on(peer.index):
            return False
        self.give_up(peer)
        return True

    def _can_go_on(self, worker: int) -> bool:
        """Whether the run can continue after a worker failure: with other workers, or once a successor is there.

        Other nodes must hold the dense parameters."""
        run = self.run
        allowed = run.cfg.cluster.lost_worker != "end"
        settled = run.members.settled and (self.workers.survivable or self.migration.moving)
        others = bool(run.members.channels_of("worker"))
        awaited = run.home == "servers" and any(map(self.workers.replaces, (worker, *run.fencing.failed_workers)))
        return allowed and settled and (others or awaited)

    def give_up(self, peer: Peer) -> None:
        """Continue without a failed worker: its batches are handed out again once every server refuses its messages."""
        run, worker = self.run, peer.index
        while worker in run.waiting:  # once per batch that it asked for
            run.waiting.remove(worker)
        self.replicas.drop_requests(worker)
        batches = [] if run.training is None else run.training.ignore_worker(worker)
        run.fencing.fence(worker, run.phase_number, batches, peer.incarnation)
        run.log_note()
        run.members.send_to_all("worker", WorkerFailed(worker))
        self.checkpoints.on_worker_failure(worker)
        if run.evaluation is not None:
            run.evaluation.requeue(worker)
            run.serve_evaluation()
        self.report_lost(peer, len(batches))

    def report_lost(self, peer: Peer, batches: int) -> None:
        """Report a worker failure to the launcher, with the number of batches that were leased to the worker."""
        run, worker = self.run, peer.index
        fields = {"step": run.step_now, "batches": batches, "shared": run.current.collective_now}
        run.send_event(
            "lost",
            {"process": str(peer), "replaced": self.workers.replaces(worker), **fields, "epoch": peer.incarnation},
        )

    def on_summed(self, message: SummandsLost | RingBroken) -> None:
        """Handle a report of a server's all-reduce fallback: gradients are missing, or the workers' ring is broken."""
        if isinstance(message, SummandsLost):
            self.sums.add(message)
        else:
            self.run.members.send_to_all("worker", message)

    def on_fenced(self, message: Fenced) -> None:
        """Record that a server refuses a failed worker; once all servers do, hand out the worker's batches again."""
        if self.run.fencing.on_fenced(message) and self.run.training is not None:
            self.run.training.release_batches(message.worker)

    # -- servers ------------------------------------------------------------------------------------

    def on_server_lost(self, shard: int, failure: str = "death") -> bool:
        """Handle the failure of a server that is already removed. Returns whether a successor replaces it."""
        run = self.run
        run.failures.record_detection(f"S{shard}", failure)
        if not self.servers.replaces(shard):
            return False
        self.servers.on_failure(shard)
        run.record.statistics.times.on_servers_replaced([f"S{shard}"])
        run.save_times()
        if run.training is not None:
            run.training.on_server_failure(shard)
        self.checkpoints.on_server_failure(shard)
        if not self.servers.full:
            run.failures.add_loss(f"S{shard}", self.checkpoints.unsaved.count_lost(shard, run.finished))
        if self.migration.moving:
            self.workers.on_server_failure()
        run.log.info(event_log.SERVER, {"shard": shard, "state": "lost", "step": run.step_now})
        fields = {"step": run.step_now, "batches": 0, "shared": False, "recovery": self.checkpoints.estimate.recovery}
        run.send_event("lost", {"process": f"S{shard}", "replaced": True, **fields})
        return True

    def on_server_loaded(self, channel: Channel, message: CheckpointLoaded) -> None:
        """Handle a server that has loaded a checkpoint: a successor, or any server in a rollback of all nodes.

        Raises WireError for any other sender."""
        run, shard = self.run, message.shard
        if run.members.successor(channel, "server", shard) is None:
            run.members.authentic(channel, "server", shard)
            self.requests.on_answer(shard)
            return
        run.members.admit("server", shard)
        if run.stopped:  # the run is over and its log closed: the server is dismissed with the others
            return
        self._update_server_successor(channel, message.step)
        if not self.servers.full:
            run.failures.add_loss(f"S{shard}", self.checkpoints.unsaved.count_older(shard, message.step))
        self.servers.on_replaced(shard)
        run.state.ongoing.lives.servers[shard] = channel.peer.incarnation
        run.log_note()
        run.log.info(event_log.SERVER, {"shard": shard, "state": "back", "step": run.step_now, "loaded": message.step})
        self.tell_workers_of(channel)
        run.send_event("joined", {"process": f"S{shard}", "step": run.step_now, "loaded": message.step})

    def _update_server_successor(self, channel: Channel, loaded: int) -> None:
        """Send a server's successor the state of the run: phase, failed workers, number of steps, open requests."""
        run = self.run
        if run.begin_phase is not None:
            channel.send(run.begin_phase_for_servers)
        run.fencing.tell_successor(channel)
        waiting = [] if run.training is None else run.training.on_server_replaced()
        reset_at = run.state.ongoing.optimizer_reset_at
        channel.send(AdoptVersion(run.step_now, waiting, reset_at is not None and loaded <= reset_at))
        self.requests.repeat(channel)

    def tell_workers_of(self, server: Channel) -> None:
        """Tell the workers the new address of a failed server's shard."""
        self.servers.tell_workers(server, self.switch.abandoned.by_worker())

    # -- coordinators -------------------------------------------------------------------------------

    def on_took_over(self, failure: str, detected: float, last_sign: float) -> None:
        """Record a coordinator failover. `failure`: kind of the failure; `detected`: time at which it was detected.

        `last_sign`: the last sign of life."""
        run = self.run
        run.record.statistics.rates(run.record.seconds)  # rates are counted from here
        run.failures.record_takeover(failure, detected, last_sign)
        run.log_note()
        run.send_event("joined", {"process": "C", "step": run.step_now})

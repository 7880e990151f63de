"""Failures of virtual processes: the fault plan's kills and hangs, and their consequences.

This costs nothing while no process fails. A worker disappears, or stands still, at the planned time. Messages that a
killed worker had sent arrive; its current computation is lost. Its successor is ready after `cost.restart_us`.

A failed server alone goes back to its newest checkpoint, or all nodes do, as RunFlow decides. Rows, dense slice and
optimizer state are really restored; the time for saving, loading and rescheduling is configured, and the whole cluster
stands still for it.

Messages to a failed coordinator wait until its successor is ready. The successor would hold what the journal says,
which is what the failed one holds, so the same objects go on; a checkpoint in progress is given up, as in
coordinator/coordinator_failover.py. Until then workers and servers do the work that they have. Not modelled: the
messages by which nodes report their state, that an evaluation begins anew, and that a coordinator failure during a full
recovery ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gbactl.checkpoint.costs_and_interval import costs_of
from gbactl.checkpoint.failure_cost_counters import CostSeconds
from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.errors import ClusterError
from gbactl.server.shard_server import load_last
from gbactl.simulation.coordinator import VirtualCoordinator, VirtualHub
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.server import VirtualServer
from gbactl.simulation.worker import Placements, VirtualWorker
from gbactl.store.shard import Shard
from gbactl.wire.messages import Event, Save


class FailingCluster(Protocol):
    """Interface of VirtualCluster (simulated_run.py) to the simulation of failures."""

    cfg: RunConfig
    events: EventQueue
    cost: CostModel
    hub: VirtualHub
    coordinator: VirtualCoordinator
    servers: Sequence[VirtualServer]
    workers: Sequence[VirtualWorker]
    placements: Placements

    def new_shard(self, shard: int) -> Shard:
        """Make the shard of a server that has just started, with initial parameters."""

    def replace_worker(self, index: int) -> None:
        """Start a failed worker's successor."""


class FailureInjection:
    """Failures to inject and their consequences; listens to the coordinator's events as a launcher does."""

    def __init__(self, cluster: FailingCluster) -> None:
        self.cluster = cluster
        self.servers, self.coordinator = ServerFailures(cluster), CoordinatorFailures(cluster)
        self._run_ended = False

    def on_event(self, event: Event) -> None:
        """Handle a coordinator's event: a failure to inject, a lost worker, the end of the run."""
        self.servers.on_event(event)
        if event.name == "inject":
            self._inject(event.fields)
        elif event.name == "lost":
            self._lost(int(event.fields["process"][1:]), event.fields)
        elif event.name == "result":
            self._run_ended = True

    def _lost(self, index: int, fields: dict[str, Any]) -> None:
        if fields["shared"]:
            self.cluster.workers[index].kill()  # an excluded worker could still write to shared state
        self.cluster.placements.remove_worker(index)
        if fields["replaced"]:
            self.cluster.events.schedule_after(self.cluster.cost.restart, self._replace, index)

    def _replace(self, index: int) -> None:
        """Start a failed worker's successor, unless the run is over."""
        if not self._run_ended:
            self.cluster.replace_worker(index)

    def _inject(self, fields: dict[str, Any]) -> None:
        process, kind, seconds = fields["process"], fields["kind"], fields["seconds"]
        if process == "C":
            self.coordinator.inject(kind, seconds)
        elif process[0] == "S":
            self._at_server(int(process[1:]), kind, seconds)
        else:
            self._at_worker(self.cluster.workers[int(process[1:])], kind, seconds)

    def _at_worker(self, worker: VirtualWorker, kind: str, seconds: float | None) -> None:
        if kind == "kill":
            worker.kill()
            return
        worker.hang()
        if seconds is not None:
            self.cluster.events.schedule_after(seconds, worker.wake)

    def _at_server(self, shard: int, kind: str, seconds: float | None) -> None:
        """Kill or hang a server; a hang that exceeds the heartbeat's limit counts as its failure."""
        cluster, patience = self.cluster, self.cluster.cfg.cluster.hang_seconds
        if kind == "hang" and seconds is not None and seconds <= patience:
            cluster.events.stall(seconds)
            return
        if not cluster.coordinator.core.checkpoints.enabled:
            why = f"The fault plan hit S{shard} ({kind})"
            raise ClusterError(f"{why}: the run cannot go on without it; type checkpoint=cpr or full.")
        if kind == "kill":
            self.coordinator.server_lost = (shard, cluster.events.now)
        else:
            cluster.events.stall(patience)
            self.servers.spent.rescheduling += patience
        self.servers.on_failure(shard)


class CoordinatorFailures:
    """Coordinator failures and failovers. `server_lost`: the last failed server and the time of its failure."""

    def __init__(self, cluster: FailingCluster) -> None:
        self.cluster = cluster
        self.server_lost = (-1, -1.0)

    def inject(self, kind: str, seconds: float | None) -> None:
        """Kill or hang the coordinator; a hang that exceeds the heartbeat's limit counts as its failure.

        Raises ClusterError where the run ends with it."""
        cluster, cfg = self.cluster, self.cluster.cfg.cluster
        if cluster.hub.is_down:
            return
        replaced = cfg.lost_coordinator == "replace"
        if kind == "hang" and seconds is not None and (not replaced or seconds <= cfg.hang_seconds):
            cluster.hub.go_down()
            cluster.events.schedule_after(seconds, cluster.hub.come_back)
            return
        if not replaced:
            failure = "was killed by SIGKILL" if kind == "kill" else "stands still for ever"
            raise ClusterError(f"C {failure}; type cluster.lost_coordinator=replace and another one goes on.")
        self._check_servers()
        cluster.hub.go_down()
        cluster.events.schedule_after(
            cluster.cost.local_latency if kind == "kill" else cfg.hang_seconds, self._begin_failover
        )

    def _check_servers(self) -> None:
        """Check that no server failed at the same time: a failover needs all servers (see Failover.gather)."""
        shard, when = self.server_lost
        if when == self.cluster.events.now:
            raise ClusterError(f"S{shard} failed at the same time as the coordinator, which the run cannot survive.")

    def _begin_failover(self) -> None:
        """Start the failover, which waits for silent workers for `hang_seconds`."""
        cluster, seconds = self.cluster, self.cluster.cost.restart
        if any(cluster.workers[index].dead for index in cluster.coordinator.context.members.channels_of("worker")):
            seconds += cluster.cfg.cluster.hang_seconds
        cluster.events.schedule_after(seconds, self._complete_failover, cluster.events.clock)

    def _complete_failover(self, missed: float) -> None:
        """Complete the failover: the coordinator handles messages again."""
        c = self.cluster.coordinator
        c.core.checkpoints.on_failover()
        if c.core.switch.auto is not None and c.context.training is not None:
            c.core.switch.auto.begin(c.context.current.mode.name, c.context.training.policy)
        c.core.on_took_over("death", missed, missed)
        self.cluster.hub.come_back()


class ServerFailures:
    """Server failures and recoveries; `spent`: virtual time spent on checkpoints and recoveries so far."""

    def __init__(self, cluster: FailingCluster) -> None:
        self.cluster = cluster
        self.costs = costs_of(cluster.cfg.checkpoint, cluster.cfg.cluster.servers)
        self.spent = CostSeconds()
        self._charged = -1
        self._newest_save = (0.0, 0.0)

    # -- saving -------------------------------------------------------------------------------------

    def add_save(self, save: Save, part: float) -> None:
        """Add a checkpoint's time to the clock, once for all servers; `part`: fraction of its rows that a server saves.

        Not after the end of training."""
        if save.number == self._charged:
            return
        self._charged, run = save.number, self.cluster.coordinator.context
        for server in self.cluster.servers:  # no heartbeat reports these times
            times = server.times.total(server.hub.traffic.training)
            run.record.statistics.times.on_heartbeat(str(server.peer), times)
        if run.training is not None:
            self.cluster.events.stall(self.spent.save(self.costs, part))

    def on_event(self, event: Event) -> None:
        """Record the newest checkpoint's time and the overhead until then; add up training undone by rollbacks."""
        now = self.cluster.coordinator.context.record.seconds
        if event.name == "checkpoint" and event.fields["state"] in ("planned", "saved"):
            self._newest_save = (now, self.spent.total)
        elif event.name == "rewound":
            seconds, spent = self._newest_save
            self.spent.add_repeated_training(now - seconds - (self.spent.total - spent), event.fields["samples"])

    # -- going back ---------------------------------------------------------------------------------

    def on_failure(self, shard: int) -> None:
        """Handle a server failure: its successor is there at once, after the time that this costs."""
        core, run = self.cluster.coordinator.core, self.cluster.coordinator.context
        run.failures.record_detection(f"S{shard}", "death")
        core.servers.on_failure(shard)
        if core.checkpoints.in_progress:  # else the next one can build on the newest, as all shards have its state
            core.checkpoints.on_server_failure(shard)
        if core.servers.full:
            self.cluster.events.stall(self.spent.add_full_recovery(self.costs))
            run.log.info(event_log.SERVER, {"shard": shard, "state": "lost", "step": run.step_now})
            self._report(shard, "everybody goes back")
        else:
            self._recover_one(shard)
        core.servers.on_replaced(shard)

    def _recover_one(self, shard: int) -> None:
        c = self.cluster.coordinator
        loss = c.core.checkpoints.unsaved.count_lost(shard, c.context.finished)
        c.context.failures.add_loss(f"S{shard}", loss)
        state = self._state(shard)
        self.cluster.servers[shard].go_back(state, c.context.current.home != "workers")
        self.cluster.events.stall(self.spent.add_partial_recovery(self.costs))
        fields = {"shard": shard, "state": "back", "step": c.context.step_now, "loaded": state.version}
        c.context.log.info(event_log.SERVER, fields)
        self._report(shard, f"it alone goes back to step {state.version} (PLS {loss.pls:.4f})")

    def _state(self, shard: int) -> Shard:
        """Make a shard and load the newest checkpoint into it, as a failed server's successor does."""
        state, resumed = self.cluster.new_shard(shard), self.cluster.cfg.resume
        load_last(state, self.cluster.coordinator.core.checkpoints.folder, None if resumed is None else Path(resumed))
        return state

    def _report(self, shard: int, what: str) -> None:
        run = self.cluster.coordinator.context
        sentence = f"S{shard} was lost at step {run.step_now}: {what}"
        run.send_event("checkpoint", {"state": "back", "sentence": sentence})

    def to_result(self, seconds: float) -> dict[str, Any]:
        """Field `overhead` of result.json: what saves and server recoveries cost in the run's last `seconds`."""
        return {"overhead": self.spent.to_result(seconds)}

"""Failures of virtual processes: the fault plan's kills and hangs, and their consequences.

Costs nothing while no process fails. A worker disappears, or stands still, at the planned time. Messages that a killed
worker had sent arrive; its current computation is lost. Its successor is ready after `cost.restart_us`.

A failed server alone goes back to its newest checkpoint, or all nodes do. Rows, dense slice and
optimizer state are really restored; the time for saving, loading and rescheduling is configured, and
the whole cluster stands still for it. Where all nodes go back, the cluster ends with RollbackAll and another one is
built from the checkpoint, as `resume` does.

Messages to a failed coordinator wait until its successor is ready. The successor would hold what the journal says,
which is what the failed one holds, so the same objects go on; a checkpoint in progress is given up, as in
coordinator/coordinator_failover.py. Workers and servers meanwhile do the work that they have. Not modelled: the
messages by which nodes report their state, and that an evaluation begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gbactl.checkpoint.failure_cost_counters import CostSeconds, ServerFailureLoss
from gbactl.checkpoint.folder import CheckpointChain
from gbactl.checkpoint.planning import costs_of
from gbactl.checkpoint.restore import chain_at, load_shard
from gbactl.config import RunConfig, from_dict
from gbactl.coordinator import event_log
from gbactl.coordinator.state import FailureRecord, config_at
from gbactl.errors import CheckpointError, ClusterError
from gbactl.faults.fault_plan import FaultInjector
from gbactl.faults.message_faults import AllActivePeriods
from gbactl.simulation.coordinator import VirtualCoordinator, VirtualHub
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.server import VirtualServer
from gbactl.simulation.worker import VirtualWorker
from gbactl.store.shard import Shard
from gbactl.wire.messages import Event, Save


class FailingCluster(Protocol):
    """Interface of VirtualCluster (cluster.py) to the simulation of failures."""

    cfg: RunConfig
    run_dir: Path
    events: EventQueue
    cost: CostModel
    hub: VirtualHub
    storms: AllActivePeriods
    coordinator: VirtualCoordinator
    servers: Sequence[VirtualServer]
    workers: Sequence[VirtualWorker]

    def new_shard(self, shard: int) -> Shard:
        """Make the shard of a server that has just started, with initial parameters."""

    def lose_worker(self, index: int) -> None:
        """Exclude a failed worker from dense steps and means."""

    def replace_worker(self, index: int, epoch: int) -> None:
        """Start a failed worker's successor, with incarnation `epoch`."""


class FailureInjection:
    """Failures to inject and their consequences; listens to the coordinator's events as a launcher does."""

    def __init__(self, cluster: FailingCluster, before: ClusterHandover | None = None) -> None:
        """Attach to a cluster. `before`: state of the cluster that this one replaces after a rollback."""
        self.cluster = cluster
        self.servers, self.coordinator = ServerFailures(cluster, before), CoordinatorFailures(cluster)
        self._epochs: Counter[int] = Counter()
        self._over = False

    def on_event(self, event: Event) -> None:
        """Handle a coordinator's event: a failure to inject, a lost worker, the end of the run."""
        self.servers.on_event(event)
        if event.name == "inject":
            self._inject(event.fields)
        elif event.name == "lost":
            self._lost(int(event.fields["process"][1:]), event.fields)
        elif event.name == "result":
            self._over = True

    def _lost(self, index: int, fields: dict[str, Any]) -> None:
        if fields["shared"]:
            self.cluster.workers[index].kill()  # an excluded worker could still write to shared state
        self.cluster.lose_worker(index)
        if fields["replaced"]:
            self.cluster.events.schedule_after(self.cluster.cost.restart, self._replace, index)

    def _replace(self, index: int) -> None:
        """Start a failed worker's successor."""
        if self._over:
            return
        self._epochs[index] += 1
        self.cluster.replace_worker(index, self._epochs[index])

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
        if not cluster.coordinator.core.checkpoints.on:
            why = f"The fault plan hit S{shard} ({kind})"
            raise ClusterError(f"{why}: the run cannot go on without it; type checkpoint=cpr or full.")
        if kind == "kill":
            self.coordinator.server_lost = (shard, cluster.events.now)
            self.servers.on_failure(shard)
            return
        if seconds is not None and seconds <= patience:
            cluster.events.stall(seconds)
            return
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
            fate = "was killed by SIGKILL" if kind == "kill" else "stands still for ever"
            raise ClusterError(f"C {fate}; type cluster.lost_coordinator=replace and another one goes on.")
        self._check_servers()
        cluster.hub.go_down()
        cluster.events.schedule_after(cluster.cost.local_latency if kind == "kill" else cfg.hang_seconds, self._missed)

    def _check_servers(self) -> None:
        """Check that no server failed at the same time: a failover needs all servers (see Failover.gather)."""
        shard, when = self.server_lost
        if when == self.cluster.events.now:
            raise ClusterError(f"S{shard} did not come back when another coordinator took over.")

    def _missed(self) -> None:
        """Start the failover, which waits for silent workers for `hang_seconds`."""
        cluster, seconds = self.cluster, self.cluster.cost.restart
        if any(cluster.workers[index].dead for index in cluster.coordinator.context.members.channels_of("worker")):
            seconds += cluster.cfg.cluster.hang_seconds
        cluster.events.schedule_after(seconds, self._back, cluster.events.clock)

    def _back(self, missed: float) -> None:
        """Complete the failover: the coordinator handles messages again."""
        c = self.cluster.coordinator
        c.core.checkpoints.on_failover()
        if c.core.switch.auto is not None and c.context.training is not None:
            c.core.switch.auto.begin(c.context.current.mode.name, c.context.training.policy)
        c.core.on_took_over("death", missed, missed)
        self.cluster.hub.come_back()


class RollbackAll(Exception):
    """Signal that a server failed, and all nodes roll back to a checkpoint."""


@dataclass(frozen=True)
class ClusterHandover:
    """State that a cluster leaves to the one that replaces it.

    `began`: start of training; `now`, `stalled`: of its events; `cuts`: counts and costs of its checkpoints;
    `resumed_at`: the step from which the whole run resumed."""

    cfg: RunConfig
    began: float
    now: float
    stalled: float
    injector: FaultInjector
    storms: AllActivePeriods
    failed: list[FailureRecord]
    spent: CostSeconds
    cuts: dict[str, float]
    row_updates: int
    resumed_at: int | None
    acted: list[dict[str, Any]]


COUNTED = ("done", "failed", "bytes", "seconds")


class ServerFailures:
    """Server failures and recoveries; `spent`: virtual time spent on checkpoints and recoveries so far."""

    def __init__(self, cluster: FailingCluster, before: ClusterHandover | None) -> None:
        self.cluster, self.before = cluster, before
        self.costs = costs_of(cluster.cfg.checkpoint, cluster.cfg.cluster.servers)
        self.spent = CostSeconds() if before is None else before.spent
        self._paid, self._again = -1, 0
        self._safe = (0.0, 0.0, 0)

    def begin(self) -> None:
        """Continue with the failures, counts and costs of the cluster that this one replaces after a rollback."""
        before, c = self.before, self.cluster.coordinator
        if before is None:
            return
        c.flow.began = before.began
        c.core.workers.injector, c.context.failures.state.failed = before.injector, before.failed
        c.context.record.statistics.restore_observed_faults(before.acted)
        for name, value in before.cuts.items():
            setattr(c.core.checkpoints.state, name, value)
        process = before.failed[-1].process
        self.cluster.servers[int(process[1:])].useful = lambda: c.context.failures.record_useful_work(process)

    # -- saving -------------------------------------------------------------------------------------

    def add_save(self, save: Save, part: float) -> None:
        """Add a checkpoint's time to the clock, once for all servers; `part`: fraction of its rows that a server saves.

        Not after the end of training."""
        if save.number == self._paid:
            return
        self._paid = save.number
        self._note_times()
        if self.cluster.coordinator.context.training is not None:
            self.cluster.events.stall(self.spent.save(self.costs, part))

    def _note_times(self) -> None:
        """Report the servers' times by activity, which no heartbeat does in virtual time."""
        for server in self.cluster.servers:
            told = server.times.total(server.hub.traffic.training)
            self.cluster.coordinator.context.record.statistics.times.on_heartbeat(str(server.peer), told)

    def on_event(self, event: Event) -> None:
        """Record the newest checkpoint's time, the overhead so far, and the number of samples finished by then."""
        if event.name == "checkpoint" and event.fields["state"] in ("planned", "saved"):
            c = self.cluster.coordinator
            record = c.context.record
            self._safe = (record.seconds, self.spent.total, event.fields.get("samples", record.ledger.finished))

    # -- going back ---------------------------------------------------------------------------------

    def on_failure(self, shard: int) -> None:
        """Handle a server failure. Raises RollbackAll where all nodes roll back to a checkpoint."""
        c = self.cluster.coordinator
        c.context.failures.record_detection(f"S{shard}", "death")
        if c.core.checkpoints.estimate.recovery == "partial":
            self._alone(shard)
        else:
            self._everybody(shard)

    def _alone(self, shard: int) -> None:
        c, times, process = self.cluster.coordinator, self.cluster.coordinator.context.failures, f"S{shard}"
        loss = self._count_lost(shard)
        times.failures[-1].add(loss)
        state = self._state(shard)
        with_dense = c.context.current.home != "workers"
        self.cluster.servers[shard].go_back(state, with_dense, lambda: times.record_useful_work(process))
        self.cluster.events.stall(self.spent.add_partial_recovery(self.costs))
        times.record_ready(process)
        told = {"shard": shard, "state": "back", "step": c.context.step_now, "loaded": state.version}
        c.context.log.info(event_log.SERVER, told)
        back = f"it alone goes back to step {state.version} (PLS {loss.pls:.4f})"
        self._tell(f"{process} was lost at step {c.context.step_now}: {back}")

    def _count_lost(self, shard: int) -> ServerFailureLoss:
        """Count the work lost with a failed server.

        Unless a checkpoint was in progress, the next one can build on the newest, since all shards have its state."""
        cuts = self.cluster.coordinator.core.checkpoints
        idle, base = cuts._open is None, cuts._base
        cuts.on_server_failure(shard)
        if idle:
            cuts._base, cuts._mixed = base, False
        return cuts.unsaved.count_lost(shard, self.cluster.coordinator.context.finished)

    def _state(self, shard: int) -> Shard:
        """Make the shard that a failed server's successor would load."""
        state = self.cluster.new_shard(shard)
        chain, resumed = self._newest(), self.cluster.cfg.resume
        if chain is None and resumed is not None:
            chain = chain_at(Path(resumed))
        if chain is not None:
            load_shard(state, chain, self.cluster.coordinator.context.current.home != "workers")
        return state

    def _newest(self) -> CheckpointChain | None:
        """Newest good checkpoint of this run; None if there is none."""
        try:
            return self.cluster.coordinator.core.checkpoints.folder.newest()
        except CheckpointError:
            return None

    def _everybody(self, shard: int) -> None:
        c = self.cluster.coordinator
        seconds, spent, samples = self._safe
        again = c.context.record.seconds - seconds - (self.spent.total - spent)
        lost = self._again = c.context.finished - samples
        self.cluster.events.stall(self.spent.add_full_recovery(self.costs, again, lost))
        lost_at = f"S{shard} was lost at step {c.context.step_now}"
        self._tell(f"{lost_at}: everybody goes back, {lost:,} samples are trained again")
        raise RollbackAll

    def _tell(self, sentence: str) -> None:
        self.cluster.coordinator.context.send_event("checkpoint", {"state": "back", "sentence": sentence})

    # -- the next cluster ---------------------------------------------------------------------------

    def hand_over(self) -> ClusterHandover:
        """Make the state to hand to the cluster that replaces this one; rename this one's event log."""
        cluster, c, chain = self.cluster, self.cluster.coordinator, self._newest()
        cfg = cluster.cfg
        if chain is not None:
            cfg = from_dict({**config_at(chain), "resume": str((chain.folder / chain.last.name).resolve())})
        c.context.failures.record_ready(c.context.failures.failures[-1].process)
        c.context.failures.failures[-1].samples_rolled_back = self._again
        c.core.checkpoints.unsaved.updates.drop_repeated()
        self._note_times()
        c.context.save_times()
        c.context.log.close(step=c.context.step_now)
        rename_event_log(cluster.run_dir)
        record, counted = c.context.record, {name: getattr(c.core.checkpoints.state, name) for name in COUNTED}
        return ClusterHandover(
            cfg, record.began, cluster.events.now, cluster.events.stalled, c.core.workers.injector, cluster.storms,
            c.context.failures.failures, self.spent, counted, self._row_updates, self._resumed_at,
            record.statistics.observed_faults,
        )  # fmt: skip

    @property
    def _resumed_at(self) -> int | None:
        """Step from which the whole run resumed."""
        position = self.cluster.coordinator.core.checkpoints.resumed
        if self.before is not None:
            return self.before.resumed_at
        return None if position is None else position.step

    def to_result(self, seconds: float) -> dict[str, Any]:
        """Fields of result.json about overhead and lost work; `seconds`: duration of the whole run."""
        overhead = self.spent.to_result(seconds)
        return {"overhead": overhead, "resumed_at": self._resumed_at, "row_updates": self._row_updates}

    @property
    def _row_updates(self) -> int:
        """Number of row updates in the whole run; updates repeated after a rollback count once."""
        before = 0 if self.before is None else self.before.row_updates
        return before + self.cluster.coordinator.core.checkpoints.unsaved.updates.total


def rename_event_log(run_dir: Path) -> None:
    """Rename events.log to the next numbered name, so that the rest of the run gets a new event log."""
    part = 1 + sum(1 for _ in run_dir.glob("events.*.log"))
    (run_dir / "events.log").replace(run_dir / f"events.{part}.log")

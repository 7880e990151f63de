"""Servers that are lost in virtual time: the lost one alone goes back to its newest checkpoint, or everybody does.

Rows, dense slice and optimizer really go back; the time that saving, loading and finding a new place take is that of
the configuration, and everybody stands still for it. Where everybody goes back, the cluster ends with EverybodyBack
and another one is built from the checkpoint, as `resume` does. Costs nothing while no server fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.folder import Chain
from gbactl.checkpoint.intervals import costs_of
from gbactl.checkpoint.lost_work import Loss
from gbactl.checkpoint.restore import chain_at, load_shard
from gbactl.checkpoint.time_spent import Spent
from gbactl.config import RunConfig, from_dict
from gbactl.coordinator import event_log
from gbactl.coordinator.state import config_at
from gbactl.errors import CheckpointError
from gbactl.faults.injector import Injector
from gbactl.faults.message_faults import Storms
from gbactl.store.shard import Shard
from gbactl.wire.messages import Event, Save

if TYPE_CHECKING:
    from gbactl.coordinator.recovery_times import Failed
    from gbactl.simulation.cluster import VirtualCluster


class EverybodyBack(Exception):
    """A server is gone, and everybody goes back."""


@dataclass(frozen=True)
class Before:
    """What a cluster leaves to the one that takes its place. `began`: when training did; `now`, `stalled`: of its
    events; `cuts`: what its checkpoints were and cost; `resumed_at`: the step that the whole run went on from."""

    cfg: RunConfig
    began: float
    now: float
    stalled: float
    injector: Injector
    storms: Storms
    failed: list[Failed]
    spent: Spent
    cuts: dict[str, float]
    row_updates: int
    resumed_at: int | None
    acted: list[dict[str, Any]]


COUNTED = ("done", "failed", "bytes", "seconds")


class Comebacks:
    """Part of a virtual cluster; `spent` so far."""

    def __init__(self, cluster: VirtualCluster, before: Before | None = None) -> None:
        self.cluster, self.before = cluster, before
        self.costs = costs_of(cluster.cfg.checkpoint, cluster.cfg.cluster.servers)
        self.spent = Spent() if before is None else before.spent
        self._paid, self._again = -1, 0
        self._safe = (0.0, 0.0, 0)

    def begin(self) -> None:
        """The cluster is built: go on where the one before it ended."""
        before, c = self.before, self.cluster.coordinator
        if before is None:
            return
        c.flow.began = before.began
        c.core.workers.injector, c.context.failures.state.failed = before.injector, before.failed
        c.context.record.statistics.restore_acted(before.acted)
        for name, value in before.cuts.items():
            setattr(c.core.checkpoints.state, name, value)
        process = before.failed[-1].process
        self.cluster.servers[int(process[1:])].useful = lambda: c.context.failures.useful(process)

    # -- saving -------------------------------------------------------------------------------------

    def saves(self, save: Save, part: float) -> None:
        """A server saves a part of what it has, as all do now; the end of training is no time for training."""
        if save.number != self._paid and self.cluster.coordinator.context.training is not None:
            self._paid = save.number
            self.cluster.events.stall(self.spent.save(self.costs, part))

    def heard(self, event: Event) -> None:
        """Note what is safe: when it was so, what had been spent by then, and how many samples it holds."""
        if event.name == "checkpoint" and event.fields["state"] in ("planned", "saved"):
            c = self.cluster.coordinator
            record = c.context.record
            self._safe = (record.seconds, self.spent.total, event.fields.get("samples", record.ledger.finished))

    # -- going back ---------------------------------------------------------------------------------

    def lost(self, shard: int) -> None:
        """A server is gone. Raises EverybodyBack where it does not come back alone."""
        c = self.cluster.coordinator
        c.context.failures.detected(f"S{shard}", "death")
        if c.core.checkpoints.estimate.recovery == "partial":
            self._alone(shard)
        else:
            self._everybody(shard)

    @property
    def _finished(self) -> int:
        """Samples of the job that have a fate."""
        return self.cluster.coordinator.context.finished

    def _alone(self, shard: int) -> None:
        c, times, process = self.cluster.coordinator, self.cluster.coordinator.context.failures, f"S{shard}"
        loss = self._count_lost(shard)
        times.all[-1].add(loss)
        state = self._state(shard)
        with_dense = c.context.current.home != "workers"
        self.cluster.servers[shard].go_back(state, with_dense, lambda: times.useful(process))
        self.cluster.events.stall(self.spent.one_back(self.costs))
        times.loaded(process)
        told = {"shard": shard, "state": "back", "step": c.context.step_now, "loaded": state.version}
        c.context.log.info(event_log.SERVER, told)
        back = f"it alone goes back to step {state.version} (PLS {loss.pls:.4f})"
        self._tell(f"{process} was lost at step {c.context.step_now}: {back}")

    def _count_lost(self, shard: int) -> Loss:
        """What is lost. Unless a checkpoint was under way, the next one can rest on the newest, as its shards all have
        what that says."""
        cuts = self.cluster.coordinator.core.checkpoints
        idle, base = cuts._open is None, cuts._base
        cuts.server_gone(shard)
        if idle:
            cuts._base, cuts._mixed = base, False
        return cuts.unsaved.lost(shard, self._finished)

    def _state(self, shard: int) -> Shard:
        """What a new process would hold."""
        state = Shard(self.cluster._spec(shard))
        chain, resumed = self._newest(), self.cluster.cfg.resume
        if chain is None and resumed is not None:
            chain = chain_at(Path(resumed))
        if chain is not None:
            load_shard(state, chain, self.cluster.coordinator.context.current.home != "workers")
        return state

    def _newest(self) -> Chain | None:
        """The newest good checkpoint that this run has made."""
        try:
            return self.cluster.coordinator.core.checkpoints.folder.newest()
        except CheckpointError:
            return None

    def _everybody(self, shard: int) -> None:
        c = self.cluster.coordinator
        seconds, spent, samples = self._safe
        again = c.context.record.seconds - seconds - (self.spent.total - spent)
        lost = self._again = self._finished - samples
        self.cluster.events.stall(self.spent.all_back(self.costs, again, lost))
        lost_at = f"S{shard} was lost at step {c.context.step_now}"
        self._tell(f"{lost_at}: everybody goes back, {lost:,} samples are trained again")
        raise EverybodyBack

    def _tell(self, sentence: str) -> None:
        self.cluster.coordinator.context.tell("checkpoint", {"state": "back", "sentence": sentence})

    # -- another cluster in the place of this one ---------------------------------------------------

    def leave(self) -> Before:
        """What the next cluster goes on from; the log of this one is put aside."""
        cluster, c, chain = self.cluster, self.cluster.coordinator, self._newest()
        cfg = cluster.cfg
        if chain is not None:
            cfg = from_dict({**config_at(chain), "resume": str((chain.folder / chain.last.name).resolve())})
        c.context.failures.loaded(c.context.failures.all[-1].process)
        c.context.failures.all[-1].samples_rolled_back = self._again
        c.core.checkpoints.unsaved.updates.again()
        c.context.log.close(step=c.context.step_now)
        aside(cluster.run_dir)
        record, counted = c.context.record, {name: getattr(c.core.checkpoints.state, name) for name in COUNTED}
        return Before(
            cfg, record.began, cluster.events.now, cluster.events.stalled, c.core.workers.injector, cluster.storms,
            c.context.failures.all, self.spent, counted, self._row_updates, self._resumed_at, record.statistics.acted,
        )  # fmt: skip

    @property
    def _resumed_at(self) -> int | None:
        """The step that the whole run went on from."""
        position = self.cluster.coordinator.core.checkpoints.resumed
        if self.before is not None:
            return self.before.resumed_at
        return None if position is None else position.step

    def told(self, seconds: float) -> dict[str, Any]:
        """For result.json, beside what the checkpoints say; `seconds`: of the whole run."""
        overhead = self.spent.told(seconds)
        return {"overhead": overhead, "resumed_at": self._resumed_at, "row_updates": self._row_updates}

    @property
    def _row_updates(self) -> int:
        """Of the whole run, those that were done again counted once."""
        before = 0 if self.before is None else self.before.row_updates
        return before + self.cluster.coordinator.core.checkpoints.unsaved.updates.total


def aside(run_dir: Path) -> None:
    """Keep the event log of a part of a run under a number, as a run that is continued does."""
    part = 1 + sum(1 for _ in run_dir.glob("events.*.log"))
    (run_dir / "events.log").replace(run_dir / f"events.{part}.log")

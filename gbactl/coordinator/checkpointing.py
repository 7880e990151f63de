"""Checkpoints: when to save, at which step, and when a checkpoint is complete.

"Checkpoint at step k" is sent to every server right behind the order of step k - 1, so all of them save the same
state. Where workers hold the dense parameters, one of them is asked for them right behind its batch of that step;
where the workers are trainers, each sends its replica (see checkpoint/publishing.py). A checkpoint costs the
coordinator a message to and from every server and trainer; a thread writes the manifest.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gbactl import __version__
from gbactl.checkpoint.costs_and_interval import CostEstimate, estimate_of, job_named, save_schedule_of
from gbactl.checkpoint.failure_cost_counters import UnsavedWork
from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder, FileEntry, Manifest, identity, read_manifest
from gbactl.checkpoint.publishing import Publication, ReplicaMean, fits
from gbactl.checkpoint.remaining_samples import Ranges
from gbactl.checkpoint.restore import BEGINNING, chain_at
from gbactl.conf_catalogue import as_override
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator import event_log
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.run_context import Flow, RunContext, WaitCondition
from gbactl.coordinator.state import JobPosition, encoded
from gbactl.coordinator.statistics import ADVICE
from gbactl.coordinator.training_phase import StagedSlices
from gbactl.errors import CheckpointError, DivergedError, WireError
from gbactl.kernels.base import Floats
from gbactl.models import row_width
from gbactl.wire.messages import DenseSaved, Save, Saved, SaveDense, SaveReplica

log = logging.getLogger(__name__)
END_BYTES = 2 << 20  # a run's last files: result, report (1 MB), what the tracking store has not taken yet
LAST_SECONDS = 600.0  # seconds that the end of a run waits for its last checkpoint
CLOSING_SECONDS = 10.0  # seconds that a server failure waits for a checkpoint whose files are all written


def spare_bytes(cfg: RunConfig, samples: int) -> int:
    """Bytes of disk that checkpoints must leave free for the event log and last files of a job of `samples` samples."""
    gradients = -(-samples // min(phase.local_batch for phase in cfg.possible))
    return event_log.most_bytes(gradients, cfg.cluster.servers) + END_BYTES


@dataclass
class OpenCheckpoint:
    """Checkpoint that is being written: its manifest, and which servers have written their files."""

    manifest: Manifest
    samples: int
    began: float
    dense: ReplicaMean | None  # dense parameters that workers send for it
    ends_run: bool = False  # the run ends once it is complete
    updates: list[int] = field(default_factory=list)
    parts: dict[int, Saved] = field(default_factory=dict)
    publication: Publication | None = None

    @property
    def error(self) -> str:
        """First error that a server reported, empty if none; an error about infinity or NaN takes precedence."""
        failed = sorted((part for part in self.parts.values() if part.error), key=lambda part: part.finite)
        return failed[0].error if failed else ""

    @property
    def finite(self) -> bool:
        """Whether no node found an infinity or NaN in the parameters to save."""
        return all(part.finite for part in self.parts.values()) and (
            self.publication is None or self.publication.finite
        )


class Checkpointing:
    """Checkpoints of one run.

    `gathering` begins to collect the replicas for a checkpoint; it returns None where no replicas hold the dense
    parameters."""

    def __init__(self, run: RunContext, gathering: Callable[[], ReplicaMean | None]) -> None:
        self.run, self.gathering = run, gathering
        cfg, self.state = run.cfg, run.state.ongoing.checkpoints
        self.enabled = cfg.checkpoint.name != "none"
        self.folder = CheckpointFolder(run.run_dir / CHECKPOINTS)
        self.estimate: CostEstimate = estimate_of(cfg.checkpoint, cfg.cluster.servers)
        self.schedule = save_schedule_of(cfg.checkpoint, cfg.cluster.servers)
        self._spare_bytes = 0  # bytes that must stay free on the disk
        self.resumed: JobPosition | None = None
        self._number = 1
        self._base: list[str] | None = []  # base of the next partial checkpoint; None: it must save all rows
        self._due = float("inf")
        # step and number of the next checkpoint, and the dense parameters that a worker is asked for before
        self._planned: tuple[int, int, ReplicaMean] | None = None
        self._open: OpenCheckpoint | None = None
        self._stop: tuple[float, float] | None = None  # a stop is requested: deadline; seconds allowed

    @property
    def unsaved(self) -> UnsavedWork:
        """Work that the shards would lose if they failed now."""
        return self.state.unsaved

    @property
    def in_progress(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._open is not None

    # -- the run ------------------------------------------------------------------------------------

    def begin(self, samples: int) -> None:
        """Start checkpointing once every node is ready; `samples`: number of samples that the whole job trains.

        Resumes from the run's checkpoint if it has one. After a coordinator failover, the checkpoint in progress is
        given up and the next one is whole."""
        run = self.run
        self.folder.identity = identity(to_dict(run.cfg), run.dataset.fingerprint)
        if run.cfg.resume is not None:
            self._resume(Path(run.cfg.resume))
        self.initial_position = self.resumed or run.position(run.step)
        self.restored_position = self.initial_position  # position from which the job was continued last
        if run.taking_over:
            self._base = None
        else:
            step = run.step if self.resumed else BEGINNING
            finished = run.record.ledger.finished
            self.state.unsaved = UnsavedWork.begin(samples, run.cfg.cluster.servers, step, finished)
        self._number, self._spare_bytes = self.folder.next_number(), spare_bytes(run.cfg, samples)
        if self.enabled:
            self._due = run.hub.now() + self.schedule.seconds_between
            sentence = self.estimate.sentence(self.schedule.every_steps, job_named(run.cfg.checkpoint))
            run.send_event("checkpoint", {"state": "planned", **self._expected, "sentence": sentence})
        if self.resumed is not None and run.home == "replicas" and not run.taking_over:
            sentence = f"Every replica begins with {self.resumed.dense} of step {self.resumed.step}."
            run.send_event("checkpoint", {"state": "resumed", "sentence": sentence})

    def _resume(self, path: Path) -> None:
        run, position = self.run, JobPosition.read(read_manifest(path).position)
        self.resumed, self._base = position, None
        run.record.continue_clock(position.seconds)
        run.record.seconds_at_resume = position.seconds
        run.record.restore(position)
        same_run = path.resolve().parent == self.folder.path.resolve()
        run.record.inherited = position.inherited if same_run else len(position.phases)
        run.record.modes = position.modes_with(run.cfg.mode.name)
        run.step = position.step

    def remaining_ranges(self, number: int, samples: int) -> Ranges:
        """Sample ranges of round `number` still to be trained, by the position from which the job last continued."""
        position = self.restored_position
        unread = position.unread if position.round == number else None
        return ((0, samples),) if unread is None else tuple(unread)

    @property
    def trained(self) -> bool:
        """Whether the job resumed from the final checkpoint of a training that early stopping had ended."""
        return self.restored_position.stopped_early(self.run.cfg.train.patience)

    def save_last(self) -> Flow[None]:
        """Save the final model after training; give up a checkpoint in progress unless its files are all written.

        Saves nothing where a server fails before the checkpoint in progress has ended."""
        if self._open is not None and self._open.publication is not None:
            yield from self._wait()
            if not self.run.can_save:
                return
        self._discard()
        self._begin_between_steps(ended=True)
        yield from self._wait()

    def _wait(self) -> Flow[None]:
        if not (yield WaitCondition(self._closed, self.run.hub.now() + LAST_SECONDS)):
            self.abandon("it took too long")

    def _closed(self) -> bool:
        self.poll()
        return self._open is None

    @property
    def _expected(self) -> dict[str, Any]:
        """Fields of the estimate; None for those at the run's interval where it is in steps, of unknown seconds."""
        unknown = {} if self.schedule.every_steps is None else {"interval": None, "expected_pls": None}
        return {**asdict(self.estimate), **unknown}

    def summary(self) -> dict[str, Any]:
        """Checkpoint fields of result.json."""
        if not self.enabled and self.resumed is None:
            return {}
        state, unsaved = self.state, self.unsaved
        fields = {
            "name": self.run.cfg.checkpoint.name, **self._expected,
            "saved": state.done, "failed": state.failed, "bytes": state.bytes, "seconds": state.seconds,
            "pls": unsaved.pls.total, "row_updates": unsaved.updates.total, "lost_updates": unsaved.updates.share,
            "resumed_at": None if self.resumed is None else self.resumed.step,
        }  # fmt: skip
        return {"checkpoint": fields}

    # -- stopping at a signal -----------------------------------------------------------------------

    def stop(self, seconds: float) -> None:
        """Request a last checkpoint, to be saved within `seconds`, because the run is to end.

        The event `stop` reports the outcome. While the final checkpoint is written, no other is begun: the run ends
        with it."""
        if not self.run.members.settled and not self.run.taking_over:
            self._answer_stop({"state": "nothing"})
            return
        self._stop = time.monotonic() + seconds, seconds
        checkpoint = self._open
        if checkpoint is not None and checkpoint.publication is None and not checkpoint.manifest.position["ended"]:
            self._discard()  # this checkpoint is written at a limited rate

    def end_stop(self) -> Flow[None]:
        """Wait, after the last evaluation, for the checkpoint of a stop request; drop a request that is too late."""
        if self._stop is not None and self._open is not None:
            yield from self._wait()
        self._stop = None

    def _check_stop(self, deadline: float, seconds: float) -> None:
        """Save at once if an evaluation is under way; after the deadline of the stop request, give up saving."""
        if time.monotonic() >= deadline:
            self._discard()
            self._answer_stop({"state": "failed", "why": f"it took longer than cluster.stop_seconds={seconds:g}"})
        elif self.run.evaluation is not None and self._open is None and self.run.can_save:
            self._planned = None
            self._begin_between_steps()

    def _answer_stop(self, fields: dict[str, Any]) -> None:
        self._stop = None
        self.run.send_event("stop", fields)

    # -- when to save -------------------------------------------------------------------------------

    def watch(self, training: LivePhase) -> None:
        """Connect checkpointing to a phase that begins, so that its steps trigger checkpoints."""
        self._planned = None
        training.on_grant, training.on_order = self._on_grant, self._on_order
        if self.enabled:
            training.phase.slices = StagedSlices(self.unsaved.updates.count_applied, self._count_missed)

    def _count_missed(self, shard: int, samples: int, rows: int) -> None:
        """Count a gradient slice that is not applied because it was in flight when its server failed."""
        if self.estimate.recovery != "full":
            self.run.failures.add_loss(f"S{shard}", self.unsaved.count_missed(shard, samples, rows))

    def _is_due(self, step: int) -> bool:
        if self._stop is None and not self.enabled:
            return False
        if self._open is not None or self._planned is not None or not self.run.can_save:
            return False
        if self._stop is not None:
            return True
        every = self.schedule.steps_between
        return self.run.hub.now() >= self._due if every is None else step % every == 0

    def _on_grant(self, worker: int, token: int) -> None:
        """Ask a worker for the dense parameters to save, when it receives its batch of step `token` and a save is due.

        Only where the workers hold the dense parameters."""
        if not self._is_due(token + 1) or self.run.home != "workers":
            return
        if worker == min(self.run.members.channels_of("worker")):
            self._planned = (token + 1, self._plan(), ReplicaMean([worker], centred=False, required=True))
            self._ask_dense(worker, token + 1)

    def _ask_dense(self, worker: int, step: int) -> None:
        self.run.members.channels_of("worker")[worker].send(SaveDense(self._number - 1, step))

    def _plan(self) -> int:
        number, self._number = self._number, self._number + 1
        return number

    def _on_order(self, step: int) -> None:
        """Begin a checkpoint, if one is due, when all steps below `step` are ordered."""
        dense: ReplicaMean | None
        if self._planned is not None and self._planned[0] == step and self.run.can_save:
            _, number, dense = self._planned
            self._planned = None
        elif self._is_due(step) and self.run.home != "workers":
            number, dense = self._plan(), self.gathering()
        else:
            return
        kind = "whole" if self._base is None or self._stop else self.schedule.kind(self.state.tick)
        self._begin(step, number, kind, self.run.training, dense)

    # -- saving ------------------------------------------------------------------------------------

    def _begin_between_steps(self, ended: bool = False) -> None:
        """Begin to save the whole state while no batch is in flight."""
        if self.run.home != "workers":
            self._begin(self.run.step, self._plan(), "whole", None, self.gathering(), ended)
            return
        worker = min(self.run.members.channels_of("worker"))
        dense = ReplicaMean([worker], centred=False, required=True)
        self._begin(self.run.step, self._plan(), "whole", None, dense, ended)
        self._ask_dense(worker, 0)

    def _begin(
        self, step: int, number: int, kind: str, training: LivePhase | None, dense: ReplicaMean | None,
        ended: bool = False,
    ) -> None:  # fmt: skip
        run = self.run
        base = [] if kind == "whole" else list(self._base or [])
        position = run.position(step, training, ended)
        if run.evaluation is not None:
            position.unread = list(run.untrained)
        # at the end of a phase with replicas, the servers hold their mean or centre
        home = "servers" if dense is None or dense.centred else "workers"
        manifest = Manifest(
            number, step, kind, run.cfg.cluster.servers, run.dataset.schema.rows, row_width(run.cfg.model), home, [],
            encoded(position), to_dict(run.cfg), self._schema(), self.folder.identity, base, __version__,
        )  # fmt: skip
        unsaved, ends_run = list(self.unsaved.updates.pending), self._stop is not None
        self._open = OpenCheckpoint(manifest, position.ledger.read, run.hub.now(), dense, ends_run, unsaved)
        self._due = run.hub.now() + self.schedule.seconds_between
        try:
            self.folder.begin(number)
        except OSError as error:
            self._give_up(self._open, f"{self.folder.path} could not be made ({error.strerror})")
            return
        pace = 0.0 if ended or ends_run else 1e6 * run.cfg.checkpoint.mb_per_second
        run.members.send_to_all("server", Save(number, step, manifest.name, kind, home == "servers", pace))
        if dense is not None and not dense.required:
            for worker in sorted(dense.due):
                run.members.channels_of("worker")[worker].send(SaveReplica(number))

    def _schema(self) -> dict[str, Any]:
        dataset = self.run.dataset
        return {**dataset.schema.stored_values(), "fields": dataset.meta.get("field_names", [])}

    def on_saved(self, message: Saved) -> None:
        """Record that a server has written its file of the checkpoint, or has failed to write it."""
        checkpoint = self._open
        if checkpoint is not None and message.number == checkpoint.manifest.number:
            checkpoint.parts[message.shard] = message
            self._complete()

    @property
    def _gathered(self) -> ReplicaMean | None:
        """Dense parameters that workers were asked for, for the checkpoint in progress or planned."""
        if self._open is not None:
            return self._open.dense
        return None if self._planned is None else self._planned[2]

    def on_dense(self, message: DenseSaved, values: Floats, worker: int) -> None:
        """Store the dense parameters and optimizer state that a worker sends for saving, or its reply that it has none.

        Raises WireError where their sizes do not match."""
        dense = self._gathered
        if message.params >= 0 and not fits(message.params, len(values), self.run.cfg.optim.name):
            raise WireError(f"W{worker} sent {len(values)} values, which do not fit {message.params} dense parameters.")
        if dense is None or message.number != self._number - 1:
            return
        if message.params < 0 and dense.required:
            self.abandon("the dense part was asked for too late")
            return
        dense.add(worker, message.step, message.params, values)
        self._complete()

    def _complete(self) -> None:
        checkpoint = self._open
        if (
            checkpoint is None
            or checkpoint.publication is not None
            or len(checkpoint.parts) < checkpoint.manifest.shards
        ):
            return
        if checkpoint.error:
            self._give_up(checkpoint, checkpoint.error)
            return
        tensors = None
        if checkpoint.dense is not None:
            if checkpoint.dense.due:
                return
            tensors = checkpoint.dense.tensors(self.run.cfg.optim.name)
            if tensors is None:
                self.abandon("no trainer has a replica")
                return
        for s, part in sorted(checkpoint.parts.items()):
            checkpoint.manifest.files.append(FileEntry(f"S{s}.safetensors", s, part.bytes, part.rows, part.sums))
        cfg = self.run.cfg
        checkpoint.publication = Publication(
            self.folder, checkpoint.manifest, tensors, cfg.checkpoint.keep, self._spare_bytes
        )
        if not cfg.engine.real or checkpoint.manifest.position["ended"]:
            checkpoint.publication.wait()
        self.poll()

    def poll(self) -> None:
        """Handle a due stop request; finish or give up the checkpoint in progress once its publication has ended.

        Called between two messages."""
        if self._stop is not None:
            self._check_stop(*self._stop)
        checkpoint = self._open
        if checkpoint is None or checkpoint.publication is None or not checkpoint.publication.ended:
            return
        if checkpoint.publication.error:
            self._give_up(checkpoint, checkpoint.publication.error)
            return
        self._open = None
        self.state.tick += 1
        manifest, seconds = checkpoint.manifest, self.run.hub.now() - checkpoint.began
        base = [] if manifest.kind == "whole" else manifest.base
        self._base = [*base, manifest.name]
        self.state.done += 1
        self.state.bytes += manifest.bytes
        self.state.seconds += seconds
        self._count_saved(checkpoint)
        self.run.log_note()
        self.run.save_times()
        fields = {"number": manifest.number, "step": manifest.step, "kind": manifest.kind, "bytes": manifest.bytes}
        self.run.send_event(
            "checkpoint", {"state": "saved", **fields, "seconds": seconds, "samples": checkpoint.samples}
        )
        if checkpoint.ends_run:
            self.run.send_progress()
            self.run.log.flush()
            self._answer_stop({"state": "saved", "name": manifest.name, "step": manifest.step, "bytes": manifest.bytes})

    def _count_saved(self, checkpoint: OpenCheckpoint) -> None:
        """Record the work in a complete checkpoint as saved: a server failure no longer undoes it."""
        kind, step = checkpoint.manifest.kind, checkpoint.manifest.step
        updates = {
            s: checkpoint.updates[s] if kind == "whole" else part.updates for s, part in checkpoint.parts.items()
        }
        self.unsaved.record_save(step, None if kind == "chosen" else checkpoint.samples, updates)

    def finish_or_abandon(self, why: str) -> None:
        """End the checkpoint in progress: wait for it if all its files are written, else give it up."""
        if self._open is not None and self._open.publication is not None:
            self._open.publication.wait(CLOSING_SECONDS)
            self.poll()
        if self._open is not None:
            self.abandon(why)

    def on_server_failure(self, shard: int) -> None:
        """Handle a server failure: give up the checkpoint in progress; the next one saves all rows of every shard."""
        self.finish_or_abandon(f"S{shard} is gone")
        self._base = None

    def newest(self) -> tuple[str, JobPosition]:
        """Folder ("" for the beginning) and position of the newest complete checkpoint."""
        resume = self.run.cfg.resume
        try:
            chain = self.folder.newest(lambda why: log.warning("%s", why))
        except CheckpointError:
            if resume is None:
                return "", self.initial_position
            chain = chain_at(Path(resume))
        return str(chain.folder / chain.last.name), JobPosition.read(chain.last.position)

    def go_back(self, position: JobPosition) -> None:
        """Set the job's position to the newest checkpoint's position, after every node was restored from it.

        Clock and mode do not go back. No checkpoint may be in progress (see finish_or_abandon)."""
        self.run.record.restore(position)
        self.run.record.modes = position.modes_with(self.run.current.mode.name)
        self.restored_position, self.run.step, self._base = position, position.step, None
        self.unsaved.updates.drop_repeated()

    def on_failover(self) -> None:
        """Give up the checkpoint in progress after a coordinator failover, unless it is the final one."""
        if self._open is None or not self._open.manifest.position["ended"]:
            self._discard()
            self._base = None

    def on_worker_failure(self, worker: int) -> None:
        """Handle a worker failure: give up a checkpoint that needs its dense parameters, or leave out its replica."""
        dense = self._gathered
        if dense is None or worker not in dense.due:
            return
        if dense.required:
            self.abandon(f"W{worker} is gone")
        else:
            dense.forget(worker)
            self._complete()

    def _give_up(self, checkpoint: OpenCheckpoint, why: str) -> None:
        """Give up a checkpoint that was not completed. Raises DivergedError if a diverged model is to end the run."""
        if self._stop is not None:
            self._discard()
            self._answer_stop({"state": "failed", "why": why.rstrip(".")})
            return
        self.abandon(why)
        if not checkpoint.finite and self.run.cfg.train.on_divergence == "stop":
            step, reason = checkpoint.manifest.step, why.rstrip(".")
            raise DivergedError(f"The model diverged at or before step {step}: {reason}; {ADVICE}")

    def resume_hint(self, *keys: str) -> str:
        """Sentence that names the newest good checkpoint and the command that resumes from it, with `keys` appended.

        Empty where there is no checkpoint. Reads it to its end. A checkpoint in progress is given up, unless all its
        files are written."""
        if self._open is not None and self._open.publication is not None:
            self._open.publication.wait(CLOSING_SECONDS)
        elif self.enabled:
            self._discard()
        try:
            last, run = self.folder.newest().last, self.folder.path.parent
        except CheckpointError:
            if self.run.cfg.resume is None:
                return ""
            run = Path(self.run.cfg.resume)
            last = read_manifest(run)
        command = " ".join(("gbactl train", shlex.quote(f"resume={as_override(str(run))}"), *keys))
        return f"The newest good checkpoint is {last.name}, of step {last.step}; go on from it with '{command}'."

    def abandon(self, why: str) -> None:
        """Give up the checkpoint in progress, if any, and report why; the next interval begins another."""
        checkpoint = self._discard()
        if checkpoint is None:
            return
        self.state.failed += 1
        self.run.log_note()
        log.warning("checkpoint %s: %s", checkpoint.manifest.name, why)
        self.run.send_event("checkpoint", {"state": "failed", "step": checkpoint.manifest.step, "why": why})

    def _discard(self) -> OpenCheckpoint | None:
        """Discard and return the checkpoint in progress; the next one saves all rows."""
        checkpoint, self._open = self._open, None
        self._planned = None
        if checkpoint is not None:
            self._base = None
            try:
                self.folder.remove(checkpoint.manifest.name)
            except OSError as error:
                log.warning("what there is of it stays: %s", error)
        return checkpoint

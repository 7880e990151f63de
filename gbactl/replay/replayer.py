"""Replay loop: passes the log's records to policy, gradient computation and shards, and compares checksums."""

from __future__ import annotations

from typing import Any

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, InfoRecord, Record
from gbactl.coordinator.statistics import Statistics
from gbactl.coordinator.training_phase import (
    ApplyStep,
    Command,
    DiscardGradient,
    DivergenceError,
    GiveUpBatch,
    LoggedPhase,
    TrainingPhase,
    named,
    step_order,
)
from gbactl.data.dataset import Dataset, Progress
from gbactl.errors import EventLogError
from gbactl.hashes_and_random_numbers import MODULUS
from gbactl.policies.policy import Ledger, Step
from gbactl.replay.event_log_scan import PhaseRecord, Recording
from gbactl.replay.gradient_recomputation import CapturedValues, GradientRecomputer, ReplayedReplica
from gbactl.store.gradient_slice import StepOrder
from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase


class Replayer:
    """Replayer of a recorded run up to global step `until`. Raises DivergenceError at the first difference."""

    def __init__(
        self, recording: Recording, dataset: Dataset, until: int, lenient: bool, progress: Progress | None
    ) -> None:
        self.recording, self.dataset, self.until, self.progress = recording, dataset, until, progress
        self.cfg = recording.cfg
        self.gradients = GradientRecomputer(self.cfg, dataset)
        self.shards = self.gradients.shards()
        self.replica = ReplayedReplica(self.gradients, self.shards)
        self.checks = ChecksumComparison(recording, lenient)
        self.computed, self.dropped, self.step = 0, 0, 0
        self._ledger, self._statistics = Ledger(), Statistics()
        self._phases = iter(recording.phases)
        self._phase: PhaseRecord | None = None
        self._logged: LoggedPhase | None = None
        self._captures: CapturedValues | None = None

    def run(self) -> None:
        """Replay all steps up to `until`, or to the end of the log if `until` is the run's last step."""
        whole = self.until == self.recording.steps and self.recording.ended
        for record in self.recording.records():
            if self.step == self.until and not whole:
                return
            self._handle(record)

    def _handle(self, record: Record) -> None:
        if isinstance(record, InfoRecord):
            if record.kind in (event_log.PHASE, event_log.END, event_log.SWITCH, event_log.MOVED):
                self._close()
            if record.kind == event_log.MOVED:  # the workers then take the dense parameters from the servers
                self.replica.move("servers")
            if record.kind == event_log.SWITCH and record.fields.get("fresh"):
                self._reset_optimizer()
            if record.kind == event_log.CHECKSUM and "model" in record.fields:
                self.checks.model(self.replica, record.fields)
            if record.kind == event_log.PHASE:
                self._begin(next(self._phases))
            return
        logged = self._logged
        assert logged is not None, "scan() lets no such record pass"
        for command in logged.feed(record):
            self._carry_out(command)
        if isinstance(record, AnnounceRecord) and not logged.discards(record.batch):
            self._compute(record)

    def _reset_optimizer(self) -> None:
        """Reset the optimizer's state on all shards, after moving the dense parameters to them."""
        self.replica.move("servers")
        for shard in self.shards:
            shard.reset_optimizer()

    def _carry_out(self, command: Command) -> None:
        """Carry out a command on the replay's own shards, once the log has confirmed it."""
        if isinstance(command, ApplyStep):
            self._order(command)
        elif isinstance(command, DiscardGradient):
            self._drop(command.drop.batch)
        elif isinstance(command, GiveUpBatch):  # no gradient is computed for it
            self._captured.forget(command.batch)

    @property
    def _captured(self) -> CapturedValues:
        assert self._captures is not None
        return self._captures

    def _begin(self, phase: PhaseRecord) -> None:
        begin = phase.begin
        for shard in self.shards:
            shard.begin_phase()
        if not begin.training:
            return
        cfg = phase.cfg
        self._check(phase)
        finished = self._ledger.finished
        training = TrainingPhase.of(
            cfg, self.cfg.processes, begin.samples, begin.first_step, finished, self._statistics
        )
        self._phase, self._logged = phase, LoggedPhase(training)
        self.replica.move(cfg.home)
        dense = self.replica.block.value if cfg.home == "workers" else None
        self._captures = CapturedValues(self.gradients, self.shards, phase.pulls, dense)
        self.gradients.begin(begin)

    def _check(self, phase: PhaseRecord) -> None:
        begin, splits, cfg = phase.begin, self.dataset.splits, phase.cfg
        right = (begin.mode, begin.local_batch) == (cfg.mode.name, cfg.local_batch)
        rows = splits[begin.split].rows if begin.split in range(len(splits)) else -1
        end = begin.first_sample + begin.samples
        if not right or min(begin.first_sample, begin.samples) < 0 or not (end == rows or self._cut(begin, end, rows)):
            raise EventLogError(f"{self.recording.path} has a phase {begin.number} that this run cannot have had.")

    def _cut(self, begin: BeginPhase, end: int, rows: int) -> bool:
        """Whether a phase may end before its day does: the next phase continues that day, or the log ends first.

        It may also end before the batch that was meant to be its last, for a switch that was not known before."""
        after = [p.begin for p in self.recording.phases if p.begin.training and p.begin.number > begin.number]
        if not after:
            return end < rows and not self.recording.ended
        same = (after[0].split, after[0].epoch) == (begin.split, begin.epoch)
        return end < rows and same and begin.first_sample <= after[0].first_sample <= end

    def _compute(self, record: AnnounceRecord) -> None:
        parts = self._captured.gradient(record)
        if self.replica.home == "workers":
            self.replica.take(record.batch, parts)
        for shard, part in zip(self.shards, parts, strict=True):
            shard.stage(record.batch, part)
        self.computed += 1

    def _drop(self, batch: int) -> None:
        self._captured.forget(batch)
        for shard in self.shards:
            shard.drop(batch)
        self.dropped += 1

    def _order(self, command: ApplyStep) -> None:
        assert self._phase is not None
        self._captured.leave()
        self.checks.apply(self.shards, step_order(command, self._phase.begin.local_batch), command.step)
        if self.replica.home == "workers":
            self.replica.step(command.step, command.lr_scale, self.cfg.processes)
        self.step += 1
        if self.progress is not None:
            self.progress("replay", self.step / self.until)

    def _close(self) -> None:
        """Close the training phase, if one is open."""
        if self._logged is None or self._phase is None:
            return
        self._logged.close()
        self._ledger.add(self._logged.phase.policy.ledger)
        self.checks.close(self.shards, self._phase)
        self._phase = self._logged = self._captures = None


class ChecksumComparison:
    """Comparison of the replayed shards' checksums with the log's.

    `lenient`: bits may differ on this machine; the first difference is then kept instead of raised.
    """

    def __init__(self, recording: Recording, lenient: bool) -> None:
        self.recording, self.lenient = recording, lenient
        self.compared = 0
        self.first: DivergenceError | None = None
        self._agreed = -1

    def apply(self, shards: list[Shard], order: StepOrder, step: Step) -> None:
        """Apply a step on every shard, and compare the checksums that the log has of that step."""
        members = [(member.worker, member.batch) for member in step.members]
        differ = []
        for number, shard in enumerate(shards):
            logged = self.recording.digests.get((order.step, number))
            touched = None if logged is None else shard.touched_rows(order)
            shard.apply(order)
            if touched is not None:
                self.compared += 1
                if shard.step_digest(touched) != logged:
                    differ.append(number)
        for number in differ:
            self._report(number, order.step, members, f"in step {order.step} ({named(members)})")
        if not differ and (order.step, 0) in self.recording.digests:
            self._agreed = order.step

    def close(self, shards: list[Shard], phase: PhaseRecord) -> None:
        """Compare every shard's whole state with the log at the end of a phase.

        Raises EventLogError if the log has no checksum.
        """
        step = shards[0].version - 1
        for number, shard in enumerate(shards):
            logged = phase.whole.get(number)
            if logged is None:
                raise EventLogError(
                    f"{self.recording.path} has no checksum of shard {number} at the end of phase {phase.begin.number}."
                )
            if not logged:  # at a switch, where the tables are too large to be read while all processes wait
                continue
            self.compared += 1
            if shard.checksum() != logged:
                self._report(number, step, [], f"at the end of phase {phase.begin.number}, after step {step}")
        self._agreed = step

    def model(self, replica: ReplayedReplica, logged: dict[str, Any]) -> None:
        """Compare the model's checksum before or after a mode switch with the log's, if the log has one."""
        own = replica.model_sum(logged["of"] == "dense")
        if not logged["model"] or own is None:
            return
        self.compared += 1
        if f"{own % MODULUS:016x}" != logged["model"]:
            self._report(-1, logged["step"], [], f"at a switch, {logged['when']}, after step {logged['step']}")

    def _report(self, shard: int, step: int, members: list[tuple[int, int]], where: str) -> None:
        since = "the start" if self._agreed < 0 else f"step {self._agreed}"
        what = "The model" if shard < 0 else f"Shard {shard}"
        text = f"{what} is not as logged {where}; the last checksum that agreed was at {since}."
        workers, batches = tuple(w for w, _ in members), tuple(b for _, b in members)
        found = DivergenceError("bits", step, text, shard, workers, batches)
        if not self.lenient:
            raise found
        self.first = self.first or found

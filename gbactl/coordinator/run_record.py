"""Record of a run: ledger of samples, phases, loss curve, failures, and the result computed from them. No I/O.

Two kinds of samples are undone by a failure. A server that goes back alone, or a worker that loses a gradient slice of
the dense parameters, lacks these samples' updates for good, while the other processes keep them: `samples_undone`
counts the samples, and `row_updates_undone` the lost row updates. The fate of the samples stays "trained"; their share
of the job is `pls`. Where all nodes go back, `samples_rolled_back` lose their fate and are read again. If several
servers fail together, these samples are counted for the first one, so that the sum over `recovery` is
`samples.rolled_back`, beside read = trained + decayed + lost. A failure's record costs a microsecond.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import Any

from gbactl.checkpoint.failure_cost_counters import ServerFailureLoss
from gbactl.config import Round
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.state import EarlyStopping, FailureRecord, FailureRecords, JobPosition
from gbactl.coordinator.statistics import Statistics, histogram_to_json, quantiles
from gbactl.errors import ClusterError
from gbactl.hashes_and_random_numbers import MODULUS
from gbactl.policies.policy import Ledger
from gbactl.wire.messages import Inspected

METRICS = ("auc", "logloss", "ne", "calibration", "gauc")  # the last one only where the data have a user
LEDGER_FIELDS = ("read", "trained", "decayed", "lost", "effective")
SUMMED = ("steps", "samples", "decayed", "lost", "seconds", "closing_seconds")
MOST_POINTS = 500  # maximum of points of the curves in a checkpoint or a result
PHASE_FIELDS = ("mode", "first_sample", "first_step", "pause_ms", "fresh_optimizer")


def eps(trained: int, seconds: float) -> float:
    """Trained samples per second (EPS); 0 if no time was counted."""
    return trained / seconds if seconds > 0 else 0.0


def _thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thin a curve to about MOST_POINTS points, and keep its last one."""
    every = -(-len(curve) // MOST_POINTS)
    return list(curve) if every <= 1 else [*curve[::every], curve[-1]]


def by_round(phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Combine phases into rounds (days or epochs), with the scores of each round's evaluation."""
    return [_combined(list(parts)) for _, parts in groupby(phases, key=lambda phase: phase["day"])]


def _combined(phases: list[dict[str, Any]]) -> dict[str, Any]:
    fields = {key: value for phase in phases for key, value in phase.items() if key not in PHASE_FIELDS}
    sums = {key: sum(phase.get(key, 0) for phase in phases) for key in SUMMED}
    modes = [mode for mode, _ in groupby(phase["mode"] for phase in phases)]
    staleness = _staleness(phases)
    staleness_fields = {"staleness_histogram": histogram_to_json(staleness), "staleness": quantiles(staleness)}
    return {**fields, "modes": modes, **sums, "eps": eps(sums["samples"], sums["seconds"]), **staleness_fields}


def _staleness(phases: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Add up the staleness histograms of phases."""
    histogram = Counter[int]()
    for phase in phases:
        histogram.update({int(steps): count for steps, count in phase["staleness_histogram"].items()})
    return histogram


class RunRecord:
    """Record that the coordinator fills during the run. Times are seconds since `start`.

    `rounds`: the run's rounds, each with its number of samples."""

    def __init__(self, now: Callable[[], float], patience: int, rounds: Sequence[tuple[Round, int]]) -> None:
        self.now, self.rounds = now, rounds
        self.stopping = EarlyStopping(patience)
        self.results: list[dict[str, Any]] = []  # scores of each finished round
        self.ledger = Ledger()
        self.statistics = Statistics()
        self.phases: list[dict[str, Any]] = []
        self.inherited = 0  # number of phases that the run which this one began from has trained
        self.curve: list[dict[str, Any]] = []
        self.seconds_at_resume = 0.0  # seconds that the run had taken at the checkpoint that it resumed from
        self.modes = ""  # modes so far: sync>gba@day2
        self.round = 0  # number of the current round, or of the last one
        self.last_gradient: float | None = None  # end of the last phase, by `now`
        # of the next phase to be closed: time from the last gradient before its switch to the first one after it
        self.pause_ms: float | None = None
        self.optimizer_reset = False  # whether it began with the optimizer's state reset
        self.start()

    def start(self) -> None:
        """Start the run's clock, when every node is ready."""
        self.began = self.now()

    def continue_clock(self, seconds: float) -> None:
        """Count the `seconds` that a continued run had already taken as part of this run's time."""
        self.began = min(self.began, self.now() - seconds)

    @property
    def seconds(self) -> float:
        """Seconds since every node was ready."""
        return self.now() - self.began

    @property
    def label(self) -> str:
        """Label of the current round: day 3, epoch 0."""
        return self.rounds[self.round][0].label

    def close_phase(self, training: LivePhase) -> None:
        """Record a finished phase, whose gradients are all applied.

        EPS covers first hand-out to last announced gradient; the time from there to the last applied step is
        `closing_seconds`."""
        policy, clock = training.policy, training.clock
        self.ledger.add(policy.ledger)
        self.last_gradient = None if clock.gradients is None else clock.gradients[1]
        end = clock.first if self.last_gradient is None else self.last_gradient
        phase = self._phase(training, policy.ledger, policy.step)
        phase |= {"pause_ms": self.pause_ms, "closing_seconds": 0.0 if end is None else self.now() - end}
        self.phases.append(phase | ({"fresh_optimizer": True} if self.optimizer_reset else {}))
        self.pause_ms, self.optimizer_reset = None, False

    def _phase(self, training: LivePhase, done: Ledger, step: int) -> dict[str, Any]:
        """Summary of a phase up to step `step`; `done`: numbers of its samples trained, decayed and lost."""
        first_step, seconds = training.policy.phase.first_step, training.clock.seconds
        return {
            "day": self.label, "mode": training.mode, "first_sample": training.ranges[0][0], "first_step": first_step,
            "pause_ms": None, "steps": step - first_step, "samples": done.trained, "decayed": done.decayed,
            "lost": done.lost, "seconds": seconds, "eps": eps(done.trained, seconds), "closing_seconds": 0.0,
            "staleness_histogram": histogram_to_json(self.statistics.staleness - _staleness(self.phases)),
        }  # fmt: skip

    def evaluated(self, scores: dict[str, dict[str, float]], judged_on: str) -> dict[str, Any]:
        """Add an evaluation's scores, by split, to the last phase. Returns the summary of its round so far.

        The last of the evaluations is the round's score; early stopping uses the one on `judged_on`."""
        *_, last = scores
        judged = {f"judged_{key}": scores[judged_on][key] for key in ("auc", "logloss")}
        self.phases[-1].update(scores[last], evaluated_on=last, judged_on=judged_on, **judged)
        return by_round(self.phases)[-1]

    def progress(self, training: LivePhase | None, step: int) -> dict[str, Any]:
        """Progress of the run for a report; adds a point to the curves if a gradient was announced since the last one.

        At the end of a phase without such a gradient, moves the last point there: it has all finished samples then.
        `eps` is None between two phases where nothing was announced since the last report."""
        ledger = training.policy.ledger if training else Ledger()
        recent, now = self.statistics.take_recent(), self.seconds
        finished = self.ledger.finished + ledger.finished
        last = self.curve[-1] if self.curve else {"samples": 0, "seconds": 0.0}
        first = training.clock.first if training else None  # time between two phases is not training
        since = last["seconds"] if first is None else max(last["seconds"], first - self.began)
        rate = (finished - last["samples"]) / max(1e-9, now - since)
        trained = sum(phase["seconds"] + phase["closing_seconds"] for phase in self.phases)
        trained += 0.0 if first is None else now + self.began - first
        now_eps = rate if recent.samples or first is not None else None
        point = {"samples": finished, "seconds": now, "training_seconds": trained, "eps": now_eps, **recent.point()}
        if recent.samples:
            self.curve.append(point)
        elif training is None and self.curve and finished > last["samples"]:
            self.curve[-1] = {**last, "samples": finished, "seconds": now, "training_seconds": trained}
        return {
            **point,
            **self._round_fields(training),
            "step": training.policy.step if training else step,
            "workers": self.statistics.rates(now),
            "times": self.statistics.times.take_recent(),
            "staleness": quantiles(self.statistics.staleness),
            "label": self.label,
            "round": self.round,
            "rounds": len(self.rounds),
            "round_samples": self.rounds[self.round][1],
        }

    def _round_fields(self, training: LivePhase | None) -> dict[str, Any]:
        """Samples of the round trained, decayed or lost so far, and the round's samples per second."""
        parts = [phase for phase in self.phases if phase["day"] == self.label]
        ledger = training.policy.ledger if training else Ledger()
        trained = sum(phase["samples"] for phase in parts) + ledger.trained
        seconds = sum(phase["seconds"] for phase in parts) + (training.clock.seconds if training else 0.0)
        others = sum(phase.get(outcome, 0) for phase in parts for outcome in ("decayed", "lost"))
        finished = trained + others + ledger.decayed + ledger.lost
        return {"round_finished": finished, "round_eps": eps(trained, seconds)}

    def position(
        self, training: LivePhase | None, step: int, mode: dict[str, Any], switches: int, ended: bool = False
    ) -> JobPosition:
        """Position of the job in its data and schedule, for checkpoints and the journal.

        `training`: the current phase, whose steps below `step` are ordered; `mode`: its keys; `switches`: entries of
        the schedule that were taken."""
        ledger = replace(self.ledger)
        if training is not None:
            ledger.add(training.phase.finished.ledger)
        ledger.read = ledger.finished  # what is in flight is read again
        return JobPosition(
            step=step, round=len(self.results), label=self.label, seconds=self.seconds, ended=ended,
            unread=None if training is None else list(training.remaining_ranges), ledger=ledger, mode=mode,
            switches=switches, stopping=replace(self.stopping) if self.results else None,
            results=[dict(each) for each in self.results], modes=self.modes,
            phases=[*(dict(each) for each in self.phases), *self._open_phase(training, step)],
            curve=_thinned(self.curve), statistics=self.statistics.counts, inherited=self.inherited,
        )  # fmt: skip

    def _open_phase(self, training: LivePhase | None, step: int) -> list[dict[str, Any]]:
        """Summary of the current phase so far, in the form of a finished phase."""
        if training is None or step == training.policy.phase.first_step:
            return []
        return [self._phase(training, training.phase.finished.ledger, step)]

    def restore(self, position: JobPosition) -> None:
        """Replace this record by the record saved in `position`, and continue from there."""
        patience, stopping = self.stopping.patience, position.stopping
        self.stopping = EarlyStopping(patience) if stopping is None else replace(stopping, patience=patience)
        self.results, self.round = list(position.results), min(position.round, len(self.rounds) - 1)
        self.ledger, self.modes = replace(position.ledger), position.modes
        self.phases, self.curve = list(position.phases), list(position.curve)
        self.statistics.restore(copy.deepcopy(position.statistics), position.step, position.ledger.finished)
        self.statistics.rates(self.seconds)  # rates are counted from here

    def result(self, best: dict[str, Any], inspected: dict[str, Inspected]) -> dict[str, Any]:
        """Fields of result.json about the training.

        Raises ClusterError if the workers' copies of the dense parameters differ."""
        own = self.phases[self.inherited :]
        return {
            **{key: best[key] for key in METRICS if key in best},
            "best_round": best["day"],
            **{key: best.get(key) for key in ("evaluated_on", "judged_on", "judged_auc")},
            "eps": eps(sum(phase["samples"] for phase in own), sum(phase["seconds"] for phase in own)),
            "samples": {field: getattr(self.ledger, field) for field in LEDGER_FIELDS},
            "phases": self.phases,
            "rounds": by_round(self.phases),
            "curve": _thinned(self.curve),
            **self.statistics.summary({name: v.counters for name, v in inspected.items()}, self.seconds_at_resume),
            "time": self.statistics.times.summary(self.began, {n: v.times for n, v in inspected.items() if v.times}),
            "checksums": checksums(inspected),
            "memory": {name: v.bytes for name, v in sorted(inspected.items()) if v.bytes},
        }


def checksums(inspected: dict[str, Inspected]) -> dict[str, str | None]:
    """Return each node's checksum and, as `model`, the whole model's, which is equal for any number of servers.

    `model` is None where a shard is too large to sum. Raises ClusterError if the workers' copies of the dense
    parameters differ."""
    own = {name: v.checksum for name, v in sorted(inspected.items()) if v.checksum}
    if len({checksum for name, checksum in own.items() if name.startswith("W")}) > 1:
        raise ClusterError("The workers' dense parameters differ after synchronous training; please report this.")
    servers = [v.model_sum for name, v in inspected.items() if name.startswith("S")]
    replicas = {v.model_sum for name, v in inspected.items() if name.startswith("W") and v.model_sum}
    parts = [*servers, *replicas]
    model = f"{sum(int(part) for part in parts) % MODULUS:016x}" if all(parts) else None
    return {**own, "model": model}


class RecoveryTimes:
    """Times of all failures of a run's processes and of their recoveries.

    `log` gets each failure with its number, once: when its process is useful again, or at the end."""

    def __init__(
        self, now: Callable[[], float], log: Callable[[int, FailureRecord], None] = lambda *_: None,
        state: FailureRecords | None = None,
    ) -> None:  # fmt: skip
        self.now, self._log = now, log
        self.state = FailureRecords() if state is None else state
        self._logged: set[int] = set()
        self._began = now()
        self._last_signs: dict[str, float] = {}  # last sign of life of each process

    @property
    def failures(self) -> list[FailureRecord]:
        """Records of all failures of workers, servers and coordinators so far, in the order of detection."""
        return self.state.failed

    def record_sign_of_life(self, process: str) -> None:
        """Record the time of a message from a process as its last sign of life."""
        self._last_signs[process] = self.now()

    def record_injection(self, process: str, kind: str) -> None:
        """Record that the fault plan now injects a failure of kind `kind` into a process."""
        self.state.injected[process] = (kind, self.now())

    def record_detection(self, process: str, failure: str) -> None:
        """Record that a failure was detected; `failure` is its kind if no fault plan caused it."""
        last_sign = self._last_signs.pop(process, self._began)  # a process never heard of was silent from the start
        kind, at = self.state.injected.pop(process, (failure, last_sign))
        if kind == "hang" and at < last_sign:  # it survived the injected hang, or has stopped only now
            kind, at = failure, last_sign
        self.failures.append(FailureRecord(process, kind, at, self.now()))

    def record_takeover(self, failure: str, detected: float, last_sign: float) -> None:
        """Record the failure of the predecessor, whose last sign of life was at `last_sign`, and this takeover."""
        kind, at = self.state.injected.pop("C", (failure, last_sign))
        self.failures.append(FailureRecord("C", kind, min(at, detected), detected, self.now()))

    def record_ready(self, process: str) -> None:
        """Record that a failed process's successor is ready."""
        failed = self.last(process)
        if failed is not None and failed.loaded is None:
            failed.loaded = self.now()

    def record_useful_work(self, *processes: str) -> None:
        """Record useful work of processes; a successor's recovery is complete at its first useful work."""
        for failed in map(self.last, processes):
            if failed is not None and failed.loaded is not None and failed.useful is None:
                failed.useful = self.now()
                self._log_recovery(failed)

    def _log_recovery(self, failed: FailureRecord) -> None:
        number = next(number for number, failure in enumerate(self.failures) if failure is failed)
        if number not in self._logged:
            self._logged.add(number)
            self._log(number, failed)

    def end(self) -> None:
        """Log at the end of the run the failures from which processes have not recovered."""
        for failed in self.failures:
            if failed.useful is None:
                self._log_recovery(failed)

    def restore_from_log(self, logged: Iterable[Mapping[str, Any]]) -> None:
        """Restore recovery times from a failed coordinator's log, which may be newer than its saved state."""
        for record in logged:
            self._logged.add(record["number"])
            failed = self.failures[record["number"]]
            if failed.useful is None and record["useful_s"] is not None:
                failed.useful = failed.at + record["useful_s"]

    def add_lost_dense(self, samples: int) -> None:
        """Add samples, whose dense gradients were lost with a worker, to the record of the last worker failure."""
        failed = next((failed for failed in reversed(self.failures) if failed.process.startswith("W")), None)
        if failed is not None:
            failed.samples_undone += samples

    def add_loss(self, process: str, loss: ServerFailureLoss) -> None:
        """Add the work lost in a process's last failure to the record of that failure."""
        failed = self.last(process)
        if failed is not None:
            failed.add(loss)

    def last(self, process: str) -> FailureRecord | None:
        """Last failure of a process; None if there was none."""
        return next((failed for failed in reversed(self.failures) if failed.process == process), None)

    def deaths_without_work(self, process: str) -> int:
        """Number of times that a process has died in a row, without useful work of a successor in between.

        An injected failure or a hang ends the row."""
        own = (failed for failed in reversed(self.failures) if failed.process == process)
        return sum(1 for _ in takewhile(lambda failed: failed.failure == "death" and failed.useful is None, own))

    def to_result(self, began: float) -> list[dict[str, Any]]:
        """Failures as entries of result.json's `recovery`, with times since the run `began`."""
        return [{**failed.to_result(), "at_s": failed.at - began} for failed in self.failures]

"""State that must outlive a coordinator: one tree of dataclasses, encoded and written here and nowhere else.

coordinator.json in the run directory has the whole RunState as of the last moment when nothing was in flight; it is
written atomically between two phases. A note in the event log has the RunState's branch `ongoing`, which changes within
a phase but is not in the records of steps; a checkpoint's manifest has a JobPosition. Each part of the coordinator
works on its own branch in place, so nothing is copied into it or out of it. times.json has the processes' times by
activity, for a failover and for a resumed run: these times change with every gradient, and no decision depends on them.
All this costs a small file per phase, another one per second, and a write for each record of the log that another node
acts upon (2 us).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gbactl.atomic_files import replacing
from gbactl.checkpoint.failure_cost_counters import PlsCounter, ServerFailureLoss, UnsavedWork, UpdateCounter
from gbactl.checkpoint.folder import CheckpointChain
from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import InfoRecord, Record
from gbactl.coordinator.statistics import ACTIVITIES, ActivityTimes, SavedStatistics
from gbactl.errors import CheckpointError, EventLogError
from gbactl.policies.policy import Ledger, Phase, Policy, policy_class
from gbactl.switching.switch_texts import switched
from gbactl.wire.messages import ExchangeTotals, Granted, plain_number

T = TypeVar("T")
TRAIN, EVALUATE, OVER = "train", "evaluate", "over"


@dataclass
class Incarnations:
    """Incarnation numbers of a run's nodes: how often each was replaced.

    `failed_workers`: those without a successor, in the order in which they were detected; `workers`, `servers`: the
    last known incarnations of those that have failed before."""

    failed_workers: list[int] = field(default_factory=list)
    workers: dict[int, int] = field(default_factory=dict)
    servers: dict[int, int] = field(default_factory=dict)


@dataclass
class FailureRecord:
    """Failure of one process. Times by the run's clock; None while that point of the recovery is not reached.

    `at`: when it was injected, else the last sign of life."""

    process: str
    failure: str
    at: float
    detected: float
    loaded: float | None = None
    useful: float | None = None
    samples_undone: int = 0
    pls: float = 0.0
    row_updates_undone: int = 0
    samples_rolled_back: int = 0

    def add(self, loss: ServerFailureLoss) -> None:
        """Add lost work to the record of the failure."""
        self.samples_undone += loss.samples
        self.pls += loss.pls
        self.row_updates_undone += loss.updates

    def to_log(self) -> dict[str, Any]:
        """Fields for the event log: seconds since the failure was injected, else since the last sign of life."""
        times = {"detected_s": self.detected, "loaded_s": self.loaded, "useful_s": self.useful}
        since = {name: None if time is None else time - self.at for name, time in times.items()}
        return {"process": self.process, "failure": self.failure, **since}

    def to_result(self) -> dict[str, Any]:
        """Fields for result.json: times of the recovery, and the work that the failure undid."""
        undone = ("samples_undone", "pls", "row_updates_undone", "samples_rolled_back")
        return {**self.to_log(), **{name: getattr(self, name) for name in undone}}


@dataclass
class FailureRecords:
    """Failures of a run so far.

    `injected`: injected failures that are not detected yet, and their times; `last_injection`: step and seconds of
    training of the fault plan's last one."""

    failed: list[FailureRecord] = field(default_factory=list)
    injected: dict[str, tuple[str, float]] = field(default_factory=dict)
    last_injection: tuple[int, float] = (-1, -1.0)


@dataclass
class EarlyStopping:
    """Early stopping after `patience` rounds without a better score; with patience 0 training never stops early."""

    patience: int
    best: float = float("-inf")
    best_round: int = -1
    seen: int = 0

    def update(self, score: float) -> bool:
        """Record a round's score. Returns whether to stop."""
        if score > self.best:
            self.best, self.best_round = score, self.seen
        self.seen += 1
        return self.stops

    @property
    def stops(self) -> bool:
        """Whether training stops."""
        return 0 < self.patience <= self.seen - 1 - self.best_round


@dataclass
class JobPosition:
    """Position of a job in its data and schedule, for checkpoints and the journal.

    What was handed out and not applied is `unread`: it is handed out once more, and counts once. `switches`: entries of
    the schedule that were taken; `mode`: the keys of the current mode; `inherited`: how many of the phases are those of
    the run that this one began from."""

    step: int
    round: int
    label: str
    seconds: float
    ended: bool
    unread: list[tuple[int, int]] | None
    ledger: Ledger
    mode: dict[str, Any]
    switches: int
    stopping: EarlyStopping | None
    results: list[dict[str, Any]]
    modes: str
    phases: list[dict[str, Any]]
    curve: list[dict[str, Any]]
    statistics: SavedStatistics
    inherited: int = 0

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> JobPosition:
        """Decode the position in a checkpoint's manifest. Raises CheckpointError if it is invalid."""
        try:
            return decoded(values, cls)
        except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"A checkpoint's position cannot be used ({error!r}).") from error

    @property
    def dense(self) -> str:
        """Description of the saved dense parameters, for trainers the mean of the replicas or the EASGD centre."""
        mode = policy_class(str(self.mode["name"]), self.mode.get("target"))
        return f"the {kind_of_dense(mode)}" if mode.home == "replicas" else "the dense parameters"

    def stopped_early(self, patience: int) -> bool:
        """Whether early stopping ended the training at this position, and does so with `patience` too."""
        return self.ended and self.stopping is not None and replace(self.stopping, patience=patience).stops

    def modes_with(self, mode: str) -> str:
        """Mode name of a run that continues from this position in `mode`: sync>gba@day2, or @step60 within a day."""
        if mode == self.mode["name"]:
            return self.modes
        between = self.unread is None and self.round > 0
        point = f"{self.label.partition(' ')[0]}{self.round}" if between else f"step{self.step}"
        return switched(self.modes, mode, point)


def kind_of_dense(mode: type[Policy]) -> str:
    """Kind of the dense parameters that a phase with replicas leaves."""
    return "mean of the replicas" if mode.collective else "centre"


def config_at(chain: CheckpointChain) -> dict[str, Any]:
    """Configuration for resuming from a checkpoint: the mode at that point, with the switches that remain."""
    config, position = copy.deepcopy(chain.last.config), JobPosition.read(chain.last.position)
    mode = dict(position.mode)
    config["cluster"]["workers"] = mode.pop("workers", config["cluster"]["workers"])
    config["mode"], switch = mode, config["switch"]
    for key in ("schedule", "modes"):
        switch[key] = switch[key][position.switches :]
    config["run_dir"] = None
    return config


@dataclass
class CheckpointState:
    """Counts of the checkpoints made so far: complete and failed ones, their bytes and seconds.

    `tick`: number of the next interval."""

    done: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    tick: int = 1
    unsaved: UnsavedWork = field(default_factory=lambda: UnsavedWork(PlsCounter(1, 0), UpdateCounter(0), [(-1, 0)]))


@dataclass
class DensePlacementState:
    """Placement of the dense parameters, and the migration in progress.

    `to`, `source`, `request`: target, source and number of that migration; `home`: the holder while there is none."""

    request: int = 0
    home: str = ""
    to: str = ""
    source: str = ""


@dataclass
class LostGradientState:
    """Dense gradients lost with failed workers, by step.

    `phases`: the last one that trained and the one before; `lost`: step -> its lost dense gradients."""

    phases: list[Phase] = field(default_factory=list)
    lost: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class PhaseState:
    """State that changes within a phase and that the records of steps do not contain.

    `unequal`: the workers' dense parameters may differ in their last bits; `optimizer_reset_at`: the step at which a
    switch last reset the optimizer's state; `acted`: faults of the plan that were active on workers."""

    lives: Incarnations = field(default_factory=Incarnations)
    failures: FailureRecords = field(default_factory=FailureRecords)
    checkpoints: CheckpointState = field(default_factory=CheckpointState)
    placement: DensePlacementState = field(default_factory=DensePlacementState)
    sums: LostGradientState = field(default_factory=LostGradientState)
    unequal: bool = False
    optimizer_reset_at: int | None = None
    acted: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class LastSwitch:
    """Last mode switch until it is reported: its `report`, and `gradient`, the time of the last gradient before it."""

    report: dict[str, Any] | None = None
    gradient: float | None = None


@dataclass
class ReplicaState:
    """Statistics of all phases with replicas, and settings of the last one."""

    phases: list[ExchangeTotals] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Standstill:
    """State of the run's flow at a moment when no batch is in flight.

    The current round enters `stage`, with the `rest` of its samples to train, at its beginning or not (`round_begun`).
    `offset`: bytes of the event log; `phase`: number of the last one; `at`, `began`: this moment and the start of the
    run, in seconds of the machine's clock; `empty_grants`: those of the training phase before, with the workers that
    they were sent to."""

    stage: str = TRAIN
    rest: list[tuple[int, int]] = field(default_factory=list)
    round_begun: bool = False
    offset: int = 0
    phase: int = 0
    at: float = 0.0
    began: float = 0.0
    position: JobPosition | None = None
    empty_grants: list[tuple[int, Granted]] = field(default_factory=list)


@dataclass
class RunState:
    """State of a run: the root of the tree that a coordinator saves."""

    standstill: Standstill = field(default_factory=Standstill)
    switch: LastSwitch = field(default_factory=LastSwitch)
    replicas: ReplicaState = field(default_factory=ReplicaState)
    ongoing: PhaseState = field(default_factory=PhaseState)


def encoded(branch: Any) -> dict[str, Any]:
    """Encode a branch of the state as plain containers with string keys."""
    values: dict[str, Any] = msgspec.to_builtins(branch, str_keys=True, enc_hook=plain_number)
    return values


def decoded(values: Mapping[str, Any], kind: type[T]) -> T:
    """Decode a branch of the state from plain containers. Raises msgspec.ValidationError."""
    return msgspec.convert(values, kind, str_keys=True)


JOURNAL_FILE, TIMES_FILE = "coordinator.json", "times.json"


def writes_journal(cfg: RunConfig) -> bool:
    """Whether a run writes a journal and so survives a coordinator failure; in virtual time it needs none."""
    return cfg.engine.real and cfg.cluster.lost_coordinator == "replace"


@dataclass
class JournalState:
    """State that a failed coordinator left: its last saved state with later journal entries applied, and the event log.

    `end`: offset of the log's last complete record; `term` of the successor; `detected_at`: when the failure
    was detected, in seconds of the machine's clock; `failure`: its kind; `last_sign`: the last sign of life."""

    state: RunState
    records: list[Record]
    end: int
    term: int = 1
    detected_at: float = 0.0
    failure: str = "death"
    last_sign: float = 0.0

    @classmethod
    def of(
        cls, run_dir: Path, term: int, detected_at: float, failure: str = "death", last_sign: float | None = None
    ) -> JournalState:
        """Read a failed coordinator's state from the run directory. Raises EventLogError if it cannot be used."""
        try:
            state = decoded(json.loads((run_dir / JOURNAL_FILE).read_text()), RunState)
        except (OSError, ValueError, TypeError, msgspec.ValidationError) as error:
            raise EventLogError(f"{run_dir / JOURNAL_FILE} cannot be used ({error!r}).") from error
        records, end = event_log.tail(run_dir / "events.log", state.standstill.offset)
        for record in records:
            if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                state.ongoing = decoded(record.fields, PhaseState)
        return cls(state, records, end, term, detected_at, failure, detected_at if last_sign is None else last_sign)


def write_state(run_dir: Path, state: RunState) -> None:
    """Replace the state file of a run."""
    with replacing(run_dir / JOURNAL_FILE) as partial:
        partial.write_text(json.dumps(encoded(state)))


def write_times(run_dir: Path, times: ActivityTimes) -> None:
    """Replace times.json, the seconds of each process by activity; ignore an OSError."""
    with suppress(OSError), replacing(run_dir / TIMES_FILE) as partial:
        partial.write_bytes(msgspec.json.encode(times))


def read_times(run_dir: Path) -> ActivityTimes | None:
    """Read times.json; None if it is missing or has other activities."""
    try:
        times = msgspec.json.decode((run_dir / TIMES_FILE).read_bytes(), type=ActivityTimes)
    except (OSError, msgspec.DecodeError):
        return None
    return times if len(times.reported) == len(ACTIVITIES) else None

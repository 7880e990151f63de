"""Configuration of a whole run, the values derived from it, its rounds, and its conversion to plain containers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gbactl.checked_dataclasses import Processes, Seed, build, expect, flatten
from gbactl.checkpoint.costs_and_interval import CHOOSING, CheckpointConfig
from gbactl.conf_catalogue import entries_of
from gbactl.config.engine_interface import EngineInterface, engine_named
from gbactl.config.groups import (
    NEW_KEYS,
    WITH_OPTIONS,
    ClusterConfig,
    CollectiveConfig,
    CostConfig,
    ModeConfig,
    OptimConfig,
    SwitchConfig,
    TrackingConfig,
    TrainConfig,
    TransportConfig,
    common_keys,
    own_keys,
)
from gbactl.errors import ConfigError
from gbactl.faults.fault_plan import FaultPlan, FaultsConfig
from gbactl.models import ModelConfig
from gbactl.policies.policy import PolicyOptions
from gbactl.store.optimizer_settings import MOMENTS
from gbactl.switching.auto_controller import GBA, MODES, SYNC
from gbactl.switching.switch_schedule import ScheduleEntry, entries, name

if TYPE_CHECKING:
    from gbactl.data.dataset import Dataset

CYCLE_MS, CYCLE_BATCH = 3.0, 1024
AUTO_KEYS = ("changes", "every", "window", "margin", "hysteresis", "minimum_stay")
ON_HOSTS = "with a cluster= of several hosts"
REMOTE_KEYS = ("hosts", "placement", "ssh", "python", "forward")
REAL_KEYS = ("transport", "bind", "threads", "pin")


@contextlib.contextmanager
def error_prefix(where: str) -> Iterator[None]:
    """Prefix configuration errors raised inside this context with `where`, such as "switch.schedule entry 2"."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


@dataclass
class RunConfig:
    """Configuration of a whole run.

    `data` is an open dictionary: each reader validates its own options."""

    mode: ModeConfig = field(default_factory=ModeConfig)
    data: dict[str, Any] = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    collective: CollectiveConfig = field(default_factory=CollectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    seed: Seed = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    run_dir: str | None = None
    resume: str | None = None

    @property
    def local_batch(self) -> int:
        """Number of samples in one worker's gradient (default: the global batch / workers)."""
        if self.mode.local_batch is not None:
            return self.mode.local_batch
        return self.train.global_batch // max(1, self.cluster.workers)

    @property
    def cycle_time_ms(self) -> float:
        """Interval in which Horovod's thread looks for tensors; by default it grows with the local batch.

        A look costs every worker about .9 ms of a core, whether there is work or not, and a sum waits for half a cycle:
        3 ms are best for local batches of 512, 12 ms for those of 4,096 (experiments/performance)."""
        if self.collective.cycle_time_ms is not None:
            return self.collective.cycle_time_ms
        return CYCLE_MS * max(1.0, min(phase.local_batch for phase in self.possible) / CYCLE_BATCH)

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients in one global batch."""
        return self.train.global_batch // self.local_batch

    @functools.cached_property
    def entries(self) -> list[ScheduleEntry]:
        """Entries of the switch schedule. Raises ConfigError with the number of an invalid entry."""
        return entries(self.switch.schedule)

    @functools.cached_property
    def phases(self) -> list[RunConfig]:
        """Configurations before and after each scheduled switch: this one, then one per entry of the schedule."""
        files = self.switch.modes if self.entries and self.switch.modes else [{} for _ in self.entries]
        given = [{**file, "name": entry.to, **entry.changes} for entry, file in zip(self.entries, files, strict=True)]
        return [self, *(self._named(number, values) for number, values in enumerate(given))]

    def _named(self, number: int, values: dict[str, Any]) -> RunConfig:
        with error_prefix(name(number)):
            return self.in_mode(values)

    @functools.cached_property
    def candidates(self) -> dict[str, RunConfig]:
        """Configurations between which switch=auto chooses, by mode; {} without switch=auto."""
        own = self.mode.name
        if self.switch.name != "auto" or own not in MODES:
            return {}
        other = GBA if own == SYNC else SYNC
        file = self.switch.modes[0] if self.switch.modes else {}
        changes = {"sparse_divisor": self.mode.sparse_divisor, **(self.switch.changes or {})}
        with error_prefix("switch=auto"):
            return {own: self, other: self.in_mode({**file, "name": other, **changes})}

    @property
    def possible(self) -> list[RunConfig]:
        """Configurations that the run may switch to or starts with, as far as they are known at the start."""
        return [*self.phases, *(phase for phase in self.candidates.values() if phase is not self)]

    def in_mode(self, values: dict[str, Any]) -> RunConfig:
        """Return a copy of this configuration in another mode. Raises ConfigError for a key that the mode lacks.

        `values`: the mode's keys and, under `workers`, its number of workers."""
        workers = values.get("workers", self.cluster.workers)
        expect("workers", workers, Processes)
        own = {key: value for key, value in values.items() if key != "workers"}
        mode = build(ModeConfig, own_keys(ModeConfig, own), "mode.")
        cluster = dataclasses.replace(self.cluster, workers=workers)
        return dataclasses.replace(self, mode=mode, cluster=cluster, switch=SwitchConfig())

    @property
    def processes(self) -> int:
        """Number of worker processes to start: the largest number that any phase needs."""
        return max(phase.cluster.workers for phase in self.possible)

    @property
    def home(self) -> str:
        """Placement of the dense parameters in the present mode: "servers", "workers" or "replicas"."""
        return self.mode.policy.home

    @property
    def collective_now(self) -> bool:
        """Whether the present mode has an all-reduce among all workers."""
        return self.mode.policy.collective

    @property
    def engine(self) -> EngineInterface:
        """Engine of the run. Raises ConfigError for an unknown cluster."""
        return engine_named(self.cluster.name)

    @property
    def server_returns(self) -> bool:
        """Whether a failed server is replaced from its checkpoint: real servers of a run with checkpoints."""
        return self.checkpoint.name != "none" and self.engine.real

    @property
    def collects(self) -> bool:
        """Whether the run's workers join an all-reduce at the start, as any of the run's possible modes needs one."""
        return self.switch.prepare == "all" or any(phase.collective_now for phase in self.possible)

    @property
    def homes(self) -> set[str]:
        """Placements of the dense parameters that the run may use; "servers" is always among them."""
        more = {"workers"} if self.switch.prepare == "all" else set()
        return {"servers", *more, *(phase.home for phase in self.possible)}

    def policy_options(self) -> PolicyOptions:
        """Build the options of the mode's policy. Raises ConfigError for an unknown key or an invalid value."""
        common = common_keys(ModeConfig) if self.mode.target else ()  # typed beside those of a target
        return build(self.mode.policy.Options, self.mode.options, "mode.", f"mode={self.mode.name}", common)

    def fault_plan(self) -> FaultPlan:
        """Build the fault plan. Raises ConfigError for an invalid plan."""
        return FaultPlan(self.faults, self.seed, self.processes, self.cluster.servers)

    @property
    def row_staleness(self) -> Literal["token", "row"]:
        """Staleness that weights rows: "row" (each row's own) if any phase uses it, else "token"."""
        chosen = {getattr(phase.policy_options(), "row_staleness", "token") for phase in self.possible}
        return "row" if "row" in chosen else "token"

    @property
    def pinned(self) -> bool:
        """Whether each worker is pinned to one core of this host."""
        return self.engine.here and self.cluster.pin == "auto"

    @property
    def threads(self) -> int:
        """Number of OpenMP threads of one worker."""
        return self.engine.threads(self.cluster, self.processes * self.compute_threads)

    @property
    def prefetched_batches(self) -> int:
        """Number of batches that a worker asks for in advance, the largest of any phase."""
        return max(phase.mode.prefetched_batches for phase in self.possible)

    @property
    def compute_threads(self) -> int:
        """Number of compute threads (Hogwild) of a worker, the largest of any phase."""
        return max(1, *(int(phase.mode.options.get("hogwild_threads", 1)) for phase in self.possible))


def to_dict(cfg: RunConfig) -> dict[str, Any]:
    """Convert a run's configuration to plain containers, for the resolved file and MLflow's params."""
    values = dataclasses.asdict(cfg)
    for group in WITH_OPTIONS:
        values[group].update(values[group].pop("options"))
    for group, keys in NEW_KEYS.items():
        values[group] = {key: value for key, value in values[group].items() if key not in keys or value is not None}
    return values


def mode_values(cfg: RunConfig) -> dict[str, Any]:
    """Return all keys of the mode as in conf/mode/, together with its number of workers."""
    return {**to_dict(cfg)["mode"], "workers": cfg.cluster.workers}


@dataclass(frozen=True)
class Round:
    """Round of a run, a day or an epoch: train on one split, then evaluate on others.

    Early stopping uses the score on `judged_by`."""

    split: int
    epoch: int
    label: str
    evaluate: tuple[int, ...]
    judged_by: int


def rounds(dataset: Dataset, train: TrainConfig) -> list[Round]:
    """List the rounds of a run. Raises ConfigError if a round would have no data for its evaluation."""
    if dataset.kind == "splits":
        return [Round(0, epoch, f"epoch {epoch}", (1, 2), 1) for epoch in range(train.epochs)]
    if train.epochs != 1:
        raise ConfigError("train.epochs is for data with a validation set; days are passed once: type train.epochs=1.")
    days = len(dataset.splits) - 1
    if days < 1:
        problem = "The data have one day, and a model is evaluated on the day after each training day"
        raise ConfigError(f"{problem}; give two days or more, or type data.days=2.")
    if train.days is not None:
        if not 1 <= train.days <= days:
            raise ConfigError(f"train.days={train.days} is not possible with {days + 1} days; type 1 to {days}.")
        days = train.days
    judged_by = [len(dataset.splits) - 1 if dataset.kind == "parts" else day + 1 for day in range(days)]
    return [Round(day, 0, f"day {day}", (judge,), judge) for day, judge in enumerate(judged_by)]


def samples_of(dataset: Dataset, train: TrainConfig) -> int:
    """Count the training samples in all rounds of a run."""
    return sum(dataset.splits[part.split].rows for part in rounds(dataset, train))


class Condition(NamedTuple):
    """Condition under which the `keys` of a group (all if empty) have an effect; `when`: the condition in words."""

    group: str
    keys: tuple[str, ...]
    when: str
    holds: Callable[[RunConfig], bool]

    def covers(self, key: str) -> bool:
        """Whether this condition applies to a dotted key; none applies to the key `name` of a group."""
        group, _, rest = key.partition(".")
        return group == self.group and rest != "name" and (not self.keys or rest in self.keys)


def _with_optimizer(moment: str, *keys: str) -> Condition:
    """Condition of keys that only act with an optimizer that has this moment."""
    having = [name for name, moments in MOMENTS.items() if moment in moments]
    return Condition("optim", keys, f"with optim= {' | '.join(having)}", lambda cfg: cfg.optim.name in having)


def _divides_by_contributors(cfg: RunConfig) -> bool:
    """Whether any mode that the run may be in has the key mode.sparse_divisor."""
    having = entries_of("mode.sparse_divisor")
    return any(phase.mode.name in having or phase.mode.target is not None for phase in cfg.possible)


def _decays_exponentially(cfg: RunConfig) -> bool:
    return getattr(cfg.policy_options(), "decay", "exp") == "exp"


def _normalises_batches(cfg: RunConfig) -> bool:
    """Whether the model may have batch normalisation, which the activation `dice` contains too."""
    return cfg.model.batch_norm or cfg.model.target is not None or cfg.model.options.get("activation") == "dice"


CONDITIONS = (
    Condition("mode", ("sparse_divisor",), "with a mode that has it", _divides_by_contributors),
    Condition("mode", ("decay_rate",), "with mode.decay=exp", _decays_exponentially),
    Condition("data", ("list_length",), "with data.lists above 0", lambda cfg: bool(cfg.data.get("lists"))),
    Condition("model", ("batch_norm_momentum",), "with batch normalisation, or activation dice", _normalises_batches),
    _with_optimizer("first", "beta1", "beta2"),
    _with_optimizer("sum", "initial_accumulator"),
    Condition("optim", ("eps",), "with another optim= than sgd", lambda cfg: bool(MOMENTS[cfg.optim.name])),
    Condition("optim", ("row_l2",), "with optim.row_weight_decay above 0", lambda cfg: cfg.optim.row_weight_decay > 0),
    Condition(
        "optim", ("schedule.warmup",), "with another optim.schedule.name than constant",
        lambda cfg: cfg.optim.schedule.name != "constant",
    ),
    Condition(
        "optim", ("schedule.total", "schedule.floor"), "with optim.schedule.name=cosine",
        lambda cfg: cfg.optim.schedule.name == "cosine",
    ),
    Condition(
        "train", ("epochs",), "with data that have a validation file",
        lambda cfg: "validation" in cfg.data or cfg.data.get("target") is not None,
    ),
    Condition(
        "checkpoint", ("share", "large_tables", "base_every"), f"with checkpoint= {' | '.join(CHOOSING)}",
        lambda cfg: cfg.checkpoint.name in CHOOSING,
    ),
    Condition("checkpoint", (), "with another checkpoint= than none", lambda cfg: cfg.checkpoint.name != "none"),
    Condition("cost", (), "with cluster=virtual", lambda cfg: not cfg.engine.real),
    Condition("cluster", REMOTE_KEYS, ON_HOSTS, lambda cfg: not cfg.engine.one_host),
    Condition("cluster", REAL_KEYS, "on real processes", lambda cfg: cfg.engine.real),
    Condition("transport", ("encrypt",), "on real processes", lambda cfg: cfg.engine.real),
    Condition(
        "collective", ("cycle_time_ms",), "with collective=horovod", lambda cfg: cfg.collective.name == "horovod"
    ),
    Condition("collective", (), "with an all-reduce: mode=sync, or a mean of replicas", lambda cfg: cfg.collects),
    Condition("faults", ("seed",), "with faults", lambda cfg: bool(cfg.faults.plans)),
    Condition("switch", AUTO_KEYS, "with switch=auto", lambda cfg: cfg.switch.name == "auto"),
)  # fmt: skip


def when_effective(key: str) -> str:
    """Describe when a dotted key has an effect; "in every run" if no condition is known."""
    return next((each.when for each in CONDITIONS if each.covers(key)), "in every run")


def ineffective_keys(cfg: RunConfig) -> set[str]:
    """Return the dotted names of the keys that have no effect in a run. A group's key `name` always has an effect."""
    failed = [each for each in CONDITIONS if not each.holds(cfg)]
    return {key for key in flatten(to_dict(cfg)) if any(each.covers(key) for each in failed)}


def effective_keys(cfg: RunConfig) -> dict[str, Any]:
    """Return a run's configuration as `to_dict` does, without the keys that have no effect.

    They are neither printed nor logged."""
    found = to_dict(cfg)
    for key in ineffective_keys(cfg):
        *groups, last = key.split(".")
        del functools.reduce(dict.__getitem__, groups, found)[last]
    return found

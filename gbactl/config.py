"""The typed schema of a run's configuration, and the rules between its fields.

Only the launcher composes and checks; every other process reads the resolved result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from gbactl.errors import ConfigError
from gbactl.faults.plan import FaultPlan
from gbactl.policies.base import PolicyOptions, policy_class
from gbactl.switching.schedule import Entry, entries, name
from gbactl.typed import matches, shown
from gbactl.virtual.spec import CostConfig

ROW_L2_SCOPES = ("touched", "all")


@dataclass
class ModeConfig:
    """How gradients meet parameters. `options` are the mode's own keys; in files they stand beside the others."""

    name: str = "sync"
    local_batch: int | None = None
    prefetch: int = 1
    sparse_divisor: str = "global"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ClusterConfig:
    """Processes, where they listen and how they talk."""

    name: str = "local"
    workers: int = 4
    servers: int = 2
    transport: str = "shm"
    bind: str = "127.0.0.1"
    threads: int | None = None
    pin: str = "auto"
    lost_worker: str = "end"
    start_timeout: float = 60.0


@dataclass
class CollectiveConfig:
    """The all-reduce behind `sync`."""

    name: str = "horovod"
    cycle_time_ms: float = 3.0
    buckets: int = 2


@dataclass
class ModelConfig:
    """A click model over looked-up rows."""

    name: str = "deepfm"
    dim: int = 16
    hidden: list[int] = field(default_factory=lambda: [400, 400, 400])
    dropout: float = 0.0
    batch_norm: bool = False
    batch_norm_momentum: float = 0.1
    init_scale: float = 0.01


@dataclass
class ScheduleConfig:
    """Learning rate as a function of progress p (global batches finished), never of k."""

    name: str = "constant"
    warmup: float = 0.0
    total: float = 0.0
    floor: float = 0.0


@dataclass
class OptimConfig:
    """One optimizer for dense block and rows; `row_lr` overrides the rate of rows."""

    name: str = "adam"
    lr: float = 1e-3
    row_lr: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    row_weight_decay: float = 0.0
    row_l2: str = "touched"
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass
class TrainConfig:
    """What is trained on, for how long, and when it is judged."""

    global_batch: int = 2048
    epochs: int = 1
    patience: int = 0
    shuffle: bool = False
    eval_batch: int = 2048
    days: int | None = None
    checksum_every: int = 500
    norms_every: int = 0
    max_eval_samples: int | None = None


@dataclass
class TrackingConfig:
    """MLflow: where, and under which experiment."""

    uri: str | None = None
    experiment: str = "gbactl"
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    enabled: bool = True


@dataclass
class FaultsConfig:
    """Faults on purpose: a list of plans (see faults/spec.py), drawn with `seed` (null: the run's)."""

    seed: int | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class SwitchConfig:
    """When the run goes on in another mode (see switching/schedule.py); `modes` are their resolved files.

    `prepare`: the modes that it is started for beside those, servers (all that keep the dense part there) or all.
    """

    schedule: list[dict[str, Any]] = field(default_factory=list)
    modes: list[dict[str, Any]] = field(default_factory=list)
    drain_seconds: float = 30.0
    prepare: str = "servers"
    checksum: str = "auto"


@dataclass
class RunConfig:
    """A whole run. `data` stays open: each reader validates its own options."""

    mode: ModeConfig = field(default_factory=ModeConfig)
    data: dict[str, Any] = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    collective: CollectiveConfig = field(default_factory=CollectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    seed: int = 0
    precision: str = "fp32"
    run_dir: str | None = None

    @property
    def local_batch(self) -> int:
        """B_a: samples in one worker's gradient (default G / workers)."""
        if self.mode.local_batch is not None:
            return self.mode.local_batch
        return self.train.global_batch // max(1, self.cluster.workers)

    @property
    def gradients_per_step(self) -> int:
        """M = G / B_a."""
        return self.train.global_batch // self.local_batch

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The switch schedule. Raises ConfigError that names the entry that is wrong."""
        return entries(self.switch.schedule)

    @functools.cached_property
    def phases(self) -> list[RunConfig]:
        """This configuration, then one for every entry of the switch schedule, in the entry's mode."""
        files = self.switch.modes or [{} for _ in self.entries]
        given = [{**file, "name": entry.to, **entry.changes} for entry, file in zip(self.entries, files, strict=True)]
        return [self, *(self._named(number, values) for number, values in enumerate(given))]

    def _named(self, number: int, values: dict[str, Any]) -> RunConfig:
        with naming(number):
            return self.in_mode(values)

    def in_mode(self, values: dict[str, Any]) -> RunConfig:
        """This configuration in another mode, whose keys `values` are, and `workers`, how many train then.

        Raises ConfigError for a key that the mode does not have."""
        workers = values.get("workers", self.cluster.workers)
        _require(type(workers) is int and workers >= 1, f"workers={workers} is no number of workers; type 1 or more.")
        own = {key: value for key, value in values.items() if key != "workers"}
        mode: ModeConfig = _build(ModeConfig, _own_keys(own), "mode.")
        cluster = dataclasses.replace(self.cluster, workers=workers)
        return dataclasses.replace(self, mode=mode, cluster=cluster, switch=SwitchConfig())

    @property
    def processes(self) -> int:
        """Workers that are started: as many as the phase with the most of them has."""
        return max(phase.cluster.workers for phase in self.phases)

    @property
    def home(self) -> str:
        """Who holds the dense parameters in this mode: "servers" or "workers"."""
        return policy_class(self.mode.name).dense_on

    @property
    def homes(self) -> set[str]:
        """Who may hold the dense parameters at any time: "servers", where they can always be put, and "workers"."""
        more = {"workers"} if self.switch.prepare == "all" else set()
        return {"servers", *more, *(phase.home for phase in self.phases)}

    def policy_options(self) -> PolicyOptions:
        """The options of the mode's policy. Raises ConfigError for a key it does not have or a bad value."""
        kind = policy_class(self.mode.name).Options
        known = [f.name for f in dataclasses.fields(kind)]
        strange = sorted(set(self.mode.options) - set(known))
        own = f"its own keys are: {', '.join(known)}" if known else "it has none of its own"
        _require(not strange, f"mode={self.mode.name} has no key {', '.join(strange)}; {own}.")
        options: PolicyOptions = _build(kind, self.mode.options, "mode.")
        options.check()
        return options

    @property
    def threads(self) -> int:
        """OpenMP threads of one worker."""
        import os

        if self.cluster.name == "virtual":
            return 1
        return self.cluster.threads or max(1, (os.cpu_count() or 1) // self.processes)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _choice(key: str, value: str, options: tuple[str, ...]) -> None:
    _require(value in options, f"{key}={value} is not known; type {key}= one of: {', '.join(options)}.")


def _check_batches(cfg: RunConfig) -> None:
    total, workers, local = cfg.train.global_batch, cfg.cluster.workers, cfg.mode.local_batch
    _require(total > 0, "train.global_batch must be a positive number of samples.")
    if local is None:
        _require(
            total % workers == 0,
            f"train.global_batch={total} cannot be shared by cluster.workers={workers}; type "
            f"train.global_batch={-(-total // workers) * workers} or set mode.local_batch.",
        )
        return
    _require(
        local > 0 and total % local == 0,
        f"train.global_batch={total} is not a multiple of mode.local_batch={local}; type "
        f"train.global_batch={max(1, -(-total // max(1, local))) * max(1, local)}.",
    )
    if cfg.mode.name == "sync":
        _require(
            total == local * workers,
            f"mode=sync needs train.global_batch = mode.local_batch x cluster.workers = {local * workers}, "
            f"not {total}; leave mode.local_batch out or type train.global_batch={local * workers}.",
        )


def _check_faults(cfg: RunConfig) -> None:
    plan = FaultPlan.of(cfg)
    _require(
        not plan.hogs or cfg.cluster.name == "local",
        f"A fault of kind hog takes a real CPU, and cluster={cfg.cluster.name} has none; type cluster=local, or "
        "faults.plans with another kind.",
    )


@contextlib.contextmanager
def naming(number: int) -> Iterator[None]:
    """An error within is that of an entry of the switch schedule (0: the first), and is told with its name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{name(number)}: {error}") from error


def check_switch(cfg: RunConfig, to: RunConfig) -> None:
    """Raise ConfigError unless a run of `cfg` can go on as `to`."""
    _check_mode(to)
    _require(
        to.mode.sparse_divisor == cfg.mode.sparse_divisor,
        f"A run has one mode.sparse_divisor; add sparse_divisor: {cfg.mode.sparse_divisor} to what is `set`.",
    )


def _check_switches(cfg: RunConfig) -> None:
    switch = cfg.switch
    _choice("switch.prepare", switch.prepare, ("servers", "all"))
    _choice("switch.checksum", switch.checksum, ("auto", "all"))
    _require(0 <= switch.drain_seconds < float("inf"), "switch.drain_seconds must be 0 or more.")
    for number, phase in enumerate(cfg.phases[1:]):
        with naming(number):
            check_switch(cfg, phase)


def _check_mode(cfg: RunConfig) -> None:
    cfg.policy_options().check_workers(cfg.cluster.workers)
    _choice("mode.sparse_divisor", cfg.mode.sparse_divisor, ("global", "contributors"))
    _require(cfg.mode.prefetch in (0, 1), "mode.prefetch is 0 or 1.")
    _check_batches(cfg)


def check(cfg: RunConfig) -> RunConfig:
    """Apply the cross-field rules. Raises ConfigError with one sentence that says what to type."""
    _choice("cluster", cfg.cluster.name, ("local", "virtual"))
    _choice("cluster.transport", cfg.cluster.transport, ("shm", "tcp"))
    _choice("cluster.pin", cfg.cluster.pin, ("auto", "off"))
    _choice("cluster.lost_worker", cfg.cluster.lost_worker, ("end", "continue"))
    _choice("collective", cfg.collective.name, ("horovod", "gloo", "shm"))
    _choice("precision", cfg.precision, ("fp32", "bf16"))
    _choice("optim.name", cfg.optim.name, ("sgd", "adagrad", "rowwise_adagrad", "adam"))
    _choice("optim.row_l2", cfg.optim.row_l2, ROW_L2_SCOPES)
    _choice("optim.schedule.name", cfg.optim.schedule.name, ("constant", "linear", "inverse_sqrt", "cosine"))
    _choice("model.name", cfg.model.name, ("deepfm", "wide_deep"))
    _require(cfg.cluster.workers >= 1, "cluster.workers must be at least 1.")
    _require(cfg.cluster.servers >= 1, "cluster.servers must be at least 1.")
    _require(cfg.optim.lr > 0, "optim.lr must be positive.")
    schedule = cfg.optim.schedule
    _require(
        schedule.name != "cosine" or schedule.total > schedule.warmup,
        "optim.schedule.name=cosine ends at optim.schedule.total global batches; type a total above the warm-up.",
    )
    _require(cfg.train.epochs >= 1, "train.epochs must be at least 1.")
    _require(cfg.train.eval_batch >= 1, "train.eval_batch must be at least 1.")
    _require(cfg.train.patience >= 0, "train.patience must be 0 (never stop early) or more.")
    _require((cfg.train.max_eval_samples or 1) >= 1, "train.max_eval_samples must be at least 1.")
    _require(0 <= cfg.model.dropout < 1, "model.dropout must be in [0, 1).")
    _require(cfg.model.dim >= 1, "model.dim must be at least 1.")
    _require(all(n >= 1 for n in cfg.model.hidden), "model.hidden is a list of sizes of at least 1.")
    _require(cfg.collective.buckets >= 1, "collective.buckets must be at least 1.")
    _require(cfg.collective.cycle_time_ms > 0, "collective.cycle_time_ms must be positive.")
    _require(cfg.cluster.start_timeout > 0, "cluster.start_timeout must be positive.")
    _require(cfg.cluster.threads is None or cfg.cluster.threads >= 1, "cluster.threads must be at least 1.")
    _check_mode(cfg)
    _check_switches(cfg)
    _check_faults(cfg)
    cfg.cost.check()
    return cfg


def to_dict(cfg: RunConfig) -> dict[str, Any]:
    """Plain containers, for the resolved file and for MLflow's params."""
    values = dataclasses.asdict(cfg)
    values["mode"].update(values["mode"].pop("options"))
    return values


def mode_values(cfg: RunConfig) -> dict[str, Any]:
    """The mode's keys as in conf/mode/, all of them, and how many workers it has."""
    return {**to_dict(cfg)["mode"], "workers": cfg.cluster.workers}


def _build(cls: type[Any], values: dict[str, Any], path: str) -> Any:
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(known))
    where = path.rstrip(".") or "The configuration"
    _require(not unknown, f"{where} has no key {', '.join(unknown)}; keys are: {', '.join(known)}.")
    hints, made = get_type_hints(cls), {}
    for key, value in values.items():
        if dataclasses.is_dataclass(hints[key]):
            _require(isinstance(value, dict), f"{path}{key} is a group of keys, not {value!r}.")
            made[key] = _build(hints[key], value, f"{path}{key}.")
        else:
            _require(matches(value, hints[key]), f"{path}{key}={value!r} is not {shown(hints[key])}.")
            made[key] = value
    return cls(**made)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Build and check a run's configuration from plain containers. Raises ConfigError."""
    cfg: RunConfig = _build(RunConfig, _with_options(values), "")
    return check(cfg)


def _with_options(values: dict[str, Any]) -> dict[str, Any]:
    """The mode's own keys gathered under `options`."""
    mode = values.get("mode")
    if not isinstance(mode, dict):
        return values
    return {**values, "mode": _own_keys(mode)}


def _own_keys(mode: dict[str, Any]) -> dict[str, Any]:
    common = {f.name for f in dataclasses.fields(ModeConfig)} - {"options"}
    own = {key: value for key, value in mode.items() if key not in common}
    return {**{key: value for key, value in mode.items() if key in common}, "options": own}


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value})
    return flat

"""The groups of a run's configuration, as conf/ has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gbactl.typed import Count, Interval, Natural, Processes, Seconds, Seed, Share, ShareBelowOne, SomeShare, Within


@dataclass
class ModeConfig:
    """How gradients meet parameters. `options` are the mode's own keys; in files they stand beside the others."""

    name: str = "sync"
    local_batch: Count | None = None
    prefetch: Literal[0, 1] = 1
    sparse_divisor: str = "global"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ClusterConfig:
    """Processes, where they listen and how they talk."""

    name: str = "local"
    workers: Processes = 4
    servers: Processes = 2
    dense_servers: Processes | None = None
    transport: str = "shm"
    bind: str = "127.0.0.1"
    threads: Processes | None = None
    pin: str = "auto"
    lost_worker: str = "replace"
    lost_coordinator: str = "replace"
    hang_seconds: Interval = 10.0
    start_timeout: Annotated[float, Within(at_least=1, at_most=1e9)] = 60.0
    stop_seconds: Annotated[float, Within(at_least=0, at_most=1e9)] = 30.0
    hosts: list[str] = field(default_factory=list)
    placement: str = "spread"
    ssh: str = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    python: str | None = None
    forward: list[str] = field(default_factory=list)

    @property
    def dense_holders(self) -> int:
        """Servers, the first ones, that hold a slice of the dense vector; the others hold rows alone."""
        return self.servers if self.dense_servers is None else self.dense_servers


@dataclass
class TransportConfig:
    """What is done to what processes send each other: TLS around TCP (wire/tls.py), and how values travel
    (wire/compression.py)."""

    encrypt: bool = False
    wire_dtype: str = "fp32"


@dataclass
class CollectiveConfig:
    """The all-reduce behind `sync`. `cycle_time_ms` None: see RunConfig.cycle_time_ms."""

    name: str = "horovod"
    cycle_time_ms: Annotated[float, Within(at_least=0.01, at_most=10_000)] | None = None
    buckets: Annotated[int, Within(at_least=1, at_most=1000)] = 2


@dataclass
class ModelConfig:
    """A click model over looked-up rows."""

    name: str = "deepfm"
    dim: Annotated[int, Within(at_least=1, at_most=65_536)] = 16
    hidden: list[Count] = field(default_factory=lambda: [400, 400, 400])
    dropout: ShareBelowOne = 0.0
    batch_norm: bool = False
    batch_norm_momentum: SomeShare = 0.1
    init_scale: Annotated[float, Within(at_least=0, at_most=1000)] = 0.01


@dataclass
class ScheduleConfig:
    """Learning rate as a function of progress p (global batches finished), never of k."""

    name: str = "constant"
    warmup: Annotated[float, Within(at_least=0, at_most=1e15)] = 0.0
    total: Annotated[float, Within(at_least=0, at_most=1e15)] = 0.0
    floor: Share = 0.0


@dataclass
class OptimConfig:
    """One optimizer for dense block and rows; `row_lr` overrides the rate of rows."""

    name: str = "adam"
    lr: Annotated[float, Within(above=0, at_most=1e38)] = 1e-3  # a finite fp32
    row_lr: Annotated[float, Within(above=0, at_most=1e38)] | None = None
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Annotated[float, Within(at_least=1e-30, at_most=1)] = 1e-8
    initial_accumulator: Annotated[float, Within(at_least=0, at_most=1e9)] = 0.0
    weight_decay: Annotated[float, Within(at_least=0, at_most=1000)] = 0.0
    row_weight_decay: Annotated[float, Within(at_least=0, at_most=1000)] = 0.0
    row_l2: str = "touched"
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass
class TrainConfig:
    """What is trained on, for how long, and when it is judged."""

    global_batch: Count = 2048
    epochs: Count = 1
    patience: Natural = 0
    shuffle: bool = False
    eval_batch: Count = 2048
    days: Count | None = None
    checksum_every: Natural = 500
    norms_every: Natural = 0
    max_eval_samples: Count | None = None
    on_divergence: str = "stop"


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
    """Faults on purpose: a list of plans (see faults/spec.py), drawn with `seed` (null: the run's). `name` is for
    people: plans that are typed beside `none` have none."""

    seed: Seed | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)
    name: str = "none"


@dataclass
class CheckpointConfig:
    """What is saved, how often, and what a lost server costs. Times in seconds; T, T_f, O_s, O_l and O_r of the
    equations are job, mtbf, save, load and reschedule. Without an interval it follows from them."""

    name: str = "none"
    target_pls: Annotated[float, Within(above=0, below=1)] = 0.035
    interval_seconds: Interval | None = None
    interval_steps: Count | None = None
    job_seconds: Interval = 201600.0
    mtbf_seconds: Interval = 100800.0
    save_seconds: Seconds = 324.0
    load_seconds: Seconds = 120.0
    reschedule_seconds: Seconds = 60.0
    share: Annotated[float, Within(at_least=0.001, at_most=1)] = 0.125
    large_tables: SomeShare = 0.9
    base_every: Natural = 8
    keep: Count = 2
    memory_mb: Count = 256
    mb_per_second: Literal[0] | Annotated[float, Within(at_least=0.01, at_most=1e6)] = 10.0
    dtype: str = "fp32"


@dataclass
class SwitchConfig:
    """When the run goes on in another mode: by a schedule (none; see switching/schedule.py), or auto (see
    switching/controller.py for `window` to `minimum_stay`; `every`: seconds between two looks; `changes`: keys of the
    mode that the run does not begin in).

    `modes` are resolved files: of the schedule's modes, or of auto's other one. `prepare`: the modes that the run is
    started for beside those, servers (all that keep the dense part there) or all.
    """

    schedule: list[dict[str, Any]] = field(default_factory=list)
    modes: list[dict[str, Any]] = field(default_factory=list)
    drain_seconds: Seconds = 30.0
    prepare: str = "servers"
    checksum: str = "auto"
    name: str = "none"
    changes: dict[str, Any] | None = None
    every: Interval = 2.0
    window: Interval = 10.0
    margin: Annotated[float, Within(at_least=0, at_most=1000)] = 0.1
    hysteresis: Annotated[float, Within(at_least=0, at_most=1000)] = 0.1
    minimum_stay: Seconds = 30.0

"""Groups of a run's configuration, as conf/ has them.

The group of a part that takes it whole stands beside that part: faults/plan.py, checkpoint/plan.py,
models/options.py, store/schedule.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gbactl.store.schedule import ScheduleConfig
from gbactl.typed import Count, Interval, Natural, Processes, Seconds, ShareBelowOne, Within


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
    """Processes, where they listen and how they talk. `options` are the place's own keys, as in ModeConfig."""

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
    options: dict[str, Any] = field(default_factory=dict)

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

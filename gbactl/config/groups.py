"""Dataclasses of the groups of a run's configuration, one for each group in conf/.

A group that one module uses as a whole is defined beside that module: faults/fault_plan.py,
checkpoint/planning.py, models/options.py, store/optimizers.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

from gbactl.checked_dataclasses import Bounds, Count, Interval, Natural, Processes, Seconds, ShareBelowOne
from gbactl.store.optimizers import ScheduleConfig


@dataclass
class ModeConfig:
    """Configuration of the mode, the rule by which gradients are applied.

    `options` are the mode's own keys; in files they stand beside the others."""

    name: str = "sync"
    local_batch: Count | None = None
    prefetch: str = "data"
    sparse_divisor: str = "global"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> int:
        """Number of batches that a worker requests while it computes another one."""
        return int(self.prefetch != "none")


@dataclass
class ClusterConfig:
    """Configuration of the processes, their addresses and transport; `options` are the engine's own keys."""

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
    start_timeout: Annotated[float, Bounds(at_least=1, at_most=1e9)] = 60.0
    stop_seconds: Annotated[float, Bounds(at_least=0, at_most=1e9)] = 30.0
    hosts: list[str] = field(default_factory=list)
    placement: str = "spread"
    ssh: str = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    python: str | None = None
    forward: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def dense_holders(self) -> int:
        """Number of servers (the first ones) that hold a slice of the dense vector beside rows."""
        return self.servers if self.dense_servers is None else self.dense_servers


@dataclass
class TransportConfig:
    """Configuration of the wire: TLS (wire/tls.py), and half precision (wire/half_precision_transport.py)."""

    encrypt: bool = False
    wire_dtype: str = "fp32"


@dataclass
class CollectiveConfig:
    """Configuration of the all-reduce.

    `cycle_time_ms` None: see RunConfig.cycle_time_ms."""

    name: str = "horovod"
    cycle_time_ms: Annotated[float, Bounds(at_least=0.01, at_most=10_000)] | None = None
    buckets: Annotated[int, Bounds(at_least=1, at_most=1000)] = 2


@dataclass
class OptimConfig:
    """Configuration of the optimizer of dense parameters and rows; `row_lr` overrides the learning rate of rows."""

    name: str = "adam"
    lr: Annotated[float, Bounds(above=0, at_most=1e38)] = 1e-3  # finite as a float32
    row_lr: Annotated[float, Bounds(above=0, at_most=1e38)] | None = None
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Annotated[float, Bounds(at_least=1e-30, at_most=1)] = 1e-8
    initial_accumulator: Annotated[float, Bounds(at_least=0, at_most=1e9)] = 0.0
    weight_decay: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.0
    row_weight_decay: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.0
    row_l2: str = "touched"
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass
class TrainConfig:
    """Configuration of batches, epochs and evaluation."""

    global_batch: Count = 2048
    epochs: Count = 1
    patience: Natural = 0
    shuffle: bool = False
    eval_batch: Count = 2048
    days: Count | None = None
    checksum_every: Natural = 500
    norms_every: Natural = 0
    max_eval_samples: Count | None = None
    eval_every: Count | None = None
    on_divergence: str = "stop"


@dataclass
class TrackingConfig:
    """Configuration of MLflow tracking: the store and the experiment."""

    uri: str | None = None
    experiment: str = "gbactl"
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    enabled: bool = True


@dataclass
class SwitchConfig:
    """Configuration of mode switches: by a schedule, or automatic (auto).

    For auto: `window` to `minimum_stay`, see switching/auto_controller.py; `every`: seconds between two decisions;
    `changes`: keys of the mode that the run does not begin in. `modes`: resolved files of the schedule's modes, or of
    auto's other mode. `prepare`: further modes that the run is started for, servers (all that keep the dense parameters
    there) or all."""

    schedule: list[dict[str, Any]] = field(default_factory=list)
    modes: list[dict[str, Any]] = field(default_factory=list)
    drain_seconds: Seconds = 30.0
    prepare: str = "servers"
    checksum: str = "auto"
    name: str = "none"
    changes: dict[str, Any] | None = None
    every: Interval = 2.0
    window: Interval = 10.0
    margin: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.1
    hysteresis: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.1
    minimum_stay: Seconds = 30.0


WITH_OPTIONS: dict[str, type[Any]] = {"mode": ModeConfig, "cluster": ClusterConfig}


def own_keys(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Move the keys that are not fields of dataclass `kind`, those of one mode or engine, to the key `options`."""
    common = {f.name for f in dataclasses.fields(kind)} - {"options"}
    own = {key: value for key, value in values.items() if key not in common}
    return {**{key: value for key, value in values.items() if key in common}, "options": own}

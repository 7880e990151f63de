"""Dataclasses of the groups of a run's configuration, one for each group in conf/.

A group that one module uses as a whole is defined beside that module: faults/fault_plan.py,
checkpoint/costs_and_interval.py, models/__init__.py, store/optimizer_settings.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gbactl.checked_dataclasses import Bounds, Count, Interval, Natural, Processes, Seconds, Share
from gbactl.errors import ConfigError
from gbactl.models import ModelConfig
from gbactl.policies.policy import Policy, policy_class
from gbactl.store.optimizer_settings import ScheduleConfig
from gbactl.switching.auto_controller import AutoOptions


@dataclass
class ModeConfig:
    """Configuration of the mode, the rule by which gradients are applied.

    `target` is the class of its policy; None: that of gbactl's mode `name`. `options` are the mode's own keys; in files
    they stand beside the others."""

    name: str = "sync"
    local_batch: Count | None = None
    prefetch: Literal["none", "data", "rows"] = "data"
    sparse_divisor: Literal["global", "contributors"] = "global"
    target: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def policy(self) -> type[Policy]:
        """Class of the mode's policy. Raises ConfigError if it cannot be found."""
        return policy_class(self.name, self.target)

    @property
    def prefetched_batches(self) -> int:
        """Number of batches that a worker requests while it computes another one."""
        return int(self.prefetch != "none")


@dataclass
class ClusterConfig:
    """Configuration of the processes, their addresses and transport; `options` are the engine's own keys."""

    name: str = "local"
    workers: Processes = 4
    servers: Processes = 2
    dense_servers: Processes | None = None
    transport: Literal["shm", "tcp"] = "shm"
    bind: str = "127.0.0.1"
    threads: Processes | None = None
    pin: Literal["auto", "off"] = "auto"
    lost_worker: Literal["end", "continue", "replace"] = "replace"
    lost_coordinator: Literal["end", "replace"] = "replace"
    hang_seconds: Interval = 10.0
    start_timeout: Annotated[float, Bounds(at_least=1, at_most=1e9)] = 60.0
    stop_seconds: Annotated[float, Bounds(at_least=0, at_most=1e9)] = 30.0
    hosts: list[str] = field(default_factory=list)
    placement: Literal["spread", "packed"] = "spread"
    ssh: str = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    python: str | None = None
    forward: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def dense_holders(self) -> int:
        """Number of servers (the first ones) that hold a slice of the dense vector in addition to rows."""
        return self.servers if self.dense_servers is None else self.dense_servers


@dataclass
class TransportConfig:
    """Configuration of the wire: TLS (wire/auth.py), and half precision (wire/half_precision_transport.py)."""

    encrypt: bool = False
    wire_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"


@dataclass
class CollectiveConfig:
    """Configuration of the all-reduce.

    `cycle_time_ms` None: see RunConfig.cycle_time_ms."""

    name: Literal["horovod", "gloo", "shm"] = "horovod"
    cycle_time_ms: Annotated[float, Bounds(at_least=0.01, at_most=10_000)] | None = None
    buckets: Annotated[int, Bounds(at_least=1, at_most=1000)] = 2


DecayRate = Annotated[float, Bounds(at_least=0, at_most=0.999995)]  # at this bound Adam's bias table has 3.6 M steps


@dataclass
class OptimConfig:
    """Configuration of the optimizer of dense parameters and rows; `row_lr` overrides the learning rate of rows."""

    name: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "adam"
    lr: Annotated[float, Bounds(above=0, at_most=1e38)] = 1e-3  # finite as a float32
    row_lr: Annotated[float, Bounds(above=0, at_most=1e38)] | None = None
    beta1: DecayRate = 0.9
    beta2: DecayRate = 0.999
    eps: Annotated[float, Bounds(at_least=1e-30, at_most=1)] = 1e-8
    initial_accumulator: Annotated[float, Bounds(at_least=0, at_most=1e9)] = 0.0
    weight_decay: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.0
    row_weight_decay: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.0
    row_l2: Literal["touched", "all"] = "touched"
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
    on_divergence: Literal["stop", "continue"] = "stop"


@dataclass
class TrackingConfig:
    """Configuration of MLflow tracking: the store and the experiment."""

    uri: str | None = None
    experiment: str = "gbactl"
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    enabled: bool = True


@dataclass
class SwitchConfig(AutoOptions):
    """Configuration of mode switches: by a schedule, or automatic (auto).

    For auto, beside its controller's options: `every`: seconds between two decisions; `changes`: keys of the mode that
    the run does not begin in. `modes`: resolved files of the schedule's modes, or of auto's other mode. `prepare`:
    further modes that the run is started for, servers (all that keep the dense parameters there) or all."""

    schedule: list[dict[str, Any]] = field(default_factory=list)
    modes: list[dict[str, Any]] = field(default_factory=list)
    drain_seconds: Seconds = 30.0
    prepare: Literal["servers", "all"] = "servers"
    checksum: Literal["auto", "all"] = "auto"
    name: Literal["none", "auto"] = "none"
    changes: dict[str, Any] | None = None
    every: Interval = 2.0


WITH_OPTIONS: dict[str, type[Any]] = {"mode": ModeConfig, "cluster": ClusterConfig, "model": ModelConfig}
NEW_KEYS = {"mode": ("target",), "model": ("target", "first_order", "dims")}  # None: not written, as in older runs


def common_keys(kind: type[Any]) -> list[str]:
    """List the keys that all options of a group have; `kind`: the group's dataclass."""
    return [each.name for each in dataclasses.fields(kind) if each.name != "options"]


def own_keys(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Move keys that are not fields of dataclass `kind`, as only one mode or engine has them, to the key `options`."""
    common = common_keys(kind)
    own = {key: value for key, value in values.items() if key not in common}
    return {**{key: value for key, value in values.items() if key in common}, "options": own}


Time = Annotated[float, Bounds(at_least=0, at_most=1e12)]
Bandwidth = Annotated[float, Bounds(at_least=1e-6, at_most=1e9)]
Factor = Annotated[float, Bounds(at_least=1e-3, at_most=1e6)]


@dataclass
class CostConfig:
    """Cost model of a virtual cluster: its hosts, and the times of computing, serving and sending.

    conf/cost/laptop.yaml explains each key."""

    name: str = "laptop"
    cores: Processes = 4
    workers_per_host: Processes | None = None
    servers_on: Literal["workers", "own"] = "workers"
    batch_us: Time = 900.0
    sample_us: Time = 33.0
    push_us: Time = 250.0
    predict_us: Time = 11.0
    worker_scale: list[Factor] = field(default_factory=list)
    spread: Literal["none", "lognormal", "exponential"] = "none"
    spread_scale: Annotated[float, Bounds(at_least=0, at_most=10)] = 0.0
    server_message_us: Time = 25.0
    row_pull_ns: Time = 30.0
    row_apply_ns: Time = 120.0
    dense_pull_ns: Time = 0.3
    dense_apply_ns: Time = 0.2
    dense_step_ns: Time = 0.7
    coordinator_message_us: Time = 20.0
    local_latency_us: Time = 60.0
    local_bandwidth_gbit: Bandwidth = 32.0
    latency_us: Time = 60.0
    bandwidth_gbit: Bandwidth = 32.0
    allreduce_us: Time = 1000.0
    allreduce_rounds: Annotated[float, Bounds(at_least=0, at_most=1000)] = 2.5
    allreduce_work_us: Time = 0.0
    allreduce_message_us: Time = 0.0
    allreduce_float_ns: Time = 0.0
    overlap: Share = 0.0
    restart_us: Time = 3_000_000.0

    def check(self) -> None:
        """Raise ConfigError, with the key to type, if two values do not fit together."""
        if self.spread == "exponential" and self.spread_scale > 1:
            raise ConfigError(f"cost.spread=exponential has cost.spread_scale from 0 to 1, not {self.spread_scale:g}.")

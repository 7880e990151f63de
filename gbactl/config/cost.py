"""Configuration group `cost`: the hardware of a virtual cluster and the costs of its work.

Times are microseconds (`_us`) or nanoseconds (`_ns`) of a core, bandwidths Gbit/s. The defaults are
conf/cost/laptop.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from gbactl.checked_dataclasses import Bounds, Processes, Share
from gbactl.errors import ConfigError

SPREADS = ("none", "lognormal", "exponential")
SERVERS_ON = ("workers", "own")
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
    servers_on: str = "workers"
    batch_us: Time = 900.0
    sample_us: Time = 33.0
    push_us: Time = 250.0
    predict_us: Time = 11.0
    worker_scale: list[Factor] = field(default_factory=list)
    spread: str = "none"
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
        """Raise ConfigError, with the key to type, if a value is invalid."""
        for key, known in (("servers_on", SERVERS_ON), ("spread", SPREADS)):
            if getattr(self, key) not in known:
                raise ConfigError(f"cost.{key}={getattr(self, key)} cannot be; type one of: {', '.join(known)}.")
        if self.spread == "exponential" and self.spread_scale > 1:
            raise ConfigError(f"cost.spread_scale={self.spread_scale} cannot be; type 0 to 1.")

"""What a virtual cluster is made of and what its work costs: the configuration group `cost`, flat and plain.

Times are microseconds (`_us`) or nanoseconds (`_ns`) of a core, bandwidths Gbit/s. The defaults are
conf/cost/laptop.yaml.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from gbactl.errors import ConfigError

SPREADS = ("none", "lognormal", "exponential")
SERVERS_ON = ("workers", "own")


@dataclass
class CostConfig:
    """Hosts, computing, serving, sending; conf/cost/laptop.yaml says what each key means."""

    name: str = "laptop"
    cores: int = 4
    workers_per_host: int | None = None
    servers_on: str = "workers"
    batch_us: float = 900.0
    sample_us: float = 33.0
    predict_us: float = 11.0
    worker_scale: list[float] = field(default_factory=list)
    spread: str = "none"
    spread_scale: float = 0.0
    server_message_us: float = 25.0
    row_pull_ns: float = 30.0
    row_apply_ns: float = 120.0
    dense_pull_ns: float = 0.3
    dense_apply_ns: float = 0.2
    dense_step_ns: float = 0.7
    coordinator_message_us: float = 20.0
    local_latency_us: float = 60.0
    local_bandwidth_gbit: float = 32.0
    latency_us: float = 60.0
    bandwidth_gbit: float = 32.0
    allreduce_us: float = 1000.0
    allreduce_rounds: float = 2.5
    allreduce_work_us: float = 0.0
    allreduce_message_us: float = 0.0
    allreduce_float_ns: float = 0.0
    overlap: float = 0.0
    restart_us: float = 3_000_000.0

    def check(self) -> None:
        """Raises ConfigError, with the key to type, on values that cannot work."""
        for key, ok, rule in self._rules():
            if not ok:
                raise ConfigError(f"cost.{key}={getattr(self, key)} cannot be; {rule}.")

    def _rules(self) -> list[tuple[str, bool, str]]:
        """(key, whether it holds, what to type)."""
        numbers = [f.name for f in dataclasses.fields(self) if f.name.endswith(("_us", "_ns"))]
        widths = [f.name for f in dataclasses.fields(self) if f.name.endswith("_gbit")]
        most = 1.0 if self.spread == "exponential" else 10.0
        return [
            ("cores", self.cores >= 1, "type 1 or more"),
            ("workers_per_host", self.workers_per_host is None or self.workers_per_host >= 1, "1 or more, or null"),
            ("servers_on", self.servers_on in SERVERS_ON, f"type one of: {', '.join(SERVERS_ON)}"),
            ("spread", self.spread in SPREADS, f"type one of: {', '.join(SPREADS)}"),
            ("spread_scale", 0 <= self.spread_scale <= most, f"type 0 to {most:g}"),
            ("overlap", 0 <= self.overlap <= 1, "type 0 to 1"),
            ("allreduce_rounds", 0 <= self.allreduce_rounds < math.inf, "type 0 or more"),
            ("worker_scale", all(_positive(scale) for scale in self.worker_scale), "type positive factors"),
            *((key, 0 <= getattr(self, key) < math.inf, "type 0 or more") for key in numbers),
            *((key, _positive(getattr(self, key)), "type a positive number of Gbit/s") for key in widths),
        ]


def _positive(value: float) -> bool:
    return 0 < value < math.inf

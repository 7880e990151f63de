"""Arithmetic of the scale study: what each resource of a run has to carry, and which breaks first. Pure.

A worker computes a batch in `batch_seconds`. Every gradient has a slice on every server: each server gets one pull and
one push of it, and tells the coordinator, which orders steps on every server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

DAY = 86_400.0
US, KB = 1e-6, 1e3


@dataclass(frozen=True)
class Costs:
    """Measured costs: microseconds of CPU and bytes, each of one gradient unless said.

    `coordinator_us`, `shard_us`: the coordinator's, without servers and for each server; `server_us`: a server's own;
    `value_ns`: a server's for a float of rows or dense values; `node_kb`: memory of a connection; `start_seconds` of
    the launcher for a process."""

    coordinator_us: float
    shard_us: float
    server_us: float
    value_ns: float
    log_bytes: float
    node_kb: float
    start_seconds: float
    pulse_us: float


@dataclass(frozen=True)
class Job:
    """Job of `workers` workers. `rows`: distinct rows of a batch, of `width` floats; `dense`: dense values."""

    workers: int
    servers: int
    batch_seconds: float = 0.05
    rows: int = 7_000
    width: int = 17
    dense: int = 493_000
    a_host: int = 8
    gigabytes: float = 1.25  # GB/s of a server's interface, each way
    orders: float = 1.0  # steps for each gradient: 1 in async, 1 / workers in gba and sync
    latency: float = 50e-6  # seconds of a message between hosts

    @property
    def gradients(self) -> float:
        """Gradients a second of all workers."""
        return self.workers / self.batch_seconds


class Load(NamedTuple):
    """Load of a resource (`carries`) and its capacity (`can`), in the same unit."""

    resource: str
    carries: float
    can: float
    unit: str

    @property
    def factor(self) -> float:
        """Load divided by capacity; above 1 the resource is overloaded."""
        return self.carries / self.can


def loads(job: Job, costs: Costs) -> list[Load]:
    """Compute the load of each resource of a job."""
    n, floats = job.gradients, job.rows * job.width + job.dense
    messages = job.servers * (1 + job.orders) + 1
    shards = costs.shard_us * job.servers * (1 + job.orders) / 2
    inward = n * (4 * floats + 8 * job.rows) / job.servers  # pushes with their ids, and the ids of pulls
    values = 2 * costs.value_ns * 1e-3 * floats / job.servers
    hosts = -(-job.workers // job.a_host)
    return [
        Load("coordinator, messages", n * messages, messages / (US * (costs.coordinator_us + shards)), "1/s"),
        Load("a server's process", n * (costs.server_us + values) * US, 1.0, "cores"),
        Load("a server's network interface, inward", inward / 1e9, job.gigabytes, "GB/s"),
        Load("all-reduce of `sync`, latency of its ring", 2 * (job.workers - 1) * job.latency, job.batch_seconds, "s"),
        Load("launcher, agents' pulses", 4 * hosts * costs.pulse_us * US, 1.0, "cores"),
        Load("launcher, start of all processes", job.workers * costs.start_seconds, 60.0, "s"),
        Load("coordinator, descriptors", job.workers + job.servers + 10, 1024, ""),
        Load("coordinator, memory of connections", (job.workers + job.servers) * costs.node_kb * KB / 1e9, 16.0, "GB"),
        Load("event log", n * costs.log_bytes * DAY / 1e9, 1000.0, "GB a day"),
    ]  # fmt: skip


def carried(job: Job, costs: Costs) -> dict[str, float]:
    """Gradients a second that the coordinator, a server's process and its interface can carry, however many workers."""
    return {load.resource: job.gradients / load.factor for load in loads(job, costs)[:3]}


def coordinators(job: Job, costs: Costs, frames_us: float) -> tuple[float, float, float]:
    """Factors of the coordinator: as it is, with packed messages, and with one announcement for all servers.

    `frames_us`: microseconds of an announcement's and an order's frame, which packing would save at best."""
    packed = replace(costs, shard_us=costs.shard_us - frames_us)
    orders = costs.coordinator_us + costs.shard_us / 2 * job.servers * job.orders
    return loads(job, costs)[0].factor, loads(job, packed)[0].factor, job.gradients * US * orders


def first(found: list[Load]) -> Load:
    """The resource that breaks first: the one with the largest factor."""
    return max(found, key=lambda load: load.factor)

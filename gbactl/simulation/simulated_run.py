"""Simulation of one run in the current thread: connects the nodes of a virtual cluster, and trains to the end.

Building a cluster takes what building one model and its tables takes; 1,000 workers add 20 ms.

Times do not depend on values. So for times alone there is a cluster without the model's arithmetic: its throughput,
staleness and traffic are those of the same training with gradients, which takes several times as long. Its AUC and
loss mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.checkpoint.restore import chain_at, load_shard
from gbactl.collective.base import ring_item
from gbactl.config import RunConfig, samples_of
from gbactl.config.shard_specs import shard_spec
from gbactl.coordinator.checkpointing import spare_bytes
from gbactl.data.dataset import Dataset
from gbactl.faults.slowdown_waits import ServerSlowdown
from gbactl.kernels import codec_of
from gbactl.kernels.base import Floats
from gbactl.kernels.native import flushed
from gbactl.models.gradient_computer import torch_threads
from gbactl.nodes.role_setup import header
from gbactl.server.checkpoint_writer import ShardSaver, saver_of
from gbactl.simulation.coordinator import VirtualCoordinator, VirtualHub
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.dense_placements import ReplicatedDense, ServedDense, TrainerDense
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.gradient_compute import SharedCompute
from gbactl.simulation.network import TICK, Host, Network, RingRounds, SimulatedRing
from gbactl.simulation.process_failures import FailureInjection
from gbactl.simulation.server import VirtualServer
from gbactl.simulation.worker import ClusterShared, DensePlacement, Placements, VirtualWorker
from gbactl.store.shard import Shard
from gbactl.wire.auth import Peer
from gbactl.wire.messages import Event, Hello, Ready
from gbactl.worker.loop import MappedBatchSource
from gbactl.worker.worker_core import BatchInProgress

Listen = Callable[[Event], None]


class LauncherChannel:
    """Stand-in for the coordinator's channel to the launcher."""

    peer = Peer("launcher", 0)

    def __init__(self, listen: Listen) -> None:
        self._listen = listen

    def reserve(self, nbytes: int) -> Any:
        """Allocate memory for a payload."""
        return np.empty(nbytes, np.uint8)

    def send(self, message: Any, payload: Any = None) -> None:
        """Pass an event to the launcher at once."""
        if isinstance(message, Event):
            self._listen(message)

    def close(self) -> None:
        """Do nothing: there is no connection."""


@dataclass(frozen=True)
class NodeHosts:
    """Hosts of the coordinator, all servers and all workers."""

    workers: list[Host]
    servers: list[Host]
    coordinator: Host


def place(cfg: RunConfig, events: EventQueue) -> NodeHosts:
    """Assign nodes to hosts: workers fill the hosts in order.

    Servers and coordinator have hosts of their own, or share the workers'."""
    cost, workers, servers = cfg.cost, cfg.processes, cfg.cluster.servers
    each = cost.workers_per_host or workers
    sharing = 0 if cfg.compute_threads > 1 else each  # a thread could wait for another within its slot
    hosts = [Host(events, cost.cores, min(sharing, workers - first)) for first in range(0, workers, each)]
    of_workers = [hosts[worker // each] for worker in range(workers)]
    if cost.servers_on == "own":
        own = [Host(events, cost.cores) for _ in range(servers + 1)]
        return NodeHosts(of_workers, own[:servers], own[servers])
    return NodeHosts(of_workers, [hosts[shard * len(hosts) // servers] for shard in range(servers)], hosts[0])


class VirtualCluster:
    """All nodes of one run in virtual time. `listen` gets every event that a launcher gets."""

    def __init__(
        self, cfg: RunConfig, dataset: Dataset, run_dir: Path, listen: Listen = lambda event: None
    ) -> None:  # fmt: skip
        self.cfg, self.dataset, self.run_dir = cfg, dataset, run_dir
        self._result: dict[str, Any] = {}
        self.events = EventQueue()
        self.cost = CostModel(cfg.cost, cfg.seed)
        self.hosts = place(cfg, self.events)
        self.compute = self._compute()
        self.hub = VirtualHub(self.events, self.hosts.coordinator, self.cost.coordinator_message)
        self.plan = plan = cfg.fault_plan()
        self.hub.waits = 2 * cfg.cluster.hang_seconds if plan.has_failures else 0.0
        self.codec = codec_of(cfg.transport.wire_dtype)
        periods = plan.fault_periods()
        self.network = Network(
            self.events, self.cost, self.codec, self.hub.traffic, plan,
            lambda: periods.active_indexes(*self.coordinator.core.workers.progress_since_resume), self.hub.counts,
        )  # fmt: skip
        self.coordinator = VirtualCoordinator(self.hub, cfg, dataset, run_dir, header(cfg, dataset))
        self.failures = FailureInjection(self)
        self.coordinator.add_virtual_time(self.failures.servers.to_result)
        self.coordinator.context.launcher = LauncherChannel(lambda event: self._on_event(listen, event))
        self.servers = [self._server(shard) for shard in range(cfg.cluster.servers)]
        self.workers = self._workers()

    def run(self) -> dict[str, Any]:
        """Run the training to its end; return the fields of its result. Raises GbactlError."""
        for server in self.servers:
            server.coordinator.send(Hello("server", server.index, str(server.peer)))
            server.coordinator.send(Ready("server", server.index))
        for worker in self.workers:
            self._start(worker)
        self.coordinator.run()
        return self._result

    def _start(self, worker: VirtualWorker) -> None:
        worker.coordinator.send(Hello("worker", worker.index, ""))
        worker.coordinator.send(Ready("worker", worker.index))
        worker.start(self.cfg.prefetched_batches)

    def replace_worker(self, index: int) -> None:
        """Start a failed worker's successor (FailingCluster.replace_worker)."""
        failed = self.workers[index]
        worker = VirtualWorker(index, failed.host, failed.shared, failed.peer.incarnation + 1)
        self._connect(worker)
        self.workers[index] = worker
        self._start(worker)

    def _on_event(self, listen: Listen, event: Event) -> None:
        listen(event)
        self.failures.on_event(event)
        if event.name == "result":
            self._result = event.fields

    def _connect(self, worker: VirtualWorker) -> None:
        """Connect a worker with all servers and the coordinator."""
        servers = [self.network.connect(worker, server) for server in self.servers]
        worker.connect(self.network.connect(worker, self.hub), servers)

    def _compute(self) -> SharedCompute:
        return SharedCompute(self.cfg, self.dataset)

    def _server(self, shard: int) -> VirtualServer:
        host, norms = self.hosts.servers[shard], self.cfg.train.norms_every
        made = self.new_shard(shard)
        if self.cfg.resume is not None:
            load_shard(made, chain_at(Path(self.cfg.resume)), self.cfg.home != "workers")

        def saver(tell: Callable[[Any], None]) -> ShardSaver:
            spare = spare_bytes(self.cfg, samples_of(self.dataset, self.cfg.train))
            return saver_of(self.cfg, self.dataset.schema, self.run_dir, made, tell, spare, inline=True)

        server = VirtualServer(self.hub, made, host, self.network, norms, saver, self.failures.servers.add_save)
        server.served_dense = self.cfg.home != "workers"
        server.slow(ServerSlowdown.of(self.plan, shard))
        return server

    def new_shard(self, shard: int) -> Shard:
        """Make a shard with initial parameters (FailingCluster.new_shard)."""
        if "servers" not in self.cfg.homes:
            return Shard(shard_spec(self.cfg, self.dataset.schema.rows, shard))
        return Shard(self.compute.shard_spec(self.cfg, shard))

    def _workers(self) -> list[VirtualWorker]:
        source = MappedBatchSource(self.cfg, self.dataset)
        self.placements = self._placements()
        shared = ClusterShared(self.events, self.cost, self.plan, self.compute, source, self.placements, self.codec)
        workers = [VirtualWorker(index, host, shared) for index, host in enumerate(self.hosts.workers)]
        for worker in workers:
            self._connect(worker)
        return workers

    def _placements(self) -> Placements:
        cfg = self.cfg
        trainers = TrainerDense(cfg, self.compute, RingRounds(self._ring(1, TICK)))
        placements: dict[str, DensePlacement] = {"replicas": trainers, "servers": ServedDense(self.compute)}
        if "workers" in cfg.homes:
            placements["workers"] = ReplicatedDense(cfg, self.compute, self._ring(cfg.collective.buckets))
        return Placements(placements, cfg.home)

    def _ring(self, buckets: int, least: float = 0.0) -> SimulatedRing:
        """Make the all-reduce ring of all workers; with Horovod its ranks agree on every bucket."""
        name = self.cfg.collective.name
        item, agreed = ring_item(name, self.cfg.transport.wire_dtype), buckets if name == "horovod" else 0
        return SimulatedRing(self.events, self.cost, self.hosts.workers, self.hub.traffic, agreed, item, least)


def run_virtual(
    cfg: RunConfig, dataset: Dataset, run_dir: Path, listen: Listen = lambda event: None,
    look: Callable[[Listen], None] = lambda tell: None,
) -> dict[str, Any]:  # fmt: skip
    """Run a training in virtual time as `cfg` says; return the fields of its result. Raises GbactlError.

    `listen` gets every event that a launcher gets; `look` is called between two messages with a function that takes
    requests of a launcher."""
    from gbactl.cpu import keep_freed_memory, settle_garbage

    keep_freed_memory()
    settle_garbage()  # before there is a cluster, which would otherwise never be freed
    with flushed(), torch_threads(cfg.threads):  # the process may be a notebook's
        cluster = VirtualCluster(cfg, dataset, run_dir, listen)
        cluster.coordinator.look = look
        return cluster.run()


class ZeroCompute(SharedCompute):
    """Replacement for a worker's computation that returns zeros at no cost."""

    def load(self, item: BatchInProgress) -> None:
        """Do nothing, as no parameters are needed."""

    def gradient(
        self, item: BatchInProgress, out: Floats | None = None, computed: Callable[[], None] = lambda: None
    ) -> Floats:
        """Return row gradients of zeros."""
        item.release()
        sums = np.empty((len(item.unique.index), self.width), np.float32) if out is None else out
        sums[:] = 0.0
        return sums

    def predict(self, item: BatchInProgress) -> Floats:
        """Return predictions of zeros."""
        item.release()
        return np.zeros(item.grant.samples, np.float32)


class ZeroComputeCluster(VirtualCluster):
    """Virtual cluster whose workers compute nothing; simulated time passes as if they did."""

    def _compute(self) -> SharedCompute:
        compute = ZeroCompute(self.cfg, self.dataset)
        compute.flat.keep_gradients(tuple(p.new_zeros(p.shape) for p in compute.flat.parameters))
        return compute

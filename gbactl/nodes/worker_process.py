"""Worker process, over sockets or in-memory channels: build the model, connect to the servers, train until stopped."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gbactl.collective import connect
from gbactl.collective.base import ring_item
from gbactl.collective.fault_tolerant import FaultTolerantCollective
from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_cuts
from gbactl.cpu import CoreAssignment
from gbactl.data.dataset import Dataset
from gbactl.faults.slowdown_waits import WorkerSlowdown
from gbactl.kernels.native import core_slots, flush
from gbactl.models import row_width
from gbactl.trainer.hogwild_training import ComputeThread, TrainerDense, start
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.listener import shares_memory
from gbactl.wire.messages import Hello, Ready, RingBroken, WorkerFailed
from gbactl.wire.startup_document import await_setup, install_dense
from gbactl.worker.allreduce_fallback import ServerSums
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import (
    DensePlacement,
    Placements,
    ReplicatedDense,
    ServedDense,
    ShardSlices,
)
from gbactl.worker.loop import BatchComputer, MappedBatchSource, WorkerLoop

if TYPE_CHECKING:
    from gbactl.wire.startup_document import StartupDocument


def work(hub: Hub, coordinator: Channel, boot: StartupDocument, dataset: Dataset, collective: Any = None) -> None:
    """Run a worker from its Hello message to its end. `collective` replaces the one that the environment names."""
    cfg = boot.cfg
    _settle(cfg)
    coordinator.send(Hello("worker", boot.index, ""))
    life = WorkerProcess(hub, coordinator, boot, dataset)
    if cfg.collects:
        sums = None if cfg.cluster.lost_worker == "end" else functools.partial(ServerSums, life.client)
        item = ring_item(cfg.collective.name, cfg.transport.wire_dtype)
        collective = collective or connect(boot.incarnation > 0, sums, item)
    placements = life.placements(collective)
    if boot.incarnation > 0:
        warm_up(life.compute, cfg)
    coordinator.send(Ready("worker", boot.index))
    life.share_core()
    worker = life.worker(life.compute, Placements(placements, cfg.home))
    try:
        worker.run(cfg.prefetched_batches)
    finally:
        if collective is not None:
            collective.close()


def warm_up(compute: BatchComputer, cfg: RunConfig) -> None:
    """Compute a gradient of zeros in a successor before it takes batches: the first gradient takes far longer."""
    schema, computer, count = compute.schema, compute.computer, cfg.local_batch
    numeric = np.zeros((count, schema.numeric), np.float32)
    rows = np.zeros((count, schema.fields, compute.width), np.float32)
    raw = [(rows[:, :1].copy(), np.ones((count, 1), np.bool_)) for _ in computer.raw_fields]
    computer.gradient(numeric, np.zeros(count, np.float32), rows, 0, raw)


def segment_bytes(cfg: RunConfig, dataset: Dataset, dense: int) -> tuple[int, int]:
    """Compute the sizes of the shared-memory slots between one worker and one server.

    They are the largest push and the largest answer, in bytes; (0, 0) over TCP. The server holds `dense` values of the
    dense vector."""
    if cfg.cluster.transport != "shm":
        return 0, 0
    ids, width = dataset.ids_of_sample, row_width(cfg.model)
    # ids are spread by a modulo: only in unusual data a shard's slice exceeds twice its share; it then goes by wire
    share = 1.0 if cfg.cluster.servers == 1 else min(1.0, 2.0 / cfg.cluster.servers)
    local_batch = max(phase.local_batch for phase in cfg.possible)
    push = int(local_batch * ids * share) * 4 * (width + 1) + 4 * dense
    answer = int(max(local_batch, cfg.train.eval_batch) * ids * share) * 4 * width + 4 * dense
    return push, answer


def _settle(cfg: RunConfig) -> None:
    """Set the number of torch threads and flush denormals to zero in a compute thread."""
    torch.set_num_threads(cfg.threads)
    flush()


class WorkerProcess:
    """Parts of a worker process, built once its Hello is answered. Raises PeerGoneError if the run ends before that."""

    def __init__(self, hub: Hub, coordinator: Channel, boot: StartupDocument, dataset: Dataset) -> None:
        self.boot, self.cfg, self.dataset = boot, boot.cfg, dataset
        cfg = boot.cfg
        self.core_slots = core_slots(None)
        self.compute = BatchComputer(cfg, dataset)
        flat, served = self.compute.flat, "servers" in cfg.homes
        cuts = dense_cuts(cfg, flat.size)
        sizes = [segment_bytes(cfg, dataset, high - low if served else 0) for low, high in cuts]
        addresses = await_setup(hub, coordinator).servers

        def dial(address: str, peer: Peer) -> Channel:
            return hub.connect(address, sizes[peer.index] if shares_memory(address, boot.host) else (0, 0), peer)

        servers = [dial(each, Peer("server", shard)) for shard, each in enumerate(addresses)]
        if served and boot.index == 0 and boot.incarnation == 0:
            install_dense(hub, servers, cuts, flat.params, flat.buffers, flat.initial())
        self.client = WorkerClient(hub, coordinator, servers, boot.index, MappedBatchSource(cfg, dataset))
        self.slices = ShardSlices(self.client, cuts)
        if cfg.server_returns:
            self.client.dial = dial
            self.client.patience = 2 * cfg.cluster.start_timeout  # the coordinator gives up a missing server before

    def placements(self, collective: Any) -> dict[str, DensePlacement]:
        """Make the dense placements of all modes of this run, by holder of the dense parameters."""
        cfg, flat, first = self.cfg, self.compute.flat, self.boot.incarnation == 0
        if collective is not None:
            collective.on_bytes_sent = self.client.hub.traffic.count_all_reduce
        if isinstance(collective, FaultTolerantCollective):
            self.client.coordinator_handlers[WorkerFailed] = lambda message: collective.leave_out(message.worker)
            self.client.coordinator_handlers[RingBroken] = lambda _: collective.fall_back()
        served = ServedDense(flat, self.slices)
        trainer = TrainerDense(
            cfg, flat, self.slices, served, collective, lambda thread: self.compute_thread(thread, trainer),
            resumed=first and cfg.home == "replicas",
        )  # fmt: skip
        placements: dict[str, DensePlacement] = {"servers": served, "replicas": trainer}
        if "workers" in cfg.homes:
            assert collective is not None
            placements["workers"] = ReplicatedDense(cfg, flat, self.slices, collective, resumed=first)
        return placements

    def share_core(self) -> None:
        """Share the core with other workers by time slots, unless a thread could wait for another within its slot."""
        place = self.boot.place
        self.core_slots = core_slots(None if place is None or self.cfg.compute_threads > 1 else CoreAssignment(*place))

    def worker(self, compute: BatchComputer, dense: Placements) -> WorkerLoop:
        """Make a compute loop for the model computation `compute`."""
        plan = self.cfg.fault_plan()
        slowed = plan.slows(self.boot.index)
        delay = WorkerSlowdown(plan, self.boot.index, sleep=self.client.pause) if slowed else None
        return WorkerLoop(self.client, compute, dense, self.core_slots, delay)

    def compute_thread(self, thread: int, trainer: TrainerDense) -> ComputeThread:
        """Start an additional compute thread on the trainer's replica."""
        compute = BatchComputer(self.cfg, self.dataset)
        made = ComputeThread(compute.flat, thread, trainer)
        worker = self.worker(compute, Placements({"replicas": made}, "replicas"))

        def assist() -> None:
            _settle(self.cfg)
            worker.assist(thread)

        start(made, assist, self.client)
        return made

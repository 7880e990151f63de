"""How a child process becomes a coordinator, a server or a worker of a run.

The launcher hands it one JSON document on standard input (so that the run's key is on no command line and in
no environment), and the coordinator its listening socket.
"""

from __future__ import annotations

import json
import platform
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.checkpoint import beginning
from gbactl.checkpoint import folder as folders
from gbactl.checkpoint.restore import chain_at, dense_state, load_dense, load_shard
from gbactl.checkpoint.saving import saver_of
from gbactl.cluster import frames
from gbactl.cluster.addresses import local
from gbactl.cluster.auth import Peer
from gbactl.cluster.channel import Channel, Hub
from gbactl.cluster.comeback import load_last
from gbactl.cluster.messages import Ack, Hello, Install, Loaded, Ready, Setup, Stop, decode
from gbactl.cluster.reliable import exposed
from gbactl.config import RunConfig, from_dict, to_dict
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.errors import PeerGoneError
from gbactl.faults.plan import FaultPlan
from gbactl.faults.serving import Slowness
from gbactl.kernels.denormals import flush
from gbactl.models import row_width
from gbactl.store.dense import DenseSpec
from gbactl.store.memory import copied
from gbactl.store.optim import OptimizerSpec
from gbactl.store.shard import Shard
from gbactl.store.spec import ShardSpec

INSTALLED = Ack(0, 0)


@dataclass(frozen=True)
class Bootstrap:
    """What a child needs to know."""

    role: str
    index: int
    key: str
    coordinator: str
    run_dir: str
    dataset: str
    config: dict[str, Any]
    listener: int = -1
    place: tuple[int, int, int] | None = None  # see turns.Place
    epoch: int = 0  # above 0: it takes the place of one that is gone

    def dumps(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def loads(cls, line: bytes) -> Bootstrap:
        """Read what dumps() made."""
        return cls(**json.loads(line))

    @property
    def peer(self) -> Peer:
        """This child's identity."""
        return Peer(self.role, self.index, self.epoch)

    @property
    def log_name(self) -> str:
        """Its log in logs/, without the suffix: W1, and W1-2 for its second successor."""
        return f"{self.peer}-{self.epoch}" if self.epoch else str(self.peer)

    @property
    def cfg(self) -> RunConfig:
        """The run's configuration."""
        return from_dict(self.config)


def header(cfg: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """The event log's first record: what a replay needs to know it can have the same bits."""
    from gbactl import __version__
    from gbactl.kernels import load

    return {
        "gbactl": __version__,
        "config": to_dict(cfg),
        "data": dataset.fingerprint,
        "machine": platform.machine(),
        "cpu_flags": _cpu_flags(),
        "torch": _version("torch"),
        "threads": cfg.threads,
        "kernels": load().name,
    }


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return " ".join(f for f in flags if f.startswith(("avx", "sse4", "fma", "amx")))


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def run_coordinator(boot: Bootstrap) -> None:
    """Be the coordinator."""
    from gbactl.cluster.coordinator import Coordinator
    from gbactl.cluster.sockets import SocketHub

    listener = socket.socket(fileno=boot.listener)
    hub: Hub = SocketHub(bytes.fromhex(boot.key), boot.peer, listener=listener)
    hub = exposed(hub, boot.peer, FaultPlan.of(boot.cfg))
    dataset = open_dataset(Path(boot.dataset))
    import sklearn.metrics  # noqa: F401  (takes a second: now, while the workers import torch)

    coordinator = Coordinator(hub, boot.cfg, dataset, Path(boot.run_dir), header(boot.cfg, dataset))
    coordinator.run()
    hub.close()


def optimizer(cfg: RunConfig, lr: float, weight_decay: float) -> OptimizerSpec:
    """The configured optimizer with one rate and decay."""
    o = cfg.optim
    return OptimizerSpec(o.name, lr, (o.beta1, o.beta2), o.eps, weight_decay, o.initial_accumulator)


def shard_spec(cfg: RunConfig, dataset: Dataset, shard: int) -> ShardSpec:
    """What a server holds, its dense slice left out."""
    return spec_of(cfg, dataset.schema.rows, shard)


def spec_of(cfg: RunConfig, rows: int, shard: int) -> ShardSpec:
    """The same for a table of so many rows."""
    row_lr = cfg.optim.lr if cfg.optim.row_lr is None else cfg.optim.row_lr
    return ShardSpec(
        shard, cfg.cluster.servers, rows, row_width(cfg.model), cfg.seed, cfg.model.init_scale,
        optimizer(cfg, row_lr, 0.0), cfg.optim.row_l2, cfg.optim.row_weight_decay,
        dense_optimizer=optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay),
        sparse_divisor=cfg.mode.sparse_divisor,
        row_staleness=row_staleness(cfg),
    )  # fmt: skip


def row_staleness(cfg: RunConfig) -> str:
    """"row" if any phase of the run weighs rows by their own staleness, else "token"."""
    chosen = {getattr(phase.policy_options(), "row_staleness", "token") for phase in cfg.possible}
    return "row" if "row" in chosen else "token"


def run_server(boot: Bootstrap) -> None:
    """Be a server: say hello, get the dense slice if this mode keeps it here, build the shard, serve."""
    from gbactl.cluster.server import Server
    from gbactl.cluster.sockets import SocketHub

    cfg = boot.cfg
    hub = SocketHub(
        bytes.fromhex(boot.key), boot.peer, bind=local(cfg.cluster.bind, cfg.cluster.transport)
    )
    hub.patience = cfg.cluster.start_timeout
    open_hub = exposed(hub, boot.peer, FaultPlan.of(cfg))
    coordinator = open_hub.connect(boot.coordinator)
    serve(open_hub, coordinator, boot, open_dataset(Path(boot.dataset)), Server)
    hub.close()


def serve(hub: Hub, coordinator: Channel, boot: Bootstrap, dataset: Dataset, server_class: Any) -> None:
    """A server's life on any kind of hub."""
    import os

    cfg = boot.cfg
    flush()
    coordinator.send(Hello("server", boot.index, hub.address, os.getpid()))
    spec = shard_spec(cfg, dataset, boot.index)
    run_dir, resumed = Path(boot.run_dir), None if cfg.resume is None else Path(cfg.resume)
    if boot.epoch > 0:
        shard = Shard(beginning.again(run_dir, spec, cfg.model.batch_norm_momentum))
        ready: Loaded | Ready = Loaded(boot.index, load_last(shard, run_dir / folders.NAME, resumed))
    else:
        installed = await_dense(hub, coordinator, spec, cfg)
        if installed is None:
            return
        if cfg.server_returns:
            beginning.keep(run_dir, installed)
        shard, ready = Shard(installed), Ready("server", boot.index)
        if resumed is not None:
            load_shard(shard, chain_at(resumed), cfg.home == "servers")
    saver = saver_of(cfg, dataset.schema, run_dir, shard, coordinator.send)
    coordinator.send(ready)
    server = server_class(hub, coordinator, shard, cfg.train.norms_every, saver)
    server.served_dense = cfg.home == "servers"  # a run that goes on may switch before its first phase
    server.slowness = Slowness.of(FaultPlan.of(cfg), boot.index)
    server.run()


def await_dense(hub: Hub, coordinator: Channel, spec: ShardSpec, cfg: RunConfig) -> ShardSpec | None:
    """Wait for the first dense values, sent by a worker. None when the run ends before."""
    while True:
        for channel, frame in hub.poll(None):
            if frame.kind == frames.CLOSED and channel is coordinator:
                return None
            message = None if frame.kind == frames.CLOSED else decode(frame)
            if isinstance(message, Stop):
                return None
            if isinstance(message, Install):
                values = frame.payload.view(np.float32).copy()
                frame.release()
                channel.send(INSTALLED)
                dense = DenseSpec(message.params, message.buffers, cfg.model.batch_norm_momentum)
                return replace(spec, dense=dense, dense_init=values)


def await_setup(hub: Hub, coordinator: Channel) -> Setup:
    """A worker waits for the servers' addresses. Raises ClusterError when the run ends before."""
    while True:
        for channel, frame in hub.poll(None):
            gone = frame.kind == frames.CLOSED
            message = None if gone else decode(frame)
            if isinstance(message, Setup):
                return message
            if gone and channel is coordinator:
                raise PeerGoneError("The coordinator is gone.")


def install_dense(hub: Hub, servers: list[Channel], params: int, buffers: int, vector: Any) -> None:
    """Send every server its slice of the first dense values and wait until all have it."""
    from gbactl.store.dense import dense_range

    for shard, channel in enumerate(servers):
        low, high = dense_range(len(vector), shard, len(servers))
        channel.send(Install(params, buffers), np.ascontiguousarray(vector[low:high]).view(np.uint8))
    waiting = len(servers)
    while waiting:
        for _, frame in hub.poll(None):
            if frame.kind == frames.CLOSED:
                raise PeerGoneError("A server is gone.")
            waiting -= isinstance(decode(frame), Ack)


def segment_bytes(cfg: RunConfig, dataset: Dataset, dense: int) -> tuple[int, int]:
    """Largest push and largest answer between one worker and one server; (0, 0) over TCP."""
    if cfg.cluster.transport != "shm":
        return 0, 0
    fields, width = dataset.schema.fields, row_width(cfg.model)
    # ids are spread by a modulo: a shard's part exceeds twice its share only in odd data, which goes by wire
    share = 1.0 if cfg.cluster.servers == 1 else min(1.0, 2.0 / cfg.cluster.servers)
    slice_bytes = 4 * (-(-dense // cfg.cluster.servers))
    local_batch = max(phase.local_batch for phase in cfg.possible)
    push = int(local_batch * fields * share) * 4 * (width + 1) + slice_bytes
    answer = int(max(local_batch, cfg.train.eval_batch) * fields * share) * 4 * width + slice_bytes
    return push, answer


def warm_up(computer: Any, dataset: Dataset, cfg: RunConfig) -> None:
    """A successor computes a gradient of nothing before it takes batches: the first one takes far longer."""
    schema, count = dataset.schema, cfg.local_batch
    numeric = np.zeros((count, schema.numeric), np.float32)
    rows = np.zeros((count, schema.fields, row_width(cfg.model)), np.float32)
    computer.gradient(numeric, np.zeros(count, np.float32), rows, 0)


def run_worker(boot: Bootstrap) -> None:
    """Be a worker on sockets."""
    from gbactl.cluster.sockets import SocketHub

    cfg = boot.cfg
    hub = SocketHub(bytes.fromhex(boot.key), boot.peer)
    hub.patience = cfg.cluster.start_timeout
    open_hub = exposed(hub, boot.peer, FaultPlan.of(cfg))
    coordinator = open_hub.connect(boot.coordinator)
    work(open_hub, coordinator, boot, cfg, open_dataset(Path(boot.dataset)))
    hub.close()


def work(
    hub: Hub, coordinator: Channel, boot: Bootstrap, cfg: RunConfig, dataset: Dataset, collective: Any = None
) -> None:
    """A worker's life on any kind of hub: build the model, meet the servers, train until told to stop."""
    import os

    import torch

    from gbactl.cluster.dense import DenseSide, ReplicatedDense, ServedDense, Sides
    from gbactl.cluster.exchange import Exchange
    from gbactl.cluster.lane import Lane, start
    from gbactl.cluster.survival import Survival
    from gbactl.cluster.trainer import TrainerDense
    from gbactl.cluster.turns import Place, join
    from gbactl.cluster.worker import DataSource, Worker
    from gbactl.collective import surviving
    from gbactl.collective.factory import connect
    from gbactl.faults.delay import Delay
    from gbactl.kernels import load
    from gbactl.models import build
    from gbactl.models.compute import GradientComputer
    from gbactl.store.dense import DenseBlock

    torch.set_num_threads(cfg.threads)
    flush()
    kernels = load()
    coordinator.send(Hello("worker", boot.index, "", os.getpid()))
    model = build(cfg.model, dataset.schema.numeric, dataset.schema.fields, cfg.seed)
    computer = GradientComputer(model, precision=cfg.precision)
    flat, homes = computer.flat, cfg.homes
    setup = await_setup(hub, coordinator)
    sizes = segment_bytes(cfg, dataset, flat.size if "servers" in homes else 0)
    servers: list[Channel] = [
        hub.connect(address, sizes, Peer("server", shard)) for shard, address in enumerate(setup.servers)
    ]
    if "servers" in homes and boot.index == 0 and boot.epoch == 0:
        install_dense(hub, servers, flat.params, flat.buffers, flat.initial())
    source = DataSource(dataset, kernels, len(servers), cfg.seed, cfg.train.shuffle)
    exchange = Exchange(hub, coordinator, servers, boot.index, source)

    def make_block(value: Any) -> DenseBlock:
        return DenseBlock(value, flat.dense_spec, optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay))

    if cfg.collects:
        collective = collective or connect(late=boot.epoch > 0)
    if isinstance(collective, surviving.Surviving):
        exchange.on_absent = collective.leave_out
    served = ServedDense(flat, exchange)
    sides: dict[str, DenseSide] = {"servers": served}
    trainer = TrainerDense(flat, exchange, served, lambda: make_block(copied(flat.initial())), collective)
    sides["replicas"] = trainer
    if "workers" in homes:
        block = make_block(flat.initial() if flat.buffers else flat.vector)
        assert collective is not None
        survives = cfg.cluster.lost_worker != "end" and isinstance(collective, surviving.Surviving)
        survival = Survival(collective, exchange, flat, block.value, cfg.train.global_batch) if survives else None
        replica = ReplicatedDense(
            flat, exchange, collective, block, cfg.collective.buckets, cfg.train.norms_every, survival
        )
        if cfg.resume is not None and boot.epoch == 0:
            load_dense(block, dense_state(chain_at(Path(cfg.resume))))
            replica.restored()
        sides["workers"] = replica
    if boot.epoch > 0:
        warm_up(computer, dataset, cfg)
    coordinator.send(Ready("worker", boot.index))
    alone = boot.place is None or cfg.lanes > 1  # one of several threads may wait for another within its turn
    turns = join(None if alone or boot.place is None else Place(*boot.place))

    def make_worker(computer: GradientComputer, dense: Sides) -> Worker:
        delay = Delay(FaultPlan.of(cfg), boot.index)
        return Worker(exchange, computer, dense, kernels, row_width(cfg.model), cfg.seed, turns, delay)

    def more_lanes(thread: int) -> Lane:
        model = build(cfg.model, dataset.schema.numeric, dataset.schema.fields, cfg.seed)
        computer = GradientComputer(model, precision=cfg.precision)
        lane = Lane(computer.flat, thread, trainer)
        worker = make_worker(computer, Sides({"replicas": lane}, "replicas"))

        def assist() -> None:
            torch.set_num_threads(cfg.threads)
            flush()
            worker.assist(thread)

        start(lane, assist, exchange)
        return lane

    trainer.more_lanes = more_lanes
    worker = make_worker(computer, Sides(sides, cfg.home))
    try:
        worker.run(max(phase.mode.prefetch for phase in cfg.possible))
    finally:
        if collective is not None:
            collective.close()

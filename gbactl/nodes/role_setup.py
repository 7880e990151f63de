"""Set-up of a child process as coordinator, server or worker from its start-up document."""

from __future__ import annotations

import platform
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder, identity
from gbactl.checkpoint.restore import chain_at, keep_initial, load_initial, load_shard
from gbactl.config import RunConfig, samples_of, to_dict
from gbactl.config.shard_specs import shard_spec
from gbactl.coordinator.checkpointing import spare_bytes
from gbactl.coordinator.membership import BEAT_SECONDS, start_heartbeat
from gbactl.coordinator.state import JournalState, writes_journal
from gbactl.cpu import vectors
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.faults.slowdown_waits import ServerSlowdown
from gbactl.install import version
from gbactl.kernels.native import flush
from gbactl.server.checkpoint_writer import saver_of
from gbactl.server.shard_server import Server, load_last
from gbactl.store.shard import Shard
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.half_precision_transport import with_half_precision
from gbactl.wire.listener import local
from gbactl.wire.messages import CheckpointLoaded, Hello, Ready
from gbactl.wire.reconnecting import ReconnectingHub
from gbactl.wire.reliable import with_message_faults
from gbactl.wire.startup_document import StartupDocument, await_dense

if TYPE_CHECKING:
    from gbactl.wire.node_connections import SocketHub


def header(cfg: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """First record of the event log: facts that a replay needs to reproduce the run bit by bit."""
    from gbactl import __version__
    from gbactl.kernels import load

    return {
        "gbactl": __version__,
        "config": to_dict(cfg),
        "data": dataset.fingerprint,
        "machine": platform.machine(),
        "cpu_flags": vectors(),
        "torch": version("torch"),
        "threads": cfg.threads,
        "kernels": load().name,
    }


def run_coordinator(boot: StartupDocument) -> None:
    """Run the coordinator of a run in this process."""
    from gbactl.coordinator.message_loop import Coordinator

    cfg = boot.cfg
    listener = socket.socket(fileno=boot.listener)
    hub = with_message_faults(_socket_hub(boot, cfg, listener=listener), boot.peer, cfg.fault_plan())
    dataset = open_dataset(Path(boot.dataset))
    import sklearn.metrics  # noqa: F401  (takes a second: now, while the workers import torch)

    run_dir = Path(boot.run_dir)
    journal = JournalState.of(run_dir, boot.incarnation, *boot.coordinator_failure) if boot.incarnation else None
    coordinator = Coordinator(hub, cfg, dataset, run_dir, header(cfg, dataset), journal)

    def with_clock_time(result: dict[str, Any]) -> None:
        result["time"]["began_at"] = time.time() - coordinator.context.record.seconds

    if cfg.resume is None:  # the clock of a resumed run leaves out the time between its parts
        coordinator.flow.amend_result = with_clock_time
    if coordinator.context.journaled:
        seconds = min(BEAT_SECONDS, cfg.cluster.hang_seconds / 4)
        start_heartbeat(lambda: coordinator.context.send_event("beat", {}), seconds)
    coordinator.run()
    hub.close()


def wrapped_hub(hub: Hub, cfg: RunConfig, me: Peer) -> Hub:
    """Wrap a server's or worker's hub with message faults, half precision and reconnection, as configured."""
    hub = with_half_precision(with_message_faults(hub, me, cfg.fault_plan()), cfg.transport.wire_dtype)
    return ReconnectingHub(hub, first=me.incarnation == 0) if writes_journal(cfg) else hub


def _socket_hub(boot: StartupDocument, cfg: RunConfig, **listening: Any) -> SocketHub:
    """Make the hub of this process's sockets; `listening`: where it listens, if it does."""
    from gbactl.wire.node_connections import SocketHub

    key, encrypt = bytes.fromhex(boot.key), cfg.transport.encrypt
    return SocketHub(key, boot.peer, encrypt=encrypt, silence=cfg.cluster.hang_seconds, **listening)


def run_node(boot: StartupDocument) -> None:
    """Run a server or a worker on sockets, until it is stopped."""
    cfg = boot.cfg
    bind = local(boot.host or cfg.cluster.bind, cfg.cluster.transport) if boot.role == "server" else None
    hub = _socket_hub(boot, cfg, bind=bind)
    hub.patience = cfg.cluster.start_timeout
    open_hub = wrapped_hub(hub, cfg, boot.peer)
    coordinator = open_hub.connect(boot.coordinator)
    run = serve
    if boot.role == "worker":
        from gbactl.nodes.worker_process import work as run  # it imports torch, which takes a second
    run(open_hub, coordinator, boot, open_dataset(Path(boot.dataset)))
    hub.close()


def serve(hub: Hub, coordinator: Channel, boot: StartupDocument, dataset: Dataset) -> None:
    """Run a server on any kind of hub."""
    cfg = boot.cfg
    flush()
    coordinator.send(Hello("server", boot.index, hub.address))
    found = _first_shard(hub, coordinator, boot, dataset) if boot.incarnation == 0 else _shard_again(boot, dataset)
    if found is None:
        return
    shard, ready = found
    spare = spare_bytes(cfg, samples_of(dataset, cfg.train))
    saver = saver_of(cfg, dataset.schema, Path(boot.run_dir), shard, coordinator.send, spare)
    coordinator.send(ready)
    server = Server(hub, coordinator, shard, cfg.train.norms_every, saver)
    server.served_dense = cfg.home != "workers"  # a resumed run may switch before its first phase
    server.slowdown = ServerSlowdown.of(cfg.fault_plan(), boot.index)
    server.run()


def _first_shard(
    hub: Hub, coordinator: Channel, boot: StartupDocument, dataset: Dataset
) -> tuple[Shard, Ready | CheckpointLoaded] | None:
    """Shard at the start of a run: initial, or from the checkpoint to resume from. None if the run ends before that."""
    cfg = boot.cfg
    momentum = cfg.model.batch_norm_momentum
    spec = await_dense(hub, coordinator, shard_spec(cfg, dataset.schema.rows, boot.index), momentum)
    if spec is None:
        return None
    if cfg.server_returns:
        keep_initial(Path(boot.run_dir), spec)
    shard = Shard(spec)
    if cfg.resume is not None:
        load_shard(shard, chain_at(Path(cfg.resume)), cfg.home != "workers")
    return shard, Ready("server", boot.index)


def _shard_again(boot: StartupDocument, dataset: Dataset) -> tuple[Shard, Ready | CheckpointLoaded]:
    """Shard for a failed server's successor, loaded from the newest checkpoint."""
    cfg, run_dir = boot.cfg, Path(boot.run_dir)
    spec = shard_spec(cfg, dataset.schema.rows, boot.index)
    shard = Shard(load_initial(run_dir, spec, cfg.model.batch_norm_momentum))
    resumed = None if cfg.resume is None else Path(cfg.resume)
    own = CheckpointFolder(run_dir / CHECKPOINTS, identity(to_dict(cfg), dataset.fingerprint))
    return shard, CheckpointLoaded(boot.index, load_last(shard, own, resumed))

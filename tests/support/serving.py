"""A real server in a thread, and workers on queues in memory whose ring is broken: it sums for them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from gbactl.server.shard_server import Server
from gbactl.store.dense import DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec
from gbactl.wire.auth import Peer
from gbactl.wire.messages import ShardRelocated, Stop
from gbactl.worker.allreduce_fallback import ServerSums
from gbactl.worker.client import BatchSource, WorkerClient
from tests.support.checkpoint_files import unused_saver
from tests.support.in_memory import MemoryHub

SGD = OptimizerSpec("sgd", 1.0)
SPEC = ShardSpec(0, 1, 10, 3, row_optimizer=SGD, dense=DenseSpec(4), dense_optimizer=SGD)


class Serving:
    """Server 0, which may be lost and come again, and as many ranks as are asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0
        self.network: dict[str, MemoryHub] = {}
        self.coordinator = MemoryHub(self.network, Peer("coordinator", 0))
        self.told: list[Any] = []  # the coordinator's channels to workers
        self.exchanges: list[WorkerClient] = []
        self._serve()

    def _serve(self) -> None:
        self.hub = MemoryHub(self.network, Peer("server", 0, self.epoch))
        own = self.hub.connect("C")
        shard = Shard(SPEC)
        self.server = Server(self.hub, own, shard, 0, unused_saver(shard))
        self._stop = own.other
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()

    def member(self, rank: int, epoch: int = 0) -> ServerSums:
        """A worker, connected."""
        hub = MemoryHub(self.network, Peer("worker", rank, epoch))
        channel = hub.connect("C")
        self.told.append(channel.other)
        source = SimpleNamespace(begin=lambda phase: None)
        exchange = WorkerClient(hub, channel, [hub.connect(self.hub.address)], rank, cast(BatchSource, source))
        exchange.dial = lambda address, peer: hub.connect(address, peer=peer)
        sums = ServerSums(exchange, rank, self.size)
        exchange.start(0)
        self.exchanges.append(exchange)
        return sums

    def lose_server(self) -> None:
        """It is gone with all it had."""
        self._end_server()
        self.hub.close()

    def replace_server(self) -> None:
        """Another one comes, and workers are told."""
        self.epoch += 1
        self._serve()
        for channel in self.told:
            channel.send(ShardRelocated(0, self.hub.address, self.epoch, []))

    def _end_server(self) -> None:
        assert self._stop is not None
        self._stop.send(Stop())
        self._thread.join(10)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """End all threads."""
        for channel in self.told:
            channel.send(Stop())
        for exchange in self.exchanges:
            exchange._thread.join(10)
        self._end_server()

"""Cell of the scale study: the real coordinator without sockets, its nodes emulated in the same process.

Message loop, routing, policy, statistics and the event log (written ahead) are those of a run. A worker that is granted
a batch has it staged on every server after a time drawn from the seed; one worker in eight is four times slower. The
CPU of the emulation is measured by handing the same number of messages to nobody, and is taken off. The overrides are
those of a run; the tag `batches` is the number of batches of each worker.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from timing_only import repeated

from gbactl.coordinator.message_loop import Coordinator
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.launch.hydra_config import compose
from gbactl.nodes.role_setup import header
from gbactl.store.gradient_slice import StepOrder
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import NO_BYTES, Bytes
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    Barrier,
    BeginPhase,
    Granted,
    Hello,
    Inspect,
    Inspected,
    OrderStep,
    Ping,
    Pong,
    Predictions,
    Reached,
    Ready,
    Staged,
    Stop,
    TakeBatch,
    kind_of,
)
from gbactl.wire.node_measurements import TrafficCounter

WAITS = [0.001, 0.002, 0.0, 0.0, 0.0]
SLOW, FACTOR = 8, 4.0  # one worker in SLOW is FACTOR times slower
TINY = (
    "data=synthetic", "data.days=2", "data.rows_per_day=4096", "data.numeric=1", "data.fields=2",
    "data.max_cardinality=100", "train.max_eval_samples=2000", "train.checksum_every=0", "mode.local_batch=1",
    "train.global_batch=${cluster.workers}", "collective=gloo", "cluster.hang_seconds=3600",
    "cluster.start_timeout=3600",
)  # fmt: skip


def reply(message: Any, node: Peer) -> Any:
    """Return a node's answer to a question of the coordinator, None to another message."""
    if isinstance(message, Barrier):
        return Reached(node.index, message.version)
    if isinstance(message, Ping):
        return Pong(node.index, message.beat, {})
    if isinstance(message, Inspect):
        return Inspected(str(node), "", "" if node.role == "worker" else "0", {}, {})
    return None


def predicted(grant: Granted, worker: int) -> tuple[Predictions, Bytes]:
    """Return a worker's answer to a batch of an evaluation, with its payload."""
    payload = np.full(grant.samples, 0.5, np.float32).view(np.uint8)
    return Predictions(grant.phase, worker, grant.batch, grant.samples), payload


def staged(grant: Granted, shard: int, worker: int, version: int = 0) -> Staged:
    """Return a server's message that it has staged its slice of a gradient, computed from parameters of `version`."""
    told = (grant.phase, grant.batch, 0.5, 0.01, 1.0, version, -1 if grant.divisor else version)
    return Staged(shard, worker, *told, 9, 0.0, 0, WAITS)


class Node:
    """Channel to an emulated node."""

    def __init__(self, hub: EmulatedHub, role: str, index: int) -> None:
        self.hub, self.peer = hub, Peer(role, index)

    def send(self, message: Any, payload: Any = None) -> None:
        """Hand a message to the emulated node."""
        self.hub.sent[type(message).__name__] += 1
        answer = self.hub.answers.get(type(message))
        if answer is not None:
            answer(self, message)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class EmulatedHub:
    """Hub whose `poll` returns the next message of an emulated node."""

    address = "C"

    def __init__(self, workers: int, servers: int, ahead: int) -> None:
        self.refused: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.traffic = TrafficCounter()
        self.training, self.gradients, self.version, self.clock, self.received = False, 0, 0, 0.0, 0
        self.began: tuple[float, int, int] | None = None  # CPU, messages received and sent, as training began
        self.ended = (0.0, 0, 0)
        self._random, self._now = random.Random(0), time.process_time()
        self._frames: deque[tuple[Any, Frame]] = deque()
        self._arrivals: list[tuple[float, int, Node, Granted, int]] = []
        self._free = [0.0] * workers  # when a worker has computed all that it was granted
        self.answers: dict[type[Any], Callable[[Any, Any], None]] = {
            Granted: self._granted, OrderStep: self._ordered, BeginPhase: self._begins,
            **dict.fromkeys((Barrier, Ping, Inspect), lambda node, message: self._put(node, reply(message, node.peer))),
            Stop: lambda node, message: self._frames.append((node, Frame(0, b"", NO_BYTES))),
        }  # fmt: skip
        self.servers = [Node(self, "server", index) for index in range(servers)]
        self.workers = [Node(self, "worker", index) for index in range(workers)]
        self._put(Node(self, "launcher", 0), Hello("launcher", 0, ""))
        for node in (*self.servers, *self.workers):
            address = str(node.peer) if node.peer.role == "server" else ""
            self._put(node, Hello(node.peer.role, node.peer.index, address))
            self._put(node, Ready(node.peer.role, node.peer.index))
        for _ in range(1 + ahead):
            for node in self.workers:
                self._put(node, TakeBatch(node.peer.index))

    def poll(self, timeout: float | None) -> list[tuple[Any, Frame]]:
        """Return the next message (Hub.poll)."""
        if not self._frames and self._arrivals:
            self._arrive()
        self.received += 1
        self._now = time.process_time()
        return [self._frames.popleft()] if self._frames else []

    def now(self) -> float:
        """Seconds of CPU of this process at the last message: a clock that other work on the machine does not turn.

        Reading it costs ten times what the clock of a run costs, so it is read in `poll`, whose cost is taken off."""
        return self._now

    def _put(self, node: Any, message: Any, payload: Any = NO_BYTES) -> None:
        self._frames.append((node, Frame(kind_of(message), b"", payload, None, message)))

    def _granted(self, node: Node, grant: Granted) -> None:
        worker = node.peer.index
        if not self.training:
            self._put(node, *predicted(grant, worker))
            self._put(node, TakeBatch(worker))
            return
        self.began = self.began or self._so_far()
        if grant.samples:
            seconds = (FACTOR if worker % SLOW == SLOW - 1 else 1.0) * self._random.uniform(0.9, 1.1)
            self._free[worker] = max(self.clock, self._free[worker]) + seconds
            self.gradients += 1
            heapq.heappush(self._arrivals, (self._free[worker], self.gradients, node, grant, self.version))

    def _arrive(self) -> None:
        """Advance the emulated clock to the next finished gradient, and report it as staged by every server."""
        self.clock, _, node, grant, version = heapq.heappop(self._arrivals)
        self.ended = self._so_far()
        for shard, server in enumerate(self.servers):
            self._put(server, staged(grant, shard, node.peer.index, version))

    def _so_far(self) -> tuple[float, int, int]:
        return time.process_time(), self.received, self.sent.total()

    def _ordered(self, node: Node, order: OrderStep) -> None:
        self.version = order.order.step + 1

    def _begins(self, node: Node, message: BeginPhase) -> None:
        self.training = message.training


def alone(workers: int, servers: int, gradients: int, orders: int) -> float:
    """Seconds of CPU of the emulation by itself: batches granted at once, and `orders` steps ordered."""
    hub = EmulatedHub(workers, servers, 0)
    while hub._frames:
        hub._frames.popleft()
    hub.training, each, ordered = True, 0, 0
    began = time.process_time()
    for number in range(gradients):
        hub.workers[number % workers].send(Granted(0, number, 0, 0, 1, -1, 0.0, 0.0))
        if number >= workers:
            for _ in range(servers):
                hub.poll(0)
        each += orders
        while ordered * gradients < each:
            ordered += 1
            for server in hub.servers:
                server.send(OrderStep(0, StepOrder(ordered, ((number, 1.0),), 1.0, 1.0), False))
    return time.process_time() - began


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return CPU, messages and log bytes of a gradient, and the CPU of start and end."""
    cfg = compose([*TINY, *overrides, f"run_dir={folder}"])
    workers, servers = cfg.cluster.workers, cfg.cluster.servers
    dataset = repeated(open_dataset(prepare(cfg.data)), int(cfg.tracking.tags["batches"]) * workers)
    hub: Any = EmulatedHub(workers, servers, cfg.mode.prefetched_batches)
    coordinator = Coordinator(hub, cfg, dataset, folder, header(cfg, dataset))
    log, began = coordinator.context.log.bytes, time.process_time()
    coordinator.run()
    over, log = time.process_time(), coordinator.context.log.bytes - log
    first, last, n = hub.began, hub.ended, hub.gradients
    own = alone(workers, servers, n, hub.sent["OrderStep"] // servers)
    return {
        "us": 1e6 * (last[0] - first[0] - own) / n, "emulation_us": 1e6 * own / n,
        "messages": (last[1] - first[1] + last[2] - first[2]) / n, "log_bytes": log / n,
        "start_seconds": first[0] - began, "end_seconds": over - last[0], "gradients": n,
    }  # fmt: skip

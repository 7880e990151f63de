"""Dense placement of a trainer: a replica that its Hogwild threads train and that it exchanges with other trainers.

Nothing is allocated before a phase needs it. Then a trainer has the replica with its optimizer state, a gradient per
thread, and two vectors for exchanges. A step costs what the dense optimizer costs. Evaluation reads the servers'
vector: the centre, or the mean of the replicas, settled at the end of the phase.

Compute threads share the replica, each with its own model over the same memory and its own gradient. They never wait
for each other's steps. A foreground exchange stops them all: each holds a lock from the start of a batch to its local
step, and the exchange takes every lock. With batch norm a thread has a copy of the vector, because a forward pass
writes a batch's statistics there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from gbactl.averaging_rules import AveragingRule
from gbactl.collective.base import Collective, ring_item
from gbactl.collective.fault_tolerant import FaultTolerantCollective
from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_block
from gbactl.errors import ClusterError
from gbactl.kernels import codec_of
from gbactl.kernels.base import Floats, aligned_copy
from gbactl.models.flat_parameters import FlatModel
from gbactl.store.dense import DenseBlock
from gbactl.trainer.replica_exchange import (
    AveragingRounds,
    CentreExchange,
    EasgdExchange,
    ExchangeDriver,
    ExchangeKind,
    start_exchanges,
)
from gbactl.trainer.trainer_core import Replica, TrainerCore
from gbactl.wire.messages import AddReplica, ClosedReplicas, CloseReplicas, OpenReplicas, SaveReplica
from gbactl.wire.node_measurements import ALL_REDUCE
from gbactl.worker.client import WorkerClient
from gbactl.worker.dense_placement import DensePlacement, ServedDense, ShardSlices
from gbactl.worker.worker_core import BatchInProgress, scale_by_weight


class ComputeThread(DensePlacement):
    """Dense placement of compute thread number `thread` of a trainer."""

    def __init__(self, flat: FlatModel, thread: int, trainer: TrainerDense) -> None:
        self.flat, self.thread, self.trainer = flat, thread, trainer
        self.computing = threading.RLock()
        self._gradient: Floats = np.empty(0, np.float32)

    def load(self, item: BatchInProgress) -> None:
        """Let the model compute with the replica: in its own memory or, if the model has batch norm, on a copy."""
        if self.trainer.pauses_threads:
            with self.trainer.client.waits.activity(ALL_REDUCE):
                self.computing.acquire()
        self.flat.use_shared(self.trainer.replica.value)

    def finish(self, item: BatchInProgress, row_gradient: Any) -> None:
        """Push the row gradients, apply the local step, and exchange the replica if an exchange is due."""
        trainer, grant = self.trainer, item.grant
        if len(self._gradient) != self.flat.size:
            self._gradient = np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(self._gradient)
        scale_by_weight(self._gradient, item.weight)
        trainer.client.push(item, row_gradient, None)
        trainer.replica.step(self._gradient, grant.divisor, grant.lr_scale, self.thread)
        if trainer.pauses_threads:
            self.computing.release()
        with trainer.client.waits.activity(ALL_REDUCE):
            trainer.on_step()


def start(thread: ComputeThread, work: Callable[[], None], client: WorkerClient) -> None:
    """Run a compute loop in a new thread; an error there ends the whole worker with that error."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            client.fail(error)
            with suppress(RuntimeError):  # where it failed between two batches
                thread.computing.release()  # else an exchange would wait for it for ever

    threading.Thread(target=run, name=f"compute {thread.thread}", daemon=True).start()


class TrainerDense(ComputeThread):
    """Dense parameters of a replica mode: each trainer has its own replica, which its Hogwild threads train.

    The replica has initial values or, if `resumed`, those of the checkpoint that the run resumes from. `collective` is
    None without all-reduce. This object is the first compute thread; `more_threads(thread)` starts another."""

    def __init__(
        self, cfg: RunConfig, flat: FlatModel, slices: ShardSlices, served: ServedDense,
        collective: Collective | None, more_threads: Callable[[int], ComputeThread], resumed: bool,
    ) -> None:  # fmt: skip
        super().__init__(flat, 0, self)
        self.slices, self.client = slices, slices.client

        def replica() -> DenseBlock:
            return dense_block(cfg, aligned_copy(flat.initial()), flat.dense_spec, resumed)

        self.core = TrainerCore(self.client.index, replica)
        self.served, self.collective = served, collective
        self.codec = codec_of(cfg.transport.wire_dtype)
        self.ring_item = ring_item(cfg.collective.name, cfg.transport.wire_dtype)
        self.more_threads = more_threads
        self._threads: list[ComputeThread] = [self]
        self.pauses_threads = False
        self._easgd: EasgdExchange | None = None
        self._driver: ExchangeDriver | None = None
        self._evaluating = False
        self.client.coordinator_handlers[SaveReplica] = self._save

    @property
    def replica(self) -> Replica:
        """Dense replica of this trainer."""
        return self.core.replica

    def handle(self, message: OpenReplicas | CloseReplicas) -> ClosedReplicas | None:
        """Open or close a phase at the coordinator's request. Raises GbactlError if another process has failed."""
        if isinstance(message, OpenReplicas):
            if message.request != self.core.opened:  # a new coordinator repeats what it has no record of
                self.open(message)
        elif message.last:
            return self.close(message)
        elif self._driver is not None:
            self._driver.idle()
        return None

    # -- phases -------------------------------------------------------------------------------------

    def open(self, message: OpenReplicas) -> None:
        """Begin a phase: fetch the replica if it is outdated, and start the exchanges."""
        if self.core.open(message):
            self._fetch()
        rule = self.core.begin(message)
        self._use_threads(message.values["hogwild_threads"])
        self.pauses_threads = self.client.core.threads > 1 and not self.core.pace.shadow
        exchange = self._exchange_of(rule)
        self._driver = start_exchanges(self.core.pace, exchange, self.client.fail, self._threads_paused)

    def _use_threads(self, count: int) -> None:
        self.replica.grow(count)
        while len(self._threads) < count:
            self._threads.append(self.more_threads(len(self._threads)))
        self.client.core.threads = count

    @contextmanager
    def _threads_paused(self) -> Iterator[None]:
        """Context in which all compute threads of the trainer are paused."""
        with ExitStack() as paused:
            for thread in self._threads if self.pauses_threads else []:
                paused.enter_context(thread.computing)
            yield

    def _exchange_of(self, rule: AveragingRule) -> ExchangeKind:
        replica, statistics = self.replica, self.core.statistics
        if rule.centralised:
            if self._easgd is None:
                self._easgd = EasgdExchange(self.client, self.slices.held, self.flat.size)
            item = self.client.hub.traffic.item
            return CentreExchange(replica, rule, statistics, self._easgd, codec=self.codec, item=item)
        if self.collective is None:
            raise ClusterError("This worker is in no group that could average replicas; please report this.")
        if isinstance(self.collective, FaultTolerantCollective):
            self.collective.sum_live_ranks()
        weight = float(self.core.trains)
        return AveragingRounds(
            replica, rule, statistics, self.collective, weight=weight, codec=self.codec, item=self.ring_item
        )

    def on_step(self) -> None:
        assert self._driver is not None
        self._driver.on_step(self.core.iterations)

    def close(self, message: CloseReplicas) -> ClosedReplicas:
        """Exchange until every trainer has finished, then send the servers this replica; may be called again."""
        if self._driver is not None:
            self._driver.close()
            self._driver, self.client.core.threads = None, 1
        if self.core.trains:
            self.slices.give(self.replica.block, lambda step: AddReplica(step, message.request))
        return self.core.closing_message(message.request)

    # -- saving -------------------------------------------------------------------------------------

    def _save(self, message: SaveReplica) -> None:
        """Send the replica to the coordinator in a separate thread, so that the reading thread does not wait."""
        trains = self._driver is not None and self.core.trains
        threading.Thread(target=self._send_replica, args=(message.number, trains), name="save", daemon=True).start()

    def _send_replica(self, number: int, trains: bool) -> None:
        """Send the replica; an error ends the worker, as the coordinator would wait for the replica to the end."""
        try:
            message, values = self.core.packed_replica(number, trains)
            self.client.coordinator.send(message, None if values is None else values.view(np.uint8))
        except BaseException as error:
            self.client.fail(error)

    # -- batches ------------------------------------------------------------------------------------

    def load(self, item: BatchInProgress) -> None:
        """Load the trainer's replica for training, or the servers' dense vector for evaluation."""
        if not item.phase.training:
            if not self._evaluating:
                self.flat.use_own_memory()  # the servers' slices are copied to the model's own memory
            self._evaluating = True
            self.served.load(item)
            return
        if self._evaluating:
            self.served.leave()
            self._evaluating = False
        super().load(item)

    # -- moving -------------------------------------------------------------------------------------

    def leave(self) -> None:
        self.served.leave()
        self._evaluating = False

    def take_over(self, request: int) -> None:
        """Load the servers' dense parameters into this trainer's replica at a mode switch."""
        if isinstance(self.collective, FaultTolerantCollective):
            self.collective.renew(request)  # since it was formed, workers may have joined or summands been set
        self._fetch()
        self.core.took_over()

    def _fetch(self) -> None:
        self.slices.fetch(self.replica.block, self.replica.all_threads_paused())

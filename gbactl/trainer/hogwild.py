"""Compute thread on a trainer's replica (Hogwild), with its own model over the same memory and its own gradient.

Threads never wait for each other's steps. A foreground exchange stops them all: each holds a lock from the
start of a batch to its local step, and the exchange takes every lock. Memory: a gradient per thread, and, with
batch norm, a copy of the vector, because a forward pass writes a batch's statistics there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.models.flat import FlatModel
from gbactl.trainer.replica import Replica
from gbactl.worker.client import WorkerClient
from gbactl.worker.core import BatchInProgress, weigh
from gbactl.worker.dense_params import NOT_HERE


class Trainer(Protocol):
    """Trainer as its compute threads see it."""

    exchange: WorkerClient
    stands: bool

    @property
    def replica(self) -> Replica:
        """Dense replica, with its optimizer state."""

    def stepped(self) -> None:
        """Record an iteration of a thread. Raises the error that ended the exchanges."""


class ComputeThread:
    """Compute thread number `thread`; a DensePlacementState."""

    def __init__(self, flat: FlatModel, thread: int, trainer: Trainer | None = None) -> None:
        self.flat, self.thread, self._trainer = flat, thread, trainer
        self.computing = threading.Lock()
        self._gradient: Floats = np.empty(0, np.float32)

    @property
    def trainer(self) -> Trainer:
        """Trainer that this thread belongs to."""
        assert self._trainer is not None
        return self._trainer

    def load(self, item: BatchInProgress) -> None:
        """Load the replica for a batch: in place, or as a copy with batch norm."""
        if self.trainer.stands:
            self.computing.acquire()
        value = self.trainer.replica.value
        if self.flat.buffers:
            self.flat.load(value)
        else:
            self.flat.use(value)

    def finish(self, item: BatchInProgress, row_gradient: Any) -> None:
        """Push the rows, take the local step, and exchange if it is due."""
        trainer, grant = self.trainer, item.grant
        if len(self._gradient) != self.flat.size:
            self._gradient = np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(self._gradient)
        weigh(self._gradient, item.weight)
        trainer.exchange.push(item, row_gradient, None)
        trainer.replica.step(self._gradient, grant.divisor, grant.lr_scale, self.thread)
        if trainer.stands:
            self.computing.release()
        trainer.stepped()

    def checksum(self) -> tuple[str, str]:
        """Return empty checksums: replicas differ, and the servers' parameters are evaluated and checked."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """See DensePlacementState.packed: replicas take no common steps (see TrainerDense for their checkpoint)."""
        return NOT_HERE

    def leave(self) -> None:
        """See DensePlacementState.leave."""

    def take_over(self, turn: int) -> None:
        """See DensePlacementState.take_over."""

    def hand_over(self) -> None:
        """See DensePlacementState.hand_over: the servers have the parameters."""


def start(each: ComputeThread, work: Callable[[], None], exchange: WorkerClient) -> None:
    """Run a compute loop in a new thread; an error there ends the worker's own loop."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            exchange.fail(error)

    threading.Thread(target=run, name=f"compute {each.thread}", daemon=True).start()

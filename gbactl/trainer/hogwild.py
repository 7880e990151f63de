"""A compute thread on a trainer's replica (Hogwild): its own model over the same memory, its own gradient.

Threads never wait for each other's steps. An exchange in the foreground stops them all: each holds a lock from the
beginning of a batch to its local step, and the exchange takes every lock. Memory: a gradient a thread, and, with
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
from gbactl.worker.client import Exchange
from gbactl.worker.core import Item, weigh
from gbactl.worker.dense_params import NOT_HERE


class Trainer(Protocol):
    """What the threads share."""

    exchange: Exchange
    stands: bool

    @property
    def replica(self) -> Replica:
        """The vector and its optimizer."""

    def stepped(self) -> None:
        """A thread has done an iteration. Raises what ended the exchanges."""


class ComputeThread:
    """Thread number `thread`; a DensePlacement."""

    def __init__(self, flat: FlatModel, thread: int, trainer: Trainer | None = None) -> None:
        self.flat, self.thread, self._trainer = flat, thread, trainer
        self.computing = threading.Lock()
        self._gradient: Floats = np.empty(0, np.float32)

    @property
    def trainer(self) -> Trainer:
        """What this thread is one of."""
        assert self._trainer is not None
        return self._trainer

    def load(self, item: Item) -> None:
        """Compute with the replica where it lies; with batch norm with a copy of it."""
        if self.trainer.stands:
            self.computing.acquire()
        value = self.trainer.replica.value
        if self.flat.buffers:
            self.flat.load(value)
        else:
            self.flat.use(value)

    def finish(self, item: Item, row_gradient: Any) -> None:
        """Push the rows, take the local step, and exchange if it is time."""
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
        """Replicas differ; what is judged and summed up is what the servers hold."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Any] | None:
        """See DensePlacement: a replica is no part of a step of all (see TrainerDense for what is saved of it)."""
        return NOT_HERE

    def leave(self) -> None:
        """See DensePlacement."""

    def take_over(self, turn: int) -> None:
        """See DensePlacement."""

    def hand_over(self) -> None:
        """See DensePlacement: the servers have it."""


def start(each: ComputeThread, work: Callable[[], None], exchange: Exchange) -> None:
    """Run another compute loop in a thread; what goes wrong there ends the worker's."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            exchange.fail(error)

    threading.Thread(target=run, name=f"compute {each.thread}", daemon=True).start()

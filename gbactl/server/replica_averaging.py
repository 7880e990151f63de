"""Server's part in replica averaging: its slice of the EASGD centre, and the mean of the trainers' replicas.

An exchange costs two passes over the slice, in the server's one thread, which saturates first where many trainers
exchange often. Averaging holds a float64 sum of values and moments until the phase is closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gbactl.averaging_rules import make
from gbactl.errors import WireError
from gbactl.kernels.base import Floats
from gbactl.store.shard import Shard
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Ack, AddReplica, AverageReplicas, EasgdCentre, EasgdUpdate


class EasgdHandlers:
    """Handlers of replica messages, which change only the shard's dense slice. Raise WireError for wrong sizes."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._sum: Any = None
        self._count = self._step = 0
        self._request = -1
        #: message -> its handler, called by the server; first those of workers
        self.from_workers: dict[type[Any], Any] = {EasgdUpdate: self._on_update, AddReplica: self._on_replica}
        self.handlers = {**self.from_workers, AverageReplicas: self._average}

    def _on_update(self, channel: Channel, message: EasgdUpdate, frame: Frame) -> None:
        """Send a trainer the centre, then move the centre towards the trainer's replica by the EASGD rule."""
        value = self.shard.dense_block().value
        if frame.payload.size != value.nbytes or not 0.0 <= message.alpha <= 1.0:
            found = f"{frame.payload.size} bytes and alpha {message.alpha}"
            raise WireError(f"an exchange has {found}, not {value.nbytes} bytes and an alpha from 0 to 1")
        out = channel.reserve(value.nbytes)
        np.copyto(out.view(np.float32), value)
        if message.alpha:
            sent = frame.payload.view(np.float32).copy()  # a worker could still write to its memory
            make("easgd", len(value), {"alpha": message.alpha}).exchange(sent, value)
        frame.release()
        channel.send(EasgdCentre(message.request), out)

    def _on_replica(self, channel: Channel, message: AddReplica, frame: Frame) -> None:
        block = self.shard.dense_block()
        expected = block.value.nbytes + sum(moment.nbytes for moment in block.moments.values())
        if frame.payload.size != expected or message.step < 0:
            found = f"{frame.payload.size} bytes and step {message.step}"
            raise WireError(f"a replica has {found}, not {expected} bytes and a step of at least 0")
        if message.request > self._request:
            self._begin(message.request)
        if message.request == self._request:  # otherwise all trainers were asked again since
            self._add(frame.payload.view(np.float32), message.step)
        frame.release()
        channel.send(Ack())

    def _add(self, values: Floats, step: int) -> None:
        self._sum = values.astype(np.float64) if self._sum is None else self._sum + values
        self._count, self._step = self._count + 1, max(self._step, step)

    def _begin(self, request: int) -> None:
        self._sum, self._count, self._step, self._request = None, 0, 0, request

    def _average(self, _: Channel, message: AverageReplicas, frame: Frame) -> None:
        if self._sum is not None:
            block = self.shard.dense_block()
            mean = (self._sum / self._count).astype(np.float32)
            if not message.value:
                mean[: len(block.value)] = block.value
            block.unpack(*self.shard.dense_range, mean, self._step)
        self._begin(self._request)

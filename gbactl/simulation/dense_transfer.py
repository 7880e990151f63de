"""Transfer of dense state between a virtual worker and the servers, fetched or given; one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.network import VirtualChannel
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import AddReplica, DenseState, GetDense, PutDense
from gbactl.worker.core import DenseTransfer

State = tuple[int, Floats]


class DenseTransfers:
    """Transfer of (optimizer steps, float32) of every shard that has a slice, in shard order.

    `servers`: their channels."""

    def __init__(self, servers: Mapping[int, VirtualChannel]) -> None:
        self.servers = servers
        self._transfer = DenseTransfer()
        self._then: Callable[[], None] = lambda: None

    def fetch(self, then: Callable[[list[State]], None]) -> None:
        """Fetch the state of all shards; call `then` with it."""

        def all_here() -> None:
            found = self._transfer.taken().values()
            then([(state.step, frame.payload.view(np.float32)) for state, frame in found])

        self._begin({shard: (GetDense(), None) for shard in self.servers}, all_here)

    def give(
        self, states: list[State], then: Callable[[], None], how: Callable[[int], PutDense | AddReplica] = PutDense
    ) -> None:
        """Give each shard its state (or nothing, if empty); call `then` when all have it."""
        each = zip(self.servers, states, strict=False)
        self._begin({shard: (how(step), values.view(np.uint8)) for shard, (step, values) in each}, then)
        if not states:
            then()

    def _begin(self, asked: dict[int, tuple[Any, Bytes | None]], then: Callable[[], None]) -> None:
        self._then = then
        self._transfer.begin(asked)
        for shard, told in asked.items():
            self.servers[shard].send(*told)

    def came(self, shard: int, message: DenseState, frame: Frame) -> None:
        """Take a server's state."""
        self._answered(shard, (message, frame))

    def acked(self, shard: int) -> None:
        """Record that a server has what it was given."""
        self._answered(shard, None)

    def _answered(self, shard: int, state: tuple[DenseState, Frame] | None) -> None:
        self._transfer.answered(shard, state)
        if self._transfer.done:
            self._then()

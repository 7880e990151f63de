"""A virtual worker's part in moving dense state: asking the servers for theirs, or giving them some; one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.network import VirtualChannel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import DenseState, GetDense, GiveReplica, PutDense

State = tuple[int, Floats]


class Moves:
    """(optimizer steps, float32) of every shard that has a slice, in shard order; `servers` are theirs."""

    def __init__(self, servers: Mapping[int, VirtualChannel]) -> None:
        self.servers = servers
        self._states: dict[int, State] = {}
        self._missing = 0
        self._then: Callable[[], None] = lambda: None

    def fetch(self, then: Callable[[list[State]], None]) -> None:
        """Ask all of them; call `then` with what they hold."""

        def all_here() -> None:
            found = [self._states[shard] for shard in sorted(self._states)]
            self._states.clear()
            then(found)

        self._missing, self._then = len(self.servers), all_here
        for channel in self.servers.values():
            channel.send(GetDense())

    def give(
        self, states: list[State], then: Callable[[], None], how: Callable[[int], PutDense | GiveReplica] = PutDense
    ) -> None:
        """Give each its state (or none of them any); call `then` when all have it."""
        self._missing, self._then = len(states), then
        for channel, (step, values) in zip(self.servers.values(), states, strict=False):
            channel.send(how(step), values.view(np.uint8))
        if not states:
            then()

    def came(self, shard: int, message: DenseState, frame: Frame) -> None:
        """A server's state."""
        self._states[shard] = (message.step, frame.payload.view(np.float32))
        self.acked()

    def acked(self) -> None:
        """A server has answered."""
        self._missing -= 1
        if not self._missing:
            self._then()

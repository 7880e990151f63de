"""Dense slices of the servers, as a worker sees them: their ranges, fetching all, sending all.

Servers that hold only rows have an empty slice and are not asked. Costs the vector with its moments over the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gbactl.store.dense import Cut, DenseBlock, held
from gbactl.wire.messages import AddReplica, PutDense
from gbactl.worker.client import WorkerClient


class ShardSlices:
    """Slices of all servers. `cuts`: [low, high) of each shard, in order of shard."""

    def __init__(self, exchange: WorkerClient, cuts: list[Cut]) -> None:
        self.exchange, self.cuts, self.held = exchange, cuts, held(cuts)

    def fetch(self, block: DenseBlock, still: AbstractContextManager[Any] | None = None) -> None:
        """Fetch the servers' slices into the whole vector `block`, within the context `still`.

        Raises the error that ended the run."""
        found = self.exchange.get_dense(self.held)
        with still or nullcontext():
            for shard, (state, values) in found.items():
                block.unpack(*self.held[shard], values, state.step)

    def give(self, block: DenseBlock, how: Callable[[int], PutDense | AddReplica] = PutDense) -> None:
        """Send the servers the slices of the whole vector `block`, and wait until all have them."""
        parts = {shard: block.packed(*cut) for shard, cut in self.held.items()}
        self.exchange.put_dense(how(block.step), parts)

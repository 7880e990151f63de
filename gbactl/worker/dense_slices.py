"""The servers' slices of the dense vector, seen from a worker: where each lies, getting them all, giving them all.

Servers that hold rows alone have an empty slice and are not asked. Costs the vector with its moments over the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gbactl.store.dense import Cut, DenseBlock, held
from gbactl.wire.messages import GiveReplica, PutDense
from gbactl.worker.client import Exchange


class Slices:
    """`cuts`: [low, high) of each shard, in their order."""

    def __init__(self, exchange: Exchange, cuts: list[Cut]) -> None:
        self.exchange, self.cuts, self.held = exchange, cuts, held(cuts)

    def fetch(self, block: DenseBlock, still: AbstractContextManager[Any] | None = None) -> None:
        """Put into the whole vector `block`, inside `still`, what the servers hold. Raises what ended the run."""
        found = self.exchange.get_dense(self.held)
        with still or nullcontext():
            for shard, (state, values) in found.items():
                block.unpack(*self.held[shard], values, state.step)

    def give(self, block: DenseBlock, how: Callable[[int], PutDense | GiveReplica] = PutDense) -> None:
        """Give the servers what the whole vector `block` holds, and wait until all have it."""
        parts = {shard: block.packed(*cut) for shard, cut in self.held.items()}
        self.exchange.put_dense(how(block.step), parts)

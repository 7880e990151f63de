"""What all workers of a virtual cluster share, and who may hold its dense vector, seen from a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gbactl.faults.plan import FaultPlan
from gbactl.kernels.base import Floats
from gbactl.kernels.halves import Codec
from gbactl.simulation.batch import Item
from gbactl.simulation.clock import Events
from gbactl.simulation.compute import Compute
from gbactl.simulation.cost_model import CostModel
from gbactl.worker.client import Source

if TYPE_CHECKING:
    from gbactl.simulation.trainer import VirtualTrainer
    from gbactl.simulation.worker import VirtualWorker


@dataclass(frozen=True)
class Crew:
    """What all workers of a cluster share. `sides` knows who holds the dense vector."""

    events: Events
    cost: CostModel
    plan: FaultPlan
    compute: Compute
    source: Source
    sides: Sides
    codec: Codec | None = None


class Side(Protocol):
    """Where dense gradients go (see dense.py)."""

    def begin(self, worker: VirtualWorker, item: Item) -> None:
        """A worker begins to compute."""

    def finish(self, worker: VirtualWorker, item: Item) -> None:
        """A worker has computed: push, and free the worker when it may go on."""

    def resume(self, worker: VirtualWorker) -> None:
        """A worker has a batch: if it waits, and the batch is one of the same step, it goes on."""

    def checksum(self) -> tuple[str, str]:
        """(checksum, model sum) of what a worker holds."""

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """See DenseSide in worker/dense_params.py."""

    def leave(self) -> None:
        """Somebody else holds the dense vector from now on."""


class Sides(Protocol):
    """The ways a run has to keep its dense vector (see dense.py)."""

    @property
    def now(self) -> Side:
        """The one in use."""

    def move(self, home: str, index: int) -> list[tuple[int, Floats]]:
        """Nothing is in flight: worker `index` uses another. What the first to call it has to give to the servers:
        (optimizer steps, float32) for every shard; nothing where they have it, or were given it."""

    def take_over(self, states: list[tuple[int, Floats]]) -> None:
        """(optimizer steps, float32) of every shard have come from the servers."""

    def trainer(self, worker: VirtualWorker) -> VirtualTrainer:
        """A worker as a trainer; made when first asked for."""

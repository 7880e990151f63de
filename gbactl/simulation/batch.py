"""A granted batch on its way through a virtual worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from gbactl.data.dataset import Batch
from gbactl.kernels.base import Unique
from gbactl.simulation.server import Answer
from gbactl.wire.messages import BeginPhase, Granted


@dataclass(slots=True)
class Item:
    """Its data, its distinct rows, the shards' answers, and what is said of its gradient."""

    grant: Granted
    phase: BeginPhase
    batch: Batch
    unique: Unique
    pulled: bool = False
    abandoned: bool = False
    missing: int = -1
    answers: dict[int, Answer] = field(default_factory=dict)
    row_versions: dict[int, int] = field(default_factory=dict)
    dense_versions: dict[int, int] = field(default_factory=dict)
    loss: float = 0.0
    began: float = 0.0
    seconds: float = 0.0
    slowdown: float = 1.0

    @property
    def ready(self) -> bool:
        """Every shard has answered."""
        return self.missing == 0

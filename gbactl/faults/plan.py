"""The fault plan: by what factor a worker's batch is slower. Pure, seeded; about 3 us a batch and fault.

Several faults of one worker multiply. Nothing here has a clock or a memory: local and virtual runs of one
seed slow the same batches by the same factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gbactl.faults.choice import choose
from gbactl.faults.draws import key_of
from gbactl.faults.spec import Fault, Hog, parse

if TYPE_CHECKING:
    from gbactl.config import FaultsConfig, RunConfig


class FaultPlan:
    """`seed` is the run's, unless the plan has its own; `workers` is how many there are. Raises ConfigError."""

    def __init__(self, cfg: FaultsConfig, seed: int, workers: int) -> None:
        self.seed = seed if cfg.seed is None else cfg.seed
        self.faults = parse(cfg.plans)
        self.chosen = tuple(
            choose(fault.workers, workers, f"faults.plans[{place}]", self.seed, place)
            for place, fault in enumerate(self.faults)
        )
        self._of: list[list[tuple[Fault, int]]] = [[] for _ in range(workers)]
        for place, (fault, chosen) in enumerate(zip(self.faults, self.chosen, strict=True)):
            for worker in chosen if not isinstance(fault, Hog) else ():
                self._of[worker].append((fault.of(worker), key_of(self.seed, place, worker)))

    @classmethod
    def of(cls, cfg: RunConfig) -> FaultPlan:
        """The plan of a run."""
        return cls(cfg.faults, cfg.seed, cfg.processes)

    def factor(self, worker: int, turn: int, seconds: float) -> float:
        """How many times slower, at least 1, the worker's batch `turn` is that begins `seconds` into training.

        `turn` counts the worker's own batches with samples from 0 through the whole run; evaluation is not
        slowed.
        """
        product = 1.0
        for fault, key in self._of[worker]:
            product *= fault.at(key, turn, seconds)
        return product

    def slows(self, worker: int) -> bool:
        """Whether the worker's factor can be other than 1."""
        return bool(self._of[worker])

    @property
    def slowed(self) -> frozenset[int]:
        """Workers with a factor."""
        return frozenset(worker for worker, faults in enumerate(self._of) if faults)

    @property
    def hogs(self) -> list[tuple[Hog, tuple[int, ...]]]:
        """Competing processes, each with the workers it is meant for (none where it names cores)."""
        pairs = zip(self.faults, self.chosen, strict=True)
        return [(fault, chosen) for fault, chosen in pairs if isinstance(fault, Hog)]

    def told(self) -> list[dict[str, Any]]:
        """The plans with their defaults and the workers that were chosen."""
        pairs = zip(self.faults, self.chosen, strict=True)
        return [{**f.told(), **({} if f.workers is None else {"workers": list(c)})} for f, c in pairs]

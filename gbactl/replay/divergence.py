"""What a replay says when it does not come out as logged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gbactl.errors import GbactlError

MOST_NAMED = 8


@dataclass(frozen=True)
class Divergence:
    """The first difference: `kind` is decision (the policy), bits (a checksum) or accounting. `shard` -1: all."""

    kind: str
    step: int
    text: str
    shard: int = -1
    workers: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain containers."""
        return {**asdict(self), "workers": list(self.workers), "batches": list(self.batches)}


class DivergenceError(GbactlError):
    """The replay is not the run. Exit code 1."""

    def __init__(self, found: Divergence) -> None:
        super().__init__(found.text)
        self.found = found


def named(gradients: list[tuple[int, int]]) -> str:
    """`W0 batch 3, W2 batch 5` of (worker, batch) pairs, the first few of them."""
    text = ", ".join(f"W{worker} batch {batch}" for worker, batch in gradients[:MOST_NAMED])
    more = len(gradients) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text or "no gradient"

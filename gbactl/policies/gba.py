"""Policy of `gba`: M announced gradients make a step, each weighted by its token staleness (following GBA).

M gradients have together the global batch size of `sync`. The weight is f(token staleness): 1 up to `iota` steps, and
beyond that less, by the option `decay`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from gbactl.checked_dataclasses import NumberOrInfinity, Share
from gbactl.policies.async_and_bsp import BufferedPolicy
from gbactl.policies.policy import PolicyOptions

DECAYS: dict[str, Callable[[float, float], float]] = {  # (staleness beyond iota, decay_rate) -> weight
    "hard": lambda excess, _: 1.0 if excess <= 0 else 0.0,
    "inverse": lambda excess, _: 1.0 / (1.0 + max(0.0, excess)),
    "exp": lambda excess, rate: float(rate ** max(0.0, excess)),
}


@dataclass(frozen=True)
class GbaOptions(PolicyOptions):
    """Options of `gba`: `decay` of weights past `iota` steps of staleness, at `decay_rate`; `divisor` of a step.

    `divisor`: M, the number of gradients of a step, or accepted, the sum of their weights.
    `row_staleness` token: rows have their gradient's weight; row: a weight by the steps that touched them since the
    pull."""

    decay: Literal["hard", "inverse", "exp"] = "hard"
    iota: NumberOrInfinity = 3
    decay_rate: Share = 0.5
    divisor: Literal["M", "accepted"] = "M"
    row_staleness: Literal["token", "row"] = "token"


class GbaPolicy(BufferedPolicy):
    """Policy of `gba`: a step per global batch of gradients, each weighted by the staleness of its token."""

    options: GbaOptions
    number: ClassVar[int | None] = 2
    Options: ClassVar[type[PolicyOptions]] = GbaOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        self._factors: list[float] = []

    @property
    def divides_by_weights(self) -> bool:
        """Whether a step is divided by the sum of its weights instead of the number of its gradients."""
        return self.options.divisor == "accepted"

    def factor(self, token_staleness: int) -> float:
        """Compute the weight of a gradient, from 0 to 1, from its token staleness, with the configured decay."""
        o = self.options
        return DECAYS[o.decay](token_staleness - o.iota, o.decay_rate)

    def row_factors(self, token_staleness: int) -> tuple[float, ...]:
        """Compute the weights of rows by their own staleness, 0 to `token_staleness`; () unless row_staleness=row."""
        if self.options.row_staleness == "token":
            return ()
        while len(self._factors) <= token_staleness:
            self._factors.append(self.factor(len(self._factors)))
        return tuple(self._factors[: token_staleness + 1])

"""Mode `pairs`: every `size` gradients that arrived make one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gbactl.checked_dataclasses import Count
from gbactl.policies.async_and_bsp import BufferedPolicy
from gbactl.policies.policy import PolicyOptions


@dataclass(frozen=True)
class PairsOptions(PolicyOptions):
    """Options of `pairs`. `size`: number of gradients that make a step."""

    size: Count = 2


class PairsPolicy(BufferedPolicy):
    """Policy of `pairs`."""

    Options: ClassVar[type[PolicyOptions]] = PairsOptions

    def buffer_size(self) -> int:
        """Return the number of gradients that make a step."""
        assert isinstance(self.options, PairsOptions)
        return self.options.size

    def factor(self, token_staleness: int) -> float:
        """Return the weight of a gradient: 1, whatever its staleness."""
        return 1.0

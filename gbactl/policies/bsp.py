"""Policy of `bsp`: every M announced gradients make one step, whatever their staleness."""

from __future__ import annotations

from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.policy import register


@register("bsp", 3)
class BspPolicy(BufferedPolicy):
    """Policy of `bsp`: a buffer of M gradients that all count in full."""

    def buffer_size(self) -> int:
        """See BufferedPolicy.buffer_size: M = G / B_a."""
        return self.phase.gradients_per_step

    def factor(self, token_staleness: int) -> float:
        """See BufferedPolicy.factor: always 1."""
        return 1.0

"""`bsp`: every M gradients that arrived make one step, whatever their staleness."""

from __future__ import annotations

from gbactl.policies.base import register
from gbactl.policies.buffered import BufferedPolicy


@register("bsp", 3)
class BspPolicy(BufferedPolicy):
    """A buffer of M gradients that all count in full."""

    def buffer_size(self) -> int:
        """M = G / B_a."""
        return self.phase.gradients_per_step

    def factor(self, token_staleness: int) -> float:
        """Always 1."""
        return 1.0

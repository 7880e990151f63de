"""`gba`: global batch gradient aggregation, following the idea of GBA.

Every M announced gradients make one optimizer step of the synchronous global batch size, each weighted
by how stale its token is.
"""

from __future__ import annotations

from gbactl.policies.base import register
from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.decay import weight


@register("gba")
class GbaPolicy(BufferedPolicy):
    """A buffer of M gradients, weighted by f(token staleness)."""

    def buffer_size(self) -> int:
        """M = G / B_a."""
        return self.phase.gradients_per_step

    def factor(self, token_staleness: int) -> float:
        """f(staleness): hard, inverse or exp."""
        return weight(token_staleness, self.options)

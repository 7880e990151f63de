"""Policy of `bsp`: every M announced gradients make one step, whatever their staleness."""

from __future__ import annotations

from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.policy import register


@register("bsp", 3)
class BspPolicy(BufferedPolicy):
    """Policy of `bsp`: a buffer of M gradients that all count in full."""

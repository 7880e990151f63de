"""Policy of `bsp`: no barrier; a step closes when a global batch of gradients has arrived, whatever their staleness."""

from __future__ import annotations

from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.policy import register


@register("bsp", 3)
class BspPolicy(BufferedPolicy):
    """Policy of `bsp`: like `gba` without staleness weights; steps need no barrier, despite the mode's name."""

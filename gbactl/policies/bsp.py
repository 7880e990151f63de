"""Policy of `bsp`: a step takes the gradients of one global batch in order of arrival, whatever their staleness."""

from __future__ import annotations

from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.policy import register


@register("bsp", 3)
class BspPolicy(BufferedPolicy):
    """Policy of `bsp`: a buffer of the gradients of one global batch, which all have weight 1."""

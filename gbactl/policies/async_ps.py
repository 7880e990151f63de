"""Policy of `async`: each gradient is applied by itself, on arrival."""

from __future__ import annotations

from typing import ClassVar

from gbactl.policies.buffered import BufferedPolicy
from gbactl.policies.policy import register


@register("async", 1)
class AsyncPolicy(BufferedPolicy):
    """Policy of `async`: every gradient is a step, with weight 1."""

    global_step: ClassVar[bool] = False

    def buffer_size(self) -> int:
        """Return the number of gradients that make a step: 1."""
        return 1

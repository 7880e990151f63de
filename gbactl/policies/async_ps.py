"""`async`: each gradient by itself, on arrival."""

from __future__ import annotations

from typing import ClassVar

from gbactl.policies.base import register
from gbactl.policies.buffered import BufferedPolicy


@register("async", 1)
class AsyncPolicy(BufferedPolicy):
    """A buffer of one gradient that always counts in full."""

    global_step: ClassVar[bool] = False

    def buffer_size(self) -> int:
        """One."""
        return 1

    def factor(self, token_staleness: int) -> float:
        """Always 1."""
        return 1.0

"""`async`: each gradient by itself, on arrival."""

from __future__ import annotations

from gbactl.policies.base import register
from gbactl.policies.buffered import BufferedPolicy


@register("async")
class AsyncPolicy(BufferedPolicy):
    """A buffer of one gradient that always counts in full."""

    def buffer_size(self) -> int:
        """One."""
        return 1

    def factor(self, token_staleness: int) -> float:
        """Always 1."""
        return 1.0

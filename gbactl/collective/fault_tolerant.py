"""Interfaces of a collective whose sums continue when a rank fails, in two variants.

Dealt summands: summands are assigned to the live ranks. As `sync` sums in batch order, a summand is a batch's place in
its step, whoever computes it. Own summands: every rank has its own, as in an average of replicas; those of failed ranks
are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gbactl.collective.base import Moved

NAME = "shm"  # collective=


class InterruptedSum(Exception):
    """Raised by an interrupted wait for a sum; summands given before are kept."""


class FaultTolerantCollective(ABC):
    """Collective that continues when a rank fails. `wanted` is polled while a wait blocks: whether to interrupt it."""

    wanted: Callable[[], bool]
    moved: Moved  # see Collective

    @abstractmethod
    def deal(self, number: int, part: int | None, parts: int, after: int) -> None:
        """Set the summand of the following starts: `part` (None: none) of round `number`, which has `parts` summands.

        The round belongs to the step that rows contain from version `after` on. Rounds of a generation are numbered
        from 1, one after the other, the same on every rank. A summand may be given twice, with the same numbers. A wait
        sums them in order."""

    @abstractmethod
    def without_the_dead(self) -> None:
        """Let every rank give its own summand in every round until the next `deal` or `renew`.

        A sum is over the live ranks. The summand of a rank that fails counts for all ranks or for none: whether it had
        been given."""

    @abstractmethod
    def leave_out(self, rank: int) -> None:
        """Stop waiting for a failed rank: for its summands, and for its reads of others'."""

    @abstractmethod
    def interrupt(self) -> None:
        """Wake a blocked wait, so that it calls `wanted` now. Callable from another thread."""

    @abstractmethod
    def renew(self, generation: int) -> None:
        """Start a new generation with all ranks that are present, also new ones, and nothing dealt.

        Nothing may be in flight."""


class RingFallback(FaultTolerantCollective):
    """Fallback of a ring (see fallback.py), which sums as a Collective does.

    It also records every round while the ring still sums."""

    rank: int
    size: int

    @abstractmethod
    def start(self, name: str, buffer: Any) -> Any:
        """See Collective.start; called before the ring changes the buffer."""

    @abstractmethod
    def wait(self, handle: Any) -> None:
        """See Collective.wait; called where the ring is broken."""

    @abstractmethod
    def passed(self, handle: Any) -> bool:
        """Record that the ring has put the sum into the buffer, and return whether it counts.

        It does not where other ranks were told before that this rank lacks it: then all take another sum."""

    @abstractmethod
    def fall(self) -> None:
        """Take over from a ring that is broken, or that this rank never had. Callable from any thread."""

    @abstractmethod
    def close(self) -> None:
        """See Collective.close."""

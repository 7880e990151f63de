"""What a collective offers whose sums go on when a rank dies: a round's parts are dealt to whoever lives.

Following the rule that `sync` sums in batch order: a part is a batch's place in its step, whoever computes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

NAME = "shm"  # collective=


class InterruptedSum(Exception):
    """A wait was broken off: there is something else to do first. What was put in stays."""


class Surviving(ABC):
    """`wanted` is asked while a wait blocks: whether it is to be broken off."""

    wanted: Callable[[], bool]

    @abstractmethod
    def deal(self, number: int, part: int | None, parts: int) -> None:
        """What is started from now on is part `part` (None: no part) of round `number`, which has `parts` parts.

        Rounds of a generation are numbered from 1, one after the other, the same on every rank; a part may be put in
        twice, with the same numbers. A wait sums the parts in their order."""

    @abstractmethod
    def leave_out(self, rank: int) -> None:
        """A rank is gone: nobody waits for what it has yet to read."""

    @abstractmethod
    def interrupt(self) -> None:
        """From another thread: ask `wanted` now."""

    @abstractmethod
    def renew(self, generation: int) -> None:
        """Nothing is in flight: begin anew, nothing dealt, with all ranks that are there, some of which may be new."""

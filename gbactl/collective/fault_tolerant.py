"""What a collective offers whose sums go on when a rank dies: of two kinds, as a run's phases need them.

Parts that are dealt to whoever lives, following the rule that `sync` sums in batch order: a part is a batch's place in
its step, whoever computes it. Or a part of every rank's own, as where replicas are averaged: then the dead are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gbactl.collective.base import Moved

NAME = "shm"  # collective=


class InterruptedSum(Exception):
    """A wait was broken off: there is something else to do first. What was put in stays."""


class Surviving(ABC):
    """`wanted` is asked while a wait blocks: whether it is to be broken off."""

    wanted: Callable[[], bool]
    moved: Moved  # see Collective

    @abstractmethod
    def deal(self, number: int, part: int | None, parts: int, after: int) -> None:
        """What is started from now on is part `part` (None: no part) of round `number`, which has `parts` parts and
        belongs to the step that rows have taken from version `after` on.

        Rounds of a generation are numbered from 1, one after the other, the same on every rank; a part may be put in
        twice, with the same numbers. A wait sums the parts in their order."""

    @abstractmethod
    def without_the_dead(self) -> None:
        """To the next `deal` or `renew` every rank puts in a part of its own in every round, and a sum is over those
        who live. The part of a rank that dies counts for all ranks or for none: whether it had put it in."""

    @abstractmethod
    def leave_out(self, rank: int) -> None:
        """A rank is gone: nobody waits for what it has yet to read, or to put in."""

    @abstractmethod
    def interrupt(self) -> None:
        """From another thread: ask `wanted` now."""

    @abstractmethod
    def renew(self, generation: int) -> None:
        """Nothing is in flight: begin anew, nothing dealt, with all ranks that are there, some of which may be new."""


class Beneath(Surviving):
    """What a ring that may break has under it (see fallback.py): sums as a Collective does, and hears of every round
    while the ring still sums."""

    rank: int
    size: int

    @abstractmethod
    def start(self, name: str, buffer: Any) -> Any:
        """See Collective.start; the ring has not begun to change the buffer."""

    @abstractmethod
    def wait(self, handle: Any) -> None:
        """See Collective.wait: the ring is broken."""

    @abstractmethod
    def passed(self, handle: Any) -> bool:
        """The ring has put the sum into the buffer. Whether that counts: where others were told before that this rank
        has it not, all take another one."""

    @abstractmethod
    def fall(self) -> None:
        """From any thread: the ring is broken, or this rank never had one."""

    @abstractmethod
    def close(self) -> None:
        """See Collective.close."""

"""The batches that a worker was granted and has not begun, in the order in which it computes them."""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar

from gbactl.wire.messages import BeginPhase, Granted


class Upcome(Protocol):
    """What is known of a granted batch."""

    @property
    def grant(self) -> Granted:
        """What the coordinator said of it."""

    @property
    def phase(self) -> BeginPhase:
        """The phase it belongs to."""


T = TypeVar("T", bound=Upcome)


class Upcoming(deque[T]):
    """In the order of their grants; but a batch of a step goes before those of later steps where workers hold the
    dense part: there it was a dead worker's, and the others wait for it."""

    def admit(self, item: T) -> bool:
        """Put a granted batch in its place; whether that is before others."""
        if not item.phase.served_dense and item.phase.training:
            later = (n for n, other in enumerate(self) if other.grant.token > item.grant.token)
            place = next(later, None)
            if place is not None:
                self.insert(place, item)
                return True
        self.append(item)
        return False

    def has_of(self, step: int) -> bool:
        """Whether the next batch is one of a step (or of one before it) that this worker is in already."""
        return bool(self) and self[0].phase.training and self[0].grant.token <= step

    def give_up(self, phase: int) -> list[T]:
        """Take out what belongs to a phase."""
        given_up = [item for item in self if item.phase.number == phase]
        for item in given_up:
            self.remove(item)
        return given_up

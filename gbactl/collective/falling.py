"""A ring (Horovod, Gloo) that may break, with shared memory under it: when a rank dies the sums go on there.

Every rank also lays its part into shared memory before the ring takes it: one copy of the vector a step. As soon as
a rank is gone the ring is used no more, to the end of the run. The last sum of the ring may have reached some ranks
and not others, who then sum in another order: so where workers hold the same dense parameters, they are made the same
again (see cluster/recovery.py); replicas differ anyway. What the dead one had laid counts for either. Linux, one host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gbactl.collective.base import Collective
from gbactl.collective.meeting import Meeting
from gbactl.collective.shm import SharedMemoryCollective, SharedMemoryMeeting
from gbactl.collective.surviving import Surviving
from gbactl.errors import ClusterError

log = logging.getLogger(__name__)


class Ring(Collective, Protocol):
    """A collective whose waits can be given up."""

    def abandon(self) -> None:
        """From any thread: somebody is gone, and waits that do not end soon are to fail."""


@dataclass(frozen=True)
class _Handle:
    ring: Any
    slots: Any


class FallingCollective(Surviving):
    """`ring` is None for a rank that comes when others have left it."""

    def __init__(self, ring: Ring | None, slots: SharedMemoryCollective) -> None:
        self.ring, self.slots = ring, slots
        self.rank, self.size = slots.rank, slots.size
        self._room = True

    @property
    def wanted(self) -> Callable[[], bool]:
        """See Surviving."""
        return self.slots.wanted

    @wanted.setter
    def wanted(self, wanted: Callable[[], bool]) -> None:
        self.slots.wanted = wanted

    def deal(self, number: int, part: int | None, parts: int) -> None:
        """See Surviving."""
        self.slots.deal(number, part, parts)

    def without_the_dead(self) -> None:
        """See Surviving."""
        self.slots.without_the_dead()

    def leave_out(self, rank: int) -> None:
        """See Surviving."""
        self._break(f"rank {rank} is gone")
        self.slots.leave_out(rank)

    def interrupt(self) -> None:
        """See Surviving."""
        self.slots.interrupt()

    def renew(self, generation: int) -> None:
        """See Surviving."""
        self.slots.renew(generation)

    def start(self, name: str, buffer: Any) -> _Handle:
        """See Collective.start."""
        slots, ring = self._laid(name, buffer), None
        if self.ring is not None:
            try:
                ring = self.ring.start(name, buffer)
            except ClusterError as error:
                self._break(str(error))
        return _Handle(ring, slots)

    def _laid(self, name: str, buffer: Any) -> Any:
        """The part in shared memory; None where there is no room for it, and then a death ends the run."""
        if not self._room:
            return None
        try:
            return self.slots.start(name, buffer)
        except ClusterError as error:
            if self.ring is None:
                raise
            log.warning("%s If a worker dies the run will end.", error)
            self._room = False
            return None

    def wait(self, handle: _Handle) -> None:
        """See Collective.wait."""
        ring = self.ring
        if handle.ring is not None and ring is not None:
            try:
                ring.wait(handle.ring)
                if handle.slots is not None:
                    self.slots.passed(handle.slots)
                return
            except ClusterError as error:
                if handle.slots is None:
                    raise
                self._break(str(error))
        if handle.slots is None:
            raise ClusterError(f"rank {self.rank} cannot go on: its ring is broken, and there is no room beside it.")
        self.slots.wait(handle.slots)

    def _break(self, why: str) -> None:
        ring, self.ring = self.ring, None
        if ring is not None:
            log.warning("%s: from now on this run sums in shared memory", why)
            ring.abandon()

    def close(self) -> None:
        """See Collective.close. A broken ring is left as it is: its end could wait for the dead."""
        if self.ring is not None:
            self.ring.close()
        self.slots.close()


class FallingMeeting(Meeting):
    """Both meeting points in one."""

    def __init__(self, ring: Meeting, slots: SharedMemoryMeeting) -> None:
        self.ring, self.slots = ring, slots

    def turned_away(self) -> int:
        """See Meeting.turned_away."""
        return self.ring.turned_away()

    def environment(self, rank: int) -> dict[str, str]:
        """See Meeting.environment."""
        return {**self.slots.environment(rank), **self.ring.environment(rank)}

    def close(self) -> None:
        """See Meeting.close."""
        self.ring.close()
        self.slots.close()

"""A ring (Horovod, Gloo) that may break, with something under it: when a rank dies the sums go on there.

Every rank also lays its part down before the ring takes it: one copy of the vector a step. As soon as a rank is gone
the ring is used no more, to the end of the run. Under it is shared memory on one host (shared_memory.py): there the
last sum of the ring may have reached some ranks and not others, who then sum in another order: so where workers hold
the same dense parameters, they are made the same again (see coordinator/worker_recovery.py); replicas differ anyway.
What the dead one had laid counts for either. On several hosts it is the first server (worker/sum_fallback.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gbactl.collective.base import Collective, Moved
from gbactl.collective.fault_tolerant import Beneath, Surviving
from gbactl.collective.rendezvous_base import Meeting
from gbactl.errors import ClusterError

log = logging.getLogger(__name__)


class Ring(Collective, Protocol):
    """A collective whose waits can be given up."""

    def abandon(self) -> None:
        """From any thread: somebody is gone, and waits that do not end soon are to fail."""


@dataclass(frozen=True)
class _Handle:
    ring: Ring | None
    of_ring: Any
    laid: Any


class FallingCollective(Surviving):
    """`ring` is None for a rank that comes when others have left it."""

    def __init__(self, ring: Ring | None, under: Beneath) -> None:
        self.ring, self.under = ring, under
        self.rank, self.size = under.rank, under.size
        self._room = True
        if ring is None:
            under.fall()

    @property
    def wanted(self) -> Callable[[], bool]:
        """See Surviving."""
        return self.under.wanted

    @wanted.setter
    def wanted(self, wanted: Callable[[], bool]) -> None:
        self.under.wanted = wanted

    @property
    def moved(self) -> Moved:
        """See Collective: what the ring sends, and what is laid down beside it."""
        return self.under.moved

    @moved.setter
    def moved(self, moved: Moved) -> None:
        self.under.moved = moved
        if self.ring is not None:
            self.ring.moved = moved

    def deal(self, number: int, part: int | None, parts: int, after: int) -> None:
        """See Surviving."""
        self.under.deal(number, part, parts, after)

    def without_the_dead(self) -> None:
        """See Surviving."""
        self.under.without_the_dead()

    def leave_out(self, rank: int) -> None:
        """See Surviving."""
        self._break(f"rank {rank} is gone")
        self.under.leave_out(rank)

    def fall(self) -> None:
        """From any thread: the ring of another rank is broken, and this one's need not fail by itself."""
        self._break("another rank's ring is broken")

    def interrupt(self) -> None:
        """See Surviving."""
        self.under.interrupt()

    def renew(self, generation: int) -> None:
        """See Surviving."""
        self.under.renew(generation)

    def start(self, name: str, buffer: Any) -> _Handle:
        """See Collective.start."""
        laid, ring, of_ring = self._laid(name, buffer), self.ring, None
        if ring is not None:
            try:
                of_ring = ring.start(name, buffer)
            except ClusterError as error:
                ring = None
                self._break(str(error))
        return _Handle(ring, of_ring, laid)

    def _laid(self, name: str, buffer: Any) -> Any:
        """The part beside the ring; None where there is no room for it, and then a death ends the run."""
        if not self._room:
            return None
        try:
            return self.under.start(name, buffer)
        except ClusterError as error:
            if self.ring is None:
                raise
            log.warning("%s If a worker dies the run will end.", error)
            self._room = False
            return None

    def wait(self, handle: _Handle) -> None:
        """See Collective.wait. One that began in the ring is waited for there, if not for long: it may write."""
        if handle.ring is not None:
            try:
                handle.ring.wait(handle.of_ring)
                if handle.laid is None or self.under.passed(handle.laid):
                    return
            except ClusterError as error:
                if handle.laid is None:
                    raise
                self._break(str(error))
        if handle.laid is None:
            raise ClusterError(f"rank {self.rank} cannot go on: its ring is broken, and there is no room beside it.")
        self.under.wait(handle.laid)

    def _break(self, why: str) -> None:
        ring, self.ring = self.ring, None
        if ring is not None:
            log.warning("%s: from now on this run sums without its ring", why)
            ring.abandon()
            self.under.fall()

    def close(self) -> None:
        """See Collective.close. A broken ring is left as it is: its end could wait for the dead."""
        if self.ring is not None:
            self.ring.close()
        self.under.close()


class FallingMeeting(Meeting):
    """Both meeting points in one."""

    def __init__(self, ring: Meeting, under: Meeting) -> None:
        self.ring, self.under = ring, under

    def turned_away(self) -> int:
        """See Meeting.turned_away."""
        return self.ring.turned_away()

    def environment(self, rank: int) -> dict[str, str]:
        """See Meeting.environment."""
        return {**self.under.environment(rank), **self.ring.environment(rank)}

    def close(self) -> None:
        """See Meeting.close."""
        self.ring.close()
        self.under.close()

"""Ring all-reduce (Horovod, Gloo) with a fallback that computes the sums once a rank has failed.

Every rank also gives its summand to the fallback before the ring takes it: one copy of the vector a step. Once a rank
has failed, the ring is not used again in this run. On one host the fallback is shared memory (shared_memory.py). There
the ring's last sum may have reached some ranks only, while the others sum in another order. Workers that hold the same
dense parameters are therefore made equal again (see coordinator/failure_recovery.py); replicas differ anyway. A summand
that the failed rank had already given counts in either case. On several hosts the fallback is the first server
(worker/allreduce_fallback.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gbactl.collective.base import FaultTolerantCollective, InterruptibleRing, OnBytesSent, Rendezvous, RingFallback
from gbactl.errors import ClusterError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Handle:
    ring: InterruptibleRing | None
    of_ring: Any
    in_fallback: Any


class CollectiveWithFallback(FaultTolerantCollective):
    """Ring all-reduce with a fallback. `ring` is None for a rank that joins after the ring was broken."""

    def __init__(self, ring: InterruptibleRing | None, fallback: RingFallback) -> None:
        self.ring, self.fallback = ring, fallback
        self.rank, self.size = fallback.rank, fallback.size
        self._fallback_has_memory = True
        if ring is None:
            fallback.fall_back()

    @property
    def wanted(self) -> Callable[[], bool]:
        return self.fallback.wanted

    @wanted.setter
    def wanted(self, wanted: Callable[[], bool]) -> None:
        self.fallback.wanted = wanted

    @property
    def on_bytes_sent(self) -> OnBytesSent:
        """Callback that counts the bytes sent by the ring and by its fallback."""
        return self.fallback.on_bytes_sent

    @on_bytes_sent.setter
    def on_bytes_sent(self, callback: OnBytesSent) -> None:
        self.fallback.on_bytes_sent = callback
        if self.ring is not None:
            self.ring.on_bytes_sent = callback

    def assign_summand(self, number: int, part: int | None, parts: int, after: int) -> None:
        self.fallback.assign_summand(number, part, parts, after)

    def sum_live_ranks(self) -> None:
        self.fallback.sum_live_ranks()

    def leave_out(self, rank: int) -> None:
        self._leave_ring(f"rank {rank} is gone")
        self.fallback.leave_out(rank)

    def fall_back(self) -> None:
        """Leave the ring because another rank has found it broken. Callable from any thread."""
        self._leave_ring("another rank's ring is broken")

    def interrupt(self) -> None:
        self.fallback.interrupt()

    def renew(self, generation: int) -> None:
        self.fallback.renew(generation)

    def start(self, name: str, buffer: Any) -> _Handle:
        in_fallback, ring, of_ring = self._start_fallback(name, buffer), self.ring, None
        if ring is not None:
            try:
                of_ring = ring.start(name, buffer)
            except ClusterError as error:
                ring = None
                self._leave_ring(str(error))
        return _Handle(ring, of_ring, in_fallback)

    def _start_fallback(self, name: str, buffer: Any) -> Any:
        """Hand this rank's buffer to the fallback, in case the ring breaks. Returns its handle; None if out of memory.

        A failed rank then ends the run."""
        if not self._fallback_has_memory:
            return None
        try:
            return self.fallback.start(name, buffer)
        except ClusterError as error:
            if self.ring is None:
                raise
            log.warning("%s If a worker dies the run will end.", error)
            self._fallback_has_memory = False
            return None

    def wait(self, handle: _Handle) -> None:
        """Wait for a sum from the ring or, once the ring is broken, from the fallback."""
        if handle.ring is not None:
            try:
                handle.ring.wait(handle.of_ring)
                if handle.in_fallback is None or self.fallback.confirm_sum(handle.in_fallback):
                    return
            except ClusterError as error:
                if handle.in_fallback is None:
                    raise
                self._leave_ring(str(error))
        if handle.in_fallback is None:
            raise ClusterError(f"rank {self.rank} cannot go on: its ring is broken, and there is no room beside it.")
        self.fallback.wait(handle.in_fallback)

    def _leave_ring(self, why: str) -> None:
        ring, self.ring = self.ring, None
        if ring is not None:
            log.warning("%s: from now on this run sums without its ring", why)
            ring.abandon()
            self.fallback.fall_back()

    def close(self) -> None:
        """Close ring and fallback; a broken ring is left open, as closing it could wait for failed ranks."""
        if self.ring is not None:
            self.ring.close()
        self.fallback.close()


class RendezvousWithFallback(Rendezvous):
    """Rendezvous of a ring together with that of its fallback."""

    def __init__(self, ring: Rendezvous, fallback: Rendezvous) -> None:
        self.ring, self.fallback = ring, fallback

    def rejected_requests(self) -> int:
        return self.ring.rejected_requests()

    def environment(self, rank: int) -> dict[str, str]:
        return {**self.fallback.environment(rank), **self.ring.environment(rank)}

    def close(self) -> None:
        self.ring.close()
        self.fallback.close()

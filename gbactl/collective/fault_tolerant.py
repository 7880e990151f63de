"""All-reduce that continues when a rank fails, also if a ring (Horovod, Gloo) has summed until then.

What a rank contributes has two variants. Dealt summands are assigned to the live ranks: as `sync` sums in batch order,
a summand is a batch's place in its step, whichever rank computes the batch. Own summands belong to their rank, as in an
average of replicas; those of failed ranks are missing.

With a ring, every rank also gives its summand to this collective before the ring takes it: one copy of the vector a
step. Once a rank has failed, the ring is not used again in this run. On one host, the sums are then made in shared
memory (shared_memory.py). The ring's last sum may have reached some ranks only, while the other ranks make this sum in
shared memory, in another order. Workers that hold the same dense parameters are therefore made equal again (see
coordinator/failure_recovery.py); replicas differ anyway. A summand that the failed rank had already given counts in
either case. On several hosts the first server sums (worker/allreduce_fallback.py).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from gbactl.collective.base import OnBytesSent, Ring, ignore_bytes
from gbactl.errors import ClusterError

log = logging.getLogger(__name__)


class InterruptedSum(Exception):
    """Raised when a wait for a sum is interrupted; the summands of all ranks are kept."""


class _Handle(NamedTuple):
    ring: Ring | None
    in_ring: Any
    own: Any


class FaultTolerantCollective(ABC):
    """Collective that continues when a rank fails; a wait raises InterruptedSum once `wanted`, polled, is True.

    `ring`: sums in its place while no rank has failed, if there is one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.wanted: Callable[[], bool] = lambda: False
        self.on_bytes_sent: OnBytesSent = ignore_bytes  # see Collective; also called for the bytes of the ring
        self.ring: Ring | None = None
        self._has_memory = True
        self._assignment: tuple[int, int | None, int, int] | None = None  # number, part, parts, after
        self._sums_live_ranks = False
        self._absent: set[int] = set()  # failed ranks

    def use_ring(self, ring: Ring | None) -> None:
        """Let a ring sum until a rank fails; None: for a rank that joins after the ring was broken."""
        self.ring = ring
        if ring is None:
            self.on_ring_broken()
        else:
            ring.on_bytes_sent = lambda nbytes, shared: self.on_bytes_sent(nbytes, shared)

    def assign_summand(self, number: int, part: int | None, parts: int, after: int) -> None:
        """Assign this rank summand `part` of `parts` for the next `start` calls; None: no summand.

        `number` is that of the all-reduce round: from 1 in each generation, one after the other, the same on every
        rank. The round belongs to the step that rows contain from version `after` on. A summand may be given twice,
        with the same numbers. A wait sums them in order."""
        self._assignment = (number, part, parts, after)

    def sum_live_ranks(self) -> None:
        """Sum one summand of every live rank in each all-reduce, until the next call of `assign_summand` or `renew`.

        A sum is over the live ranks. The summand of a rank that fails counts for all ranks or for none: whether it had
        been given."""
        self._assignment, self._sums_live_ranks = None, True

    def leave_out(self, rank: int) -> None:
        """Exclude a failed rank: wait neither for its summands, nor until it has read the other ranks' summands."""
        self._leave_ring(f"rank {rank} is gone")
        self.on_rank_failed(rank)

    @abstractmethod
    def interrupt(self) -> None:
        """Wake a blocked wait to poll `wanted` now. Callable from another thread."""

    def renew(self, generation: int) -> None:
        """Start generation number `generation` with all present ranks, including new ones, and clear all summands.

        Nothing may be in flight."""
        self._assignment, self._sums_live_ranks = None, False
        self._absent.clear()

    def fall_back(self) -> None:
        """Leave the ring because another rank has found it broken. Callable from any thread."""
        self._leave_ring("another rank's ring is broken")

    def start(self, name: str, buffer: Any) -> _Handle:
        own, ring, in_ring = self._give(name, buffer), self.ring, None
        if ring is not None:
            try:
                in_ring = ring.start(name, buffer)
            except ClusterError as error:
                ring = None
                self._leave_ring(str(error))
        return _Handle(ring, in_ring, own)

    def _give(self, name: str, buffer: Any) -> Any:
        """Record this rank's summand in case the ring breaks. Returns its handle; None if out of memory.

        A failed rank then ends the run."""
        if not self._has_memory:
            return None
        try:
            return self.give(name, buffer)
        except ClusterError as error:
            if self.ring is None:
                raise
            log.warning("%s If a worker dies the run will end.", error)
            self._has_memory = False
            return None

    def wait(self, handle: _Handle) -> None:
        """Wait for the ring's sum or, without a ring or once it is broken, for the sum of the given summands."""
        if handle.ring is not None:
            try:
                handle.ring.wait(handle.in_ring)
                if handle.own is None or self.confirm_sum(handle.own):
                    return
            except ClusterError as error:
                if handle.own is None:
                    raise
                self._leave_ring(str(error))
        if handle.own is None:
            raise ClusterError(f"rank {self.rank} cannot go on: its ring is broken, and the fallback lacks memory.")
        self.sum_given(handle.own)

    def _leave_ring(self, why: str) -> None:
        ring, self.ring = self.ring, None
        if ring is not None:
            log.warning("%s: from now on this run sums without its ring", why)
            ring.abandon()
            self.on_ring_broken()

    def close(self) -> None:
        """Release all resources; a broken ring is left open, as closing it could wait for failed ranks. Idempotent."""
        if self.ring is not None:
            self.ring.close()

    @abstractmethod
    def give(self, name: str, buffer: Any) -> Any:
        """Keep a copy of this rank's summand, which a ring overwrites; without a ring, begin to sum.

        Returns a handle for `sum_given`."""

    @abstractmethod
    def sum_given(self, handle: Any) -> None:
        """Block until the buffer holds the sum of the given summands."""

    @abstractmethod
    def confirm_sum(self, handle: Any) -> bool:
        """Record that the ring has completed this sum; return False if the sum of the given summands must replace it.

        That is so if other ranks were informed before that this rank lacks the ring's sum: all then use another one."""

    @abstractmethod
    def on_rank_failed(self, rank: int) -> None:
        """Exclude a failed rank from the sums of given summands."""

    def on_ring_broken(self) -> None:  # noqa: B027
        """Sum the given summands from now on, as the ring is broken or this rank never joined it. From any thread."""

"""Workers that are gone, and how a run goes on without them.

A dead worker may have messages on their way to some servers and not to others. So every server closes its door
to it first; only when all have said so are its batches handed out again: no gradient of it can mix with that of
the worker that takes over. Costs one message to and from every server.
"""

from __future__ import annotations

from gbactl.coordinator.membership import Members
from gbactl.wire.channel import Channel
from gbactl.wire.messages import Absent, Fence, Fenced


class Losses:
    """Which workers are gone and have no successor, in the order in which they were missed."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.gone: list[int] = []
        self._closed: dict[int, set[int]] = {}
        self._epochs: dict[int, int] = {}  # worker -> the last of its epochs that is over

    def fence(self, worker: int, phase: int, batches: list[int], epoch: int = 0) -> None:
        """Tell every server that a worker is gone and that its parts of these batches are worth nothing."""
        self.gone.append(worker)
        self._closed[worker] = set()
        self._epochs[worker] = epoch
        self.members.tell("server", Fence(worker, phase, batches, epoch))

    def tell_workers(self) -> None:
        """Those who form a new group know nobody who died before."""
        for worker in self.gone:
            self.members.tell("worker", Absent(worker))

    def tell(self, server: Channel) -> None:
        """A server that takes another's place learns to whom doors are closed."""
        for worker, epoch in sorted(self._epochs.items()):
            server.send(Fence(worker, -1, [], epoch))

    def fencing(self, worker: int) -> bool:
        """Whether some server has yet to close its door to a worker."""
        return worker in self._closed

    def returned(self, worker: int) -> None:
        """Another process has taken its place."""
        self.gone.remove(worker)

    def fenced(self, message: Fenced) -> bool:
        """A server has closed its door. Whether it was the last one."""
        closed = self._closed.get(message.worker)
        if closed is None:
            return False
        closed.add(message.shard)
        if len(closed) < self.members.expected["server"]:
            return False
        del self._closed[message.worker]
        return True

"""Requests to all nodes whose answers the run waits for: applied steps, checksums, memory, reloading.

A server's successor is asked what its predecessor has not answered. A request costs a message to and
from each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from gbactl.coordinator.context import Flow, RunContext, WaitCondition
from gbactl.errors import WireError
from gbactl.wire.channel import Channel
from gbactl.wire.messages import Barrier, Inspect, Inspected, Reached, ReloadCheckpoint

SUM_DIGITS = 24  # of a node's share of a model's checksum, which is below 2^64


class Questions:
    """Requests to all nodes.

    `asking` is called when servers are asked, with whether they read all their data, and when all have answered."""

    def __init__(self, run: RunContext, asking: Callable[[bool], None] = lambda reading: None) -> None:
        self.run, self.asking = run, asking
        self.inspected: dict[str, Inspected] = {}
        self._reached: set[int] = set()
        self._reloaded: set[int] = set()
        self._open: tuple[Any, Callable[[int], bool]] | None = None

    # -- asking -------------------------------------------------------------------------------------

    def barrier(self, step: int) -> Flow[None]:
        """Wait until every shard has applied all steps below `step`."""
        self._reached.clear()
        yield from self._ask(Barrier(step), lambda shard: shard in self._reached)

    def reload(self, path: str) -> Flow[None]:
        """Have every server load a checkpoint's folder; "" is the beginning."""
        self._reloaded.clear()
        yield from self._ask(ReloadCheckpoint(path), lambda shard: shard in self._reloaded)

    def inspect(
        self, *roles: str, what: str = "checksum", seconds: float | None = None
    ) -> Flow[dict[str, Inspected]]:  # fmt: skip
        """Collect checksums and memory of every node of some roles; nothing if one does not answer within `seconds`."""
        self.inspected.clear()
        deadline = None if seconds is None else self.run.hub.now() + seconds
        if "worker" in roles:
            self.run.members.tell("worker", Inspect(what))
        servers = self._open_to_servers(Inspect(what), lambda shard: f"S{shard}" in self.inspected)
        with servers if "server" in roles else nullcontext():
            if not (yield WaitCondition(lambda: self._names(roles) <= set(self.inspected), deadline)):
                return {}
        return {node: each for node, each in self.inspected.items() if node in self._names(roles)}

    def repeat(self, server: Channel) -> None:
        """Repeat an open request to a server's successor, if its predecessor has not answered."""
        if self._open is not None and not self._open[1](server.peer.index):
            server.send(self._open[0])

    def _ask(self, message: Any, answered: Callable[[int], bool]) -> Flow[None]:
        shards = range(self.run.cfg.cluster.servers)
        with self._open_to_servers(message, answered):
            yield WaitCondition(lambda: all(answered(shard) for shard in shards))

    @contextmanager
    def _open_to_servers(self, message: Any, answered: Callable[[int], bool]) -> Iterator[None]:
        """Ask every server, and within the context also the successors of those that have not answered."""
        self._open = (message, answered)
        self.asking(isinstance(message, Inspect | ReloadCheckpoint))
        self.run.members.tell("server", message)
        try:
            yield
        finally:
            self._open = None
            self.asking(False)

    def _names(self, roles: Sequence[str]) -> set[str]:
        servers = {f"S{shard}" for shard in range(self.run.cfg.cluster.servers)} if "server" in roles else set()
        workers = self.run.members.of("worker").values() if "worker" in roles else ()
        return servers | {str(channel.peer) for channel in workers}

    # -- answers ------------------------------------------------------------------------------------

    def reached(self, message: Reached) -> None:
        """Record that a shard has applied the ordered steps."""
        self._reached.add(message.shard)

    def reloaded(self, shard: int) -> None:
        """Record that a shard has loaded its checkpoint."""
        self._reloaded.add(shard)

    def answered(self, channel: Channel, message: Inspected) -> None:
        """Record a node's checksum. Raises WireError for an impossible one."""
        total = message.model_sum
        if message.node != str(channel.peer) or (total and not (total.isdecimal() and len(total) <= SUM_DIGITS)):
            raise WireError(f"{channel.peer} answers for {message.node} with the sum {total[:SUM_DIGITS]}.")
        self.inspected[message.node] = message

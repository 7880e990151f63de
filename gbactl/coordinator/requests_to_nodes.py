"""Requests to all nodes whose answers the run waits for: barrier, checksums, reload, migration of dense parameters.

A server's successor is asked what its predecessor has not answered. A request costs a message to and from each node.

The dense parameters move between servers and workers while nothing is in flight. The servers keep what they gave until
the first gradient arrives, and all workers hold the same values. So after a worker failure another worker completes the
migration, or it is reverted, and no bit is lost. It sends the dense parameters with their moments over the wire:
nothing that grows with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from gbactl.coordinator.membership import Fencing, Membership
from gbactl.coordinator.run_context import Flow, RunContext, WaitCondition
from gbactl.coordinator.state import DensePlacementState
from gbactl.errors import ClusterError, WireError
from gbactl.wire.channel import Channel
from gbactl.wire.messages import Barrier, DenseMoved, Inspect, Inspected, MoveDense, Reached, ReloadCheckpoint

SUM_DIGITS = 24  # maximum of digits of a node's share of a model's checksum, which is below 2^64


class NodeRequests:
    """Requests to all nodes, with waits for their answers.

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
        """Have every server load the checkpoint in folder `path`; "" is the beginning of the run."""
        self._reloaded.clear()
        yield from self._ask(ReloadCheckpoint(path), lambda shard: shard in self._reloaded)

    def inspect(
        self, *roles: str, what: str = "checksum", seconds: float | None = None
    ) -> Flow[dict[str, Inspected]]:  # fmt: skip
        """Collect checksums and memory use of all nodes of some roles; empty if a node is silent for `seconds`."""
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
        """Repeat an unanswered request to a server's successor, if its predecessor has not answered."""
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
        """Record that a shard has applied all steps below the barrier's step."""
        self._reached.add(message.shard)

    def reloaded(self, shard: int) -> None:
        """Record that a shard has reloaded the requested checkpoint."""
        self._reloaded.add(shard)

    def answered(self, channel: Channel, message: Inspected) -> None:
        """Record a node's checksums. Raises WireError for impossible ones."""
        total = message.model_sum
        if message.node != str(channel.peer) or (total and not (total.isdecimal() and len(total) <= SUM_DIGITS)):
            raise WireError(f"{channel.peer} answers for {message.node} with the sum {total[:SUM_DIGITS]}.")
        self.inspected[message.node] = message


class DenseMigration:
    """Migration of the dense parameters between servers, workers and trainers.

    `deadline` returns the time until which nodes may answer; `note` is called when a migration begins and ends."""

    def __init__(
        self, members: Membership, fencing: Fencing, state: DensePlacementState, deadline: Callable[[], float],
        note: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.members, self.fencing, self.state, self.deadline, self.note = members, fencing, state, deadline, note
        self.moving = False
        self._moved: set[int] = set()

    def moved(self, message: DenseMoved) -> None:
        """Record that a worker has done its part of the migration."""
        if message.turn == self.state.request:
            self._moved.add(message.worker)

    def move(self, to: str, source: str = "") -> Flow[bool]:
        """Migrate the dense parameters. Returns False if a worker failed, which leaves them where they were.

        In that case the servers hold them, which after a phase also hold the mean or centre of the replicas.

        Raises ClusterError if a worker does not answer, or fails in a move between the workers and the replicas."""
        source = source or ("workers" if to == "servers" else "servers")
        state, self.moving = self.state, True
        state.to, state.source = to, source
        self.note()
        try:
            moved = yield from self._move(to, source)
        finally:
            self.moving = False
        state.to = state.source = ""
        state.home = to if moved else source
        self.note()
        return moved

    def settle(self, home: str) -> Flow[None]:
        """Migrate the dense parameters to `home`, whatever state a failed coordinator left a migration in."""
        state = self.state
        way, state.to, state.source = (state.to, state.source), "", ""
        if way == ("", "") and state.home == home:
            return
        if way == ("servers", "workers"):
            yield from self.move("servers", "workers")
        else:
            yield from self._ask("servers", -1, lambda: False)  # the servers have kept what they gave
            state.home = "servers"
        if home != "servers":
            yield from self.move(home, "servers")

    def _move(self, to: str, source: str) -> Flow[bool]:
        if source == "workers":
            yield from self._give()
        if to == "servers":
            if source == "replicas":
                yield from self._ask("servers", -1, lambda: False)
            return True
        gone = len(self.fencing.gone)
        yield from self._ask(to, -1, lambda: len(self.fencing.gone) > gone)
        if len(self.fencing.gone) == gone:
            return True
        if source == "workers":
            raise ClusterError("A worker died while the dense parameters were on their way between workers.")
        yield from self._ask(source, -1, lambda: False)
        return False

    def fetch_again(self, home: str) -> Flow[None]:
        """Have every holder at `home` fetch the dense parameters from the servers after a rollback."""
        self.moving = True
        try:
            yield from self._ask("servers", -1, lambda: False)
            yield from self._ask(home, -1, lambda: False)
        finally:
            self.moving = False

    def _give(self) -> Flow[None]:
        """Have one worker send the dense parameters to the servers; if it fails meanwhile, have another do so."""
        while True:
            giver = min(self.members.of("worker"))
            yield from self._ask("servers", giver, lambda giver=giver: giver in self.fencing.gone)  # type: ignore[misc]
            if giver in self._moved:
                return

    def _ask(self, home: str, giver: int, enough: Callable[[], bool]) -> Flow[None]:
        self.state.request += 1
        self._moved.clear()
        self.members.tell("worker", MoveDense(home, giver, self.state.request))

        def answered() -> bool:
            return set(self.members.of("worker")) <= self._moved or enough()

        if not (yield WaitCondition(answered, self.deadline())):
            silent = ", ".join(f"W{worker}" for worker in sorted(set(self.members.of("worker")) - self._moved))
            raise ClusterError(f"{silent} did not answer when the dense parameters were moved to the {home}.")

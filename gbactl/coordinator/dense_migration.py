"""Migration of the dense parameters between servers and workers while nothing is in flight.

The servers keep what they gave until the first gradient arrives, and all workers hold the same values. So after a
worker failure another worker completes the migration, or it is reverted, and no bit is lost. Costs a message to and
from each worker, and the dense parameters with their moments over the wire: nothing that grows with the tables.
"""

from __future__ import annotations

from collections.abc import Callable

from gbactl.coordinator.context import Flow, WaitCondition
from gbactl.coordinator.membership import Fencing, Membership
from gbactl.coordinator.state import DensePlacementState
from gbactl.errors import ClusterError
from gbactl.wire.messages import DenseMoved, MoveDense


class DenseMigration:
    """Migration of the dense parameters.

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
        """Move the dense parameters. False where a worker failed and they are back where they were.

        That is on the servers, which by the end of a phase also hold the mean of the replicas, or their centre.

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
        """Bring the dense parameters to `home`, whatever state a failed coordinator left a migration in."""
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
        """Have one worker send the dense parameters to the servers; if it fails before it is done, the next one."""
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

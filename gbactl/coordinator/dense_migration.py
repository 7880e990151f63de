"""Moving the dense parameters between servers and workers while nothing is in flight, whoever dies meanwhile.

The servers keep what they gave until the first gradient comes, and every worker has the same: so a move is finished
by another worker, or taken back, and no bit of it is lost. Costs a message to and from each worker, and the dense
part with its moments over the wire: nothing that grows with the tables.
"""

from __future__ import annotations

from collections.abc import Callable

from gbactl.coordinator.membership import Members
from gbactl.coordinator.worker_losses import Losses
from gbactl.errors import ClusterError
from gbactl.wire.messages import Moved, MoveDense

Wait = Callable[[Callable[[], bool]], bool]


class Mover:
    """`wait` handles messages until a condition holds; False if that took too long."""

    def __init__(self, members: Members, losses: Losses, wait: Wait, home: str = "") -> None:
        self.members, self.losses, self.wait = members, losses, wait
        self.moving = False
        self.home, self.way = home, ("", "")  # where they are; of a move that has begun: where to and where from
        self.turn = 0
        self.noted: Callable[[], None] = lambda: None  # called when a move begins and when it ends
        self._moved: set[int] = set()

    def moved(self, message: Moved) -> None:
        """A worker has done its part."""
        if message.turn == self.turn:
            self._moved.add(message.worker)

    def move(self, home: str, of: str = "") -> bool:
        """Move them to `home`. False where a worker died and they are back where they were: on the servers, which by
        the end of a phase hold what replicas come to, too.

        Raises ClusterError if a worker does not answer, or dies between the workers and the replicas."""
        of = of or ("workers" if home == "servers" else "servers")
        self.moving, self.way = True, (home, of)
        self.noted()
        try:
            moved = self._move(home, of)
        finally:
            self.moving = False
        self.way, self.home = ("", ""), home if moved else of
        self.noted()
        return moved

    def settle(self, home: str) -> None:
        """Whatever a move that another coordinator had begun has come to: they are at `home` from now on."""
        way, self.way = self.way, ("", "")
        if way == ("", "") and self.home == home:
            return
        if way == ("servers", "workers"):
            self.move("servers", "workers")
        else:
            self._ask("servers", -1, lambda: False)  # which have kept what they gave
            self.home = "servers"
        if home != "servers":
            self.move(home, "servers")

    def _move(self, home: str, of: str) -> bool:
        if of == "workers":
            self._give()
        if home == "servers":
            if of == "replicas":
                self._ask("servers", -1, lambda: False)
            return True
        lost = len(self.losses.gone)
        self._ask(home, -1, lambda: len(self.losses.gone) > lost)
        if len(self.losses.gone) == lost:
            return True
        if of == "workers":
            raise ClusterError("A worker died while the dense parameters were on their way between workers.")
        self._ask(of, -1, lambda: False)
        return False

    def fetch_again(self, home: str) -> None:
        """They are on the servers, which have gone back: everybody at `home` takes them from there."""
        self.moving = True
        try:
            self._ask("servers", -1, lambda: False)
            self._ask(home, -1, lambda: False)
        finally:
            self.moving = False

    def _give(self) -> None:
        """One worker gives them to the servers; the next one does if it dies before it is done."""
        while True:
            giver = min(self.members.of("worker"))
            self._ask("servers", giver, lambda giver=giver: giver in self.losses.gone)  # type: ignore[misc]
            if giver in self._moved:
                return

    def _ask(self, home: str, giver: int, enough: Callable[[], bool]) -> None:
        self.turn += 1
        self._moved.clear()
        self.members.tell("worker", MoveDense(home, giver, self.turn))
        if not self.wait(lambda: set(self.members.of("worker")) <= self._moved or enough()):
            silent = ", ".join(f"W{worker}" for worker in sorted(set(self.members.of("worker")) - self._moved))
            raise ClusterError(f"{silent} did not answer when the dense parameters were moved to the {home}.")

"""A virtual process that can die or stand still: what comes due then never happens, or happens when it wakes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gbactl.simulation.network import VirtualChannel


class VirtualProcess:
    """`connections`: its channels, which break when it dies."""

    def __init__(self) -> None:
        self.connections: list[VirtualChannel] = []
        self._stopped = self._frozen = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def dead(self) -> bool:
        """Whether it is gone."""
        return self._stopped

    def die(self) -> None:
        """Nothing that it was about to do happens any more; what it has sent arrives."""
        self._stopped = True
        for each in self.connections:
            each.close()

    def freeze(self) -> None:
        """It stands still: whatever comes due waits for `wake`."""
        self._frozen = True

    def wake(self) -> None:
        """It goes on where it was."""
        self._frozen = False
        held, self._held = self._held, []
        for call, args in held:
            call(*args)

    def holds(self, call: Callable[..., None], *args: Any) -> bool:
        """Whether this is not the time for something: it is dead, or will do it when it wakes up."""
        if self._frozen:
            self._held.append((call, args))
        return self._frozen or self._stopped

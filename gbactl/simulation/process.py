"""Virtual process that can die or hang: its events are dropped, or deferred until it wakes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gbactl.simulation.network import VirtualChannel


class VirtualProcess:
    """Virtual process. `connections`: its channels, which break when it dies."""

    def __init__(self) -> None:
        self.connections: list[VirtualChannel] = []
        self._stopped = self._frozen = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def dead(self) -> bool:
        """Whether the process is dead."""
        return self._stopped

    def die(self) -> None:
        """Kill the process: its pending events are dropped; what it has sent arrives."""
        self._stopped = True
        for each in self.connections:
            each.close()

    def freeze(self) -> None:
        """Stop the process: its events wait for `wake`."""
        self._frozen = True

    def wake(self) -> None:
        """Resume the process with its deferred events."""
        self._frozen = False
        held, self._held = self._held, []
        for call, args in held:
            call(*args)

    def holds(self, call: Callable[..., None], *args: Any) -> bool:
        """Whether a call must not be made now: the process is dead, or makes it when it wakes up."""
        if self._frozen:
            self._held.append((call, args))
        return self._frozen or self._stopped

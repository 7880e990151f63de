"""The coordinator of a virtual cluster: the real one, which tells how far it is by samples instead of seconds.

Virtual seconds may be too few or too many to be told by, and real ones would not be the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gbactl.coordinator.core import Coordinator
from gbactl.coordinator.handout import Training
from gbactl.simulation.network import VirtualHub
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Event


class VirtualCoordinator(Coordinator):
    """`notes`: how often a phase says how far it is."""

    hub: VirtualHub
    notes = 50
    began: float | None = None  # when a run did that goes on in this cluster
    told: Callable[[float], dict[str, Any]] | None = None  # of its checkpoints, more
    look: Callable[[Callable[[Event], None]], None] | None = None  # between two messages: what the launcher wishes

    def gather(self) -> None:
        """See Coordinator."""
        super().gather()
        if self.began is not None:
            self.record.go_on(self.hub.now() - self.began)

    def _pump(self, until: Callable[[], bool], deadline: float | None = None) -> bool:
        """See Coordinator; for as long as nobody was there, a deadline comes later."""
        away = self.hub.away
        while not super()._pump(until, deadline):
            if deadline is None or self.hub.away == away:
                return False
            deadline, away = deadline + self.hub.away - away, self.hub.away
        return True

    def _handle(self, channel: Channel, frame: Frame) -> None:
        """See Coordinator."""
        if self.look is not None:
            self.look(self.asked)
        super()._handle(channel, frame)

    def _progress_due(self, training: Training) -> bool:
        policy = training.policy
        note = policy.ledger.finished * self.notes // max(1, policy.phase.samples)
        if (training.number, note) <= self._noted:
            return False
        self._noted = (training.number, note)
        return True

    _noted = (0, 0)

    def result(self, best: dict[str, Any]) -> dict[str, Any]:
        """See Coordinator; and the virtual time that has passed, and what of it was spent on checkpoints."""
        result = {**super().result(best), "virtual_seconds": self.hub.now()}
        if "checkpoint" in result and self.told is not None:
            result["checkpoint"] |= self.told(self.record.seconds)
        return result

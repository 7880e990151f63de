"""Coordinator of a virtual cluster: the real one, which reports progress by samples instead of seconds.

Virtual seconds may be too few or too many between reports, and real ones would differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gbactl.coordinator.batch_dispatch import LivePhase
from gbactl.coordinator.message_loop import Coordinator
from gbactl.coordinator.run_context import WaitCondition
from gbactl.simulation.network import VirtualHub
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Event


class VirtualCoordinator(Coordinator):
    """Coordinator of a virtual cluster. `notes`: number of progress reports in a phase."""

    hub: VirtualHub
    notes = 50
    look: Callable[[Callable[[Event], None]], None] | None = None  # called between two messages

    def _wait(self, until: WaitCondition) -> bool:
        """See Coordinator._wait; a deadline is extended by the time for which the coordinator was absent."""
        away = self.hub.away
        while not super()._wait(until):
            if until.deadline is None or self.hub.away == away:
                return False
            until, away = until._replace(deadline=until.deadline + self.hub.away - away), self.hub.away
        return True

    def _handle(self, channel: Channel, frame: Frame) -> None:
        """See Coordinator._handle."""
        if self.look is not None:
            self.look(self.core.asked)
        super()._handle(channel, frame)

    def _progress_due(self, training: LivePhase) -> bool:
        policy = training.policy
        note = policy.ledger.finished * self.notes // max(1, policy.phase.samples)
        if (training.number, note) <= self._noted:
            return False
        self._noted = (training.number, note)
        return True

    _noted = (0, 0)

    def spent(self, told: Callable[[float], dict[str, Any]]) -> None:
        """Add to the result the virtual time that has passed, and by `told` the part of it spent on checkpoints."""

        def amend(result: dict[str, Any]) -> None:
            result["virtual_seconds"] = self.hub.now()
            if "checkpoint" in result:
                result["checkpoint"] |= told(self.context.record.seconds)

        self.flow.amend = amend

"""The coordinator of a virtual cluster: the real one, which tells how far it is by samples instead of seconds.

Virtual seconds may be too few or too many to be told by, and real ones would not be the same in every run.
"""

from __future__ import annotations

from typing import Any

from gbactl.cluster.coordinator import Coordinator
from gbactl.cluster.training import Training


class VirtualCoordinator(Coordinator):
    """Its `hub` is a VirtualHub. `notes`: how often a phase says how far it is."""

    notes = 50

    def _progress_due(self, training: Training) -> bool:
        policy = training.policy
        note = policy.ledger.finished * self.notes // max(1, policy.phase.samples)
        if (training.number, note) <= self._noted:
            return False
        self._noted = (training.number, note)
        return True

    _noted = (0, 0)

    def result(self, best: dict[str, Any]) -> dict[str, Any]:
        """See Coordinator; and the virtual time that has passed."""
        return {**super().result(best), "virtual_seconds": self.hub.now()}

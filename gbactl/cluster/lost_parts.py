"""Dense gradients that are gone with workers, as the coordinator knows of them (see sums.py): counted once, as samples.

Rows have been trained with those batches; the dense parameters took their step without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gbactl.cluster import eventlog
from gbactl.cluster.channel import Channel
from gbactl.cluster.frames import Frame
from gbactl.cluster.messages import PartsLost
from gbactl.errors import WireError
from gbactl.policies import Phase

if TYPE_CHECKING:
    from gbactl.cluster.coordinator import Coordinator


class LostParts:
    """Part of the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.phase: Phase | None = None  # the last one that trained
        self.handlers = {PartsLost: self._heard}
        self._known: dict[int, set[int]] = {}

    def told(self) -> list[Any]:
        """As plain containers, for a successor."""
        each = self.phase
        phase = [] if each is None else [each.samples, each.local_batch, each.global_batch, each.first_step]
        return [phase, [[step, sorted(parts)] for step, parts in sorted(self._known.items())]]

    def restore(self, told: list[Any]) -> None:
        """What another coordinator told."""
        phase, known = told
        self.phase = None
        if phase:
            samples, local_batch, global_batch, first_step = phase
            self.phase = Phase(samples, local_batch, global_batch, first_step, ())
        self._known = {step: set(parts) for step, parts in known}

    def _heard(self, channel: Channel, message: PartsLost, _: Frame) -> None:
        if channel.peer.role != "server":
            raise WireError(f"{channel.peer} sums nothing.")
        known = self._known.setdefault(message.step, set())
        new = set(message.parts) - known
        known |= new
        if new and self.phase is not None:
            batches = sorted(self._batch(self.phase, message.step, part) for part in new)
            self.c.log.info(eventlog.DENSE_LOST, {"step": message.step, "batches": batches})
            self.c.recovery.times.dense_lost(sum(self.phase.size(batch) for batch in batches))
            self.c.journal.note()

    def _batch(self, phase: Phase, step: int, part: int) -> int:
        """See Survival.begin. Raises WireError for one that is not in this phase."""
        width = phase.gradients_per_step
        batch = (step - phase.first_step) * width + part
        if not 0 <= part < width or not phase.size(batch):
            raise WireError(f"part {part} of step {step}, which is none of the phase at hand")
        return batch

"""Sums that a server makes, as far as the coordinator has to know of them (see gradient_sums.py).

Dense gradients that are gone with workers are counted once, as samples: rows have been trained with those batches; the
dense parameters took their step without them. That a ring is broken is told to all who may still wait in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gbactl.coordinator import event_log
from gbactl.errors import WireError
from gbactl.policies import Phase
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import PartsLost, RingBroken

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator


class LostParts:
    """Part of the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self._phases: list[Phase] = []  # the last one that trained, and the one before: what is late may be of that
        self.handlers: dict[type[Any], Callable[[Channel, Any, Frame], None]] = {
            PartsLost: self._heard, RingBroken: self._broken,
        }  # fmt: skip
        self._known: dict[int, set[int]] = {}

    def begins(self, phase: Phase) -> None:
        """A phase trains; perhaps once more, by another coordinator or after all went back."""
        self._phases = [*[each for each in self._phases if each.first_step < phase.first_step][-1:], phase]

    def ends(self, phase: Phase) -> None:
        """It has become what it is now: a switch may have cut it short."""
        self._phases[-1] = phase

    def told(self) -> list[Any]:
        """As plain containers, for a successor."""
        phases = [[each.samples, each.local_batch, each.global_batch, each.first_step] for each in self._phases]
        return [phases, [[step, sorted(parts)] for step, parts in sorted(self._known.items())]]

    def restore(self, told: list[Any]) -> None:
        """What another coordinator told."""
        phases, known = told
        self._phases = [Phase(samples, local, whole, first, ()) for samples, local, whole, first in phases]
        self._known = {step: set(parts) for step, parts in known}

    def _broken(self, channel: Channel, message: RingBroken, _: Frame) -> None:
        self._sums(channel)
        self.c.members.tell("worker", message)

    def _sums(self, channel: Channel) -> None:
        if channel.peer.role != "server":
            raise WireError(f"{channel.peer} sums nothing.")

    def _heard(self, channel: Channel, message: PartsLost, _: Frame) -> None:
        self._sums(channel)
        known = self._known.setdefault(message.step, set())
        new = set(message.parts) - known
        known |= new
        if new:
            phase = self._phase(message.step)
            batches = sorted(self._batch(phase, message.step, part) for part in new)
            self.c.log.info(event_log.DENSE_LOST, {"step": message.step, "batches": batches})
            self.c.recovery.times.dense_lost(sum(phase.size(batch) for batch in batches))
            self.c.journal.note()

    def _phase(self, step: int) -> Phase:
        """The one that a step is of. Raises WireError where it is of none that is known."""
        for phase in reversed(self._phases):
            if step >= phase.first_step:
                return phase
        raise WireError(f"a part of step {step}, which is of no phase that is known")

    def _batch(self, phase: Phase, step: int, part: int) -> int:
        """See Survival.begin. Raises WireError for one that is not in this phase."""
        width = phase.gradients_per_step
        batch = (step - phase.first_step) * width + part
        if not 0 <= part < width or not phase.size(batch):
            raise WireError(f"part {part} of step {step}, which is none of its phase")
        return batch

"""Sums that a server makes, as far as the coordinator has to know of them (see gradient_sums.py).

Dense gradients that are gone with workers are counted once, as samples: rows have been trained with those batches; the
dense parameters took their step without them.
"""

from __future__ import annotations

from gbactl.coordinator import event_log
from gbactl.coordinator.context import RunContext
from gbactl.errors import WireError
from gbactl.policies import Phase
from gbactl.wire.messages import PartsLost


class ServerSums:
    """Knows the last phase that trained and the one before: what is late may be of that."""

    def __init__(self, run: RunContext) -> None:
        self.run, self.state = run, run.state.ongoing.sums

    def begins(self, phase: Phase) -> None:
        """A phase trains; perhaps once more, by another coordinator or after all went back."""
        before = [each for each in self.state.phases if each[3] < phase.first_step]
        self.state.phases[:] = [*before[-1:], _outline(phase)]

    def ends(self, phase: Phase) -> None:
        """The phase has become what it is now: a switch may have cut it short."""
        self.state.phases[-1] = _outline(phase)

    def lost(self, message: PartsLost) -> None:
        """Count the dense gradients that a server has no part of. Raises WireError for what is of no phase."""
        known = set(self.state.lost.get(message.step, ()))
        new = set(message.parts) - known
        self.state.lost[message.step] = sorted(known | new)
        if new:
            phase = self._phase(message.step)
            batches = sorted(_batch(phase, message.step, part) for part in new)
            self.run.log.info(event_log.DENSE_LOST, {"step": message.step, "batches": batches})
            self.run.failures.dense_lost(sum(phase.size(batch) for batch in batches))
            self.run.note()

    def _phase(self, step: int) -> Phase:
        """The one that a step is of. Raises WireError where it is of none that is known."""
        for samples, local, whole, first in reversed(self.state.phases):
            if step >= first:
                return Phase(samples, local, whole, first, ())
        raise WireError(f"a part of step {step}, which is of no phase that is known")


def _outline(phase: Phase) -> tuple[int, int, int, int]:
    return (phase.samples, phase.local_batch, phase.global_batch, phase.first_step)


def _batch(phase: Phase, step: int, part: int) -> int:
    """The number of a step's gradient within its phase. Raises WireError for one that is not in this phase."""
    width = phase.gradients_per_step
    batch = (step - phase.first_step) * width + part
    if not 0 <= part < width or not phase.size(batch):
        raise WireError(f"part {part} of step {step}, which is none of its phase")
    return batch

"""Coordinator's account of the sums that a server computes in the workers' place (see gradient_sums.py).

Dense gradients that are lost with workers are counted once, as samples: the rows were trained with those batches, the
dense parameters took their step without them.
"""

from __future__ import annotations

from gbactl.coordinator import event_log
from gbactl.coordinator.context import RunContext
from gbactl.errors import WireError
from gbactl.policies import Phase
from gbactl.wire.messages import SummandsLost


class LostDenseGradients:
    """Account of lost dense gradients.

    Keeps the last phase that trained and the one before, to which late ones may belong."""

    def __init__(self, run: RunContext) -> None:
        self.run, self.state = run, run.state.ongoing.sums

    def begins(self, phase: Phase) -> None:
        """Record the start of a phase; after a failover or rollback perhaps once more."""
        before = [each for each in self.state.phases if each[3] < phase.first_step]
        self.state.phases[:] = [*before[-1:], _outline(phase)]

    def ends(self, phase: Phase) -> None:
        """Update the phase at its end: a switch may have shortened it."""
        self.state.phases[-1] = _outline(phase)

    def lost(self, message: SummandsLost) -> None:
        """Count the dense gradients of which a server has no slice. Raises WireError for those of no known phase."""
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
        """Phase that a step belongs to. Raises WireError where none is known."""
        for samples, local, whole, first in reversed(self.state.phases):
            if step >= first:
                return Phase(samples, local, whole, first, ())
        raise WireError(f"a part of step {step}, which is of no phase that is known")


def _outline(phase: Phase) -> tuple[int, int, int, int]:
    return (phase.samples, phase.local_batch, phase.global_batch, phase.first_step)


def _batch(phase: Phase, step: int, part: int) -> int:
    """Number of a step's gradient within its phase. Raises WireError for one that is not in this phase."""
    width = phase.gradients_per_step
    batch = (step - phase.first_step) * width + part
    if not 0 <= part < width or not phase.size(batch):
        raise WireError(f"part {part} of step {step}, which is none of its phase")
    return batch

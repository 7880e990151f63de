"""Dense gradients that are gone: told late, told twice, told to the next coordinator, and of no step that was."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gbactl.coordinator.event_log import DENSE_LOST
from gbactl.coordinator.failure_recovery import LostDenseGradients
from gbactl.coordinator.state import LostGradientState, decoded, encoded
from gbactl.errors import WireError
from gbactl.policies.policy import Phase
from gbactl.wire.messages import SummandsLost

DAY = Phase(310, 32, 96, 0, ())  # 10 batches, the last of 22 samples: 4 steps
NEXT = Phase(64, 32, 64, 4, ())


class Told:
    """What a coordinator hears, logs and counts."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.samples = 0
        self.lost = self.another()

    def another(self, state: LostGradientState | None = None) -> LostDenseGradients:
        """A coordinator's, with the same log and account."""
        ongoing = SimpleNamespace(sums=state or LostGradientState())
        run = SimpleNamespace(
            log=SimpleNamespace(info=lambda kind, fields: self.logged.append((kind, fields))),
            failures=SimpleNamespace(add_lost_dense=self._count), log_note=lambda: None,
            state=SimpleNamespace(ongoing=ongoing),
        )  # fmt: skip
        return LostDenseGradients(cast(Any, run))

    def _count(self, samples: int) -> None:
        self.samples += samples

    def hears(self, step: int, *parts: int) -> None:
        self.lost.add(SummandsLost(step, list(parts)))


def test_what_comes_in_the_next_phase_is_of_the_one_before() -> None:
    told = Told()
    told.lost.on_phase_begin(DAY)
    told.lost.on_phase_end(DAY)
    told.lost.on_phase_begin(NEXT)
    told.hears(3, 0)
    assert told.logged == [(DENSE_LOST, {"step": 3, "batches": [9]})] and told.samples == 22
    told.hears(4, 1)
    assert told.logged[1:] == [(DENSE_LOST, {"step": 4, "batches": [1]})] and told.samples == 54


def test_the_next_coordinator_counts_nothing_again() -> None:
    told = Told()
    told.lost.on_phase_begin(DAY)
    told.hears(1, 2)
    told.lost = told.another(decoded(json.loads(json.dumps(encoded(told.lost.state))), LostGradientState))
    told.lost.on_phase_begin(DAY)
    told.hears(1, 2)
    assert told.samples == 32
    told.hears(1, 0, 2)
    assert told.samples == 64 and told.logged[-1] == (DENSE_LOST, {"step": 1, "batches": [3]})


@pytest.mark.parametrize(("step", "part"), [(-1, 0), (0, 3), (3, 1), (9, 0)])
def test_what_was_in_no_step_is_refused(step: int, part: int) -> None:
    told = Told()
    told.lost.on_phase_begin(DAY)
    with pytest.raises(WireError, match="part"):
        told.hears(step, part)

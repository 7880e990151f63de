"""A trainer's phases as a list of events: what it fetches, which rule it has, what it tells and what is saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.errors import WireError
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.trainer.replica_exchange import CentreSlices
from gbactl.trainer.trainer_core import TrainerCore
from gbactl.wire.frames import Bytes
from gbactl.wire.messages import DenseSaved, EasgdCentre, EasgdUpdate, OpenReplicas

CUTS = {0: (0, 2), 2: (2, 3)}


def block() -> DenseBlock:
    return DenseBlock(np.arange(3, dtype=np.float32), DenseSpec(3), OptimizerSpec("sgd", 1.0))


def opening(turn: int, trainers: int = 2, rule: str = "bmuf", **values: Any) -> OpenReplicas:
    fixed = {"k": 4, "alpha": 0.5, "block_momentum": 0.9, "block_lr": 1.0, "nesterov": False}
    return OpenReplicas(turn, rule, False, trainers, {**fixed, **values})


def step(core: TrainerCore) -> None:
    core.replica.step(np.ones(3, np.float32), 1.0, 1.0)


def test_who_did_not_train_fetches_what_the_others_made_before_it_trains_again() -> None:
    core = TrainerCore(1, block)
    for turn, (trainers, behind) in enumerate([(2, False), (2, False), (1, False), (2, True), (2, False)]):
        assert core.open(opening(turn, trainers)) == behind
        core.begin(opening(turn, trainers))
        assert (core.opened, core.trains) == (turn, trainers == 2)


def test_what_the_servers_held_is_nothing_to_fetch_again() -> None:
    core = TrainerCore(1, block)
    core.open(opening(0, 1))
    core.took_over()
    assert not core.open(opening(1, 2))


def test_a_rule_goes_on_in_the_next_phase_until_it_is_another_or_all_replicas_are_equal() -> None:
    core = TrainerCore(0, block)
    core.open(opening(0))
    first = core.begin(opening(0))
    assert core.begin(opening(1)) is first
    other = core.begin(opening(2, block_lr=0.5))
    assert other is not first
    core.took_over()
    assert core.begin(opening(3, block_lr=0.5)) is not other


def test_iterations_are_those_of_the_phase() -> None:
    core = TrainerCore(0, block)
    for turn, steps in enumerate((3, 2)):
        core.open(opening(turn))
        core.begin(opening(turn))
        for _ in range(steps):
            step(core)
        assert core.iterations == steps
        told = core.closing_message(turn)
        assert (told.worker, told.request, told.totals.iterations) == (0, turn, steps)
    assert core.pace.k == 4


def test_the_steps_since_the_last_exchange_count_in_later_phases_until_all_replicas_are_equal_or_k_is_another() -> None:
    core = TrainerCore(0, block)
    phases = [(4, 4, 3), (4, 1, 0), (4, 1, 3), (4, 2, 1), (5, 5, 2), (5, 3, 7), (5, 0, 0)]
    for turn, (k, due, steps) in enumerate(phases):
        core.open(opening(turn, k=k))
        core.begin(opening(turn, k=k))
        assert core.statistics.next_exchange(core.pace.k) == due
        for _ in range(steps):
            step(core)
            if k == 4 and core.iterations == due:
                core.statistics.add(core.iterations, 0.0, 0.0)
        assert core.statistics.gaps == ({4: 1} if turn == 2 else {})
    core.took_over()
    core.open(opening(9, k=5))
    core.begin(opening(9, k=5))
    assert core.statistics.next_exchange(core.pace.k) == 5


def test_a_replica_is_saved_as_it_is_and_nothing_of_one_that_does_not_train() -> None:
    core = TrainerCore(0, block)
    step(core)
    told, values = core.packed_replica(7, trains=True)
    assert told == DenseSaved(7, 1, 3)
    assert values is not None and values[:3].tolist() == [-1.0, 0.0, 1.0]
    assert core.packed_replica(8, trains=False) == (DenseSaved(8, 0, -1), None)


# -- the centre -------------------------------------------------------------------------------------


def payload(*values: float) -> Bytes:
    return np.array(values, np.float32).view(np.uint8)


def test_a_centre_is_put_together_from_its_slices() -> None:
    slices = CentreSlices(CUTS, 3)
    asked = slices.ask(np.array([1.0, 2.0, 3.0], np.float32), 0.5, [0, 1, 2])
    assert [(shard, told, part.tolist()) for shard, told, part in asked] == [
        (0, EasgdUpdate(1, 0.5), [1.0, 2.0]),
        (2, EasgdUpdate(1, 0.5), [3.0]),
    ]
    slices.on_slice(2, EasgdCentre(1), payload(9.0))
    assert slices.missing == {0}
    slices.on_slice(0, EasgdCentre(1), payload(7.0, 8.0))
    assert not slices.missing and slices.centre.tolist() == [7.0, 8.0, 9.0]


def test_the_slice_of_a_server_that_is_away_or_is_lost_stays_as_it_is() -> None:
    slices = CentreSlices(CUTS, 3)
    [(shard, _, _)] = slices.ask(np.array([1.0, 2.0, 3.0], np.float32), 0.5, [2])
    assert shard == 2
    slices.on_server_lost(0)
    slices.on_server_lost(2)
    assert not slices.missing and slices.centre.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("request_id", "values"), [(1, (1.0, 2.0)), (2, (1.0,)), (2, (1.0, 2.0, 3.0))])
def test_an_answer_to_another_exchange_or_of_another_size_is_refused(
    request_id: int, values: tuple[float, ...]
) -> None:
    slices = CentreSlices(CUTS, 3)
    for _ in range(2):
        slices.ask(np.zeros(3, np.float32), 0.5, CUTS)
    with pytest.raises(WireError, match=r"^S0 answered an exchange with \d+ bytes\.$"):
        slices.on_slice(0, EasgdCentre(request_id), payload(*values))

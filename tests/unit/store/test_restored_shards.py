"""A shard that takes another's place, with parts that never came; and one that begins again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseSpec
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

F = np.float32
SPEC = ShardSpec(
    shard=0, shards=1, rows=6, width=2, row_optimizer=OptimizerSpec("sgd", 1.0),
    dense=DenseSpec(2, 1, momentum=0.5), dense_optimizer=OptimizerSpec("sgd", 1.0), dense_init=np.zeros(3, F),
)  # fmt: skip


def part(*rows: int, value: float = 1.0) -> GradientSlice:
    return GradientSlice(np.array(rows, np.int32), np.full((len(rows), 2), value, F), np.full(3, value, F))


def order(step: int, *batches: int, weight: float = 1.0) -> StepOrder:
    return StepOrder(step, tuple((batch, weight) for batch in batches), float(len(batches)), weight * len(batches))


def test_a_lost_part_is_a_gradient_of_zero_and_no_batch_of_the_running_statistics(kernels: Kernels) -> None:
    shard = Shard(SPEC, kernels)
    shard.table[:] = 0
    shard.take_over(7, [2])
    shard.stage(3, part(1, 4, value=2.0))
    assert shard.staged == (2, 3) and shard.version == 7
    shard.apply(order(7, 2, 3))
    assert shard.table[:, 0].tolist() == [0, -1, 0, 0, -1, 0]
    assert shard.dense_block().value.tolist() == [-1, -1, 1]  # 0.5 x 0 + 0.5 x 2 / 1
    assert shard.version == 8


@pytest.mark.parametrize("scope", ["touched", "all"])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_step_of_lost_parts_alone(kernels: Kernels, scope: str, weight: float) -> None:
    """With row_l2=all it decays rows, as one whose gradients are 0."""
    shard = Shard(replace(SPEC, row_l2=scope, row_weight_decay=0.25), kernels)
    shard.table[:] = 1
    shard.take_over(3, [0, 1])
    shard.apply(order(3, 0, 1, weight=weight))
    assert shard.table[0, 0] == (0.75 if scope == "all" and weight else 1.0)
    assert shard.dense_block().step == 0 and shard.version == 4


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_lost_parts_where_rows_have_a_staleness_of_their_own(kernels: Kernels, weight: float) -> None:
    shard = Shard(replace(SPEC, row_staleness="row"), kernels)
    shard.table[:] = 0
    shard.take_over(0, [0])
    shard.note_pull(1, np.array([2], np.int32))
    shard.stage(1, part(2))
    shard.apply(order(0, 0, 1)._replace(row_weights=((1.0, weight), (1.0, weight))))
    assert shard.table[:, 0].tolist() == [0, 0, -0.5, 0, 0, 0]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_it_begins_again_as_it_began(kernels: Kernels, name: str) -> None:
    optimizer = OptimizerSpec(name, 0.1, initial_accumulator=0.5)
    spec = replace(SPEC, row_optimizer=optimizer, dense_optimizer=optimizer, dense_init=np.arange(3, dtype=F))
    shard, first = Shard(spec, kernels), Shard(spec, kernels)
    shard.stage(0, part(1, 2))
    shard.apply(order(0, 0))
    shard.stage(1, part(3))
    assert shard.checksum() != first.checksum()
    shard.restart()
    assert shard.checksum() == first.checksum() and (shard.version, shard.staged) == (0, ())
    for each in (shard, first):
        each.stage(0, part(1, 2))
        each.apply(order(0, 0))
    assert shard.checksum() == first.checksum()

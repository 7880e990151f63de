"""A shard: what it stages, what an order does, what it refuses, what it holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gbactl.errors import ConfigError
from gbactl.kernels import load
from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseSpec, dense_square
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec
from gbactl.store.shard_rows import NORMS_SAMPLED, row_norms

F = np.float32
SPEC = ShardSpec(
    shard=0, shards=1, rows=10, width=2, row_optimizer=OptimizerSpec("sgd", 1.0),
    dense=DenseSpec(3), dense_optimizer=OptimizerSpec("sgd", 1.0), dense_init=np.zeros(3, F),
)  # fmt: skip


def part(*rows: int, value: float = 1.0, dense: float | None = 1.0, **more: Any) -> GradientSlice:
    return GradientSlice(
        np.array(rows, np.int32),
        np.full((len(rows), 2), value, F),
        None if dense is None else np.full(3, dense, F),
        **more,
    )


def make(kernels: Kernels, **changes: Any) -> Shard:
    shard = Shard(replace(SPEC, **changes), kernels)
    shard.table[:] = 0
    return shard


def rows(shard: Shard) -> list[float]:
    return [float(value) for value in shard.table[:, 0]]


def test_one_step_sums_weighs_and_divides(kernels: Kernels) -> None:
    shard = make(kernels)
    assert shard.stage(4, part(1, 2))
    assert shard.stage(7, part(2, 3, value=3.0, dense=2.0))
    assert shard.apply(StepOrder(0, ((4, 1.0), (7, 0.5)), divisor=2.0, weight_sum=1.5)) == (4, 7)
    assert rows(shard) == [0, -0.5, -1.25, -0.75, 0, 0, 0, 0, 0, 0]
    out = np.empty(3, F)
    shard.pull_dense(out)
    assert out.tolist() == [-1, -1, -1]
    assert shard.version == 1
    assert shard.staged == ()


def test_contributors_divide_by_those_that_carry_the_row(kernels: Kernels) -> None:
    shard = make(kernels, sparse_divisor="contributors")
    for batch, made in enumerate([part(1, 2), part(2, value=3.0), part(2, 5)]):
        shard.stage(batch, made)
    shard.apply(StepOrder(0, ((0, 1.0), (1, 0.5), (2, 0.0)), divisor=100.0, weight_sum=1.5))
    assert rows(shard)[:6] == [0, -1, -1.25, 0, 0, 0]
    shard.stage(3, part(0))
    shard.apply(StepOrder(1, ((3, 0.5),), divisor=100.0, weight_sum=0.5))
    assert rows(shard)[0] == -0.5


def test_to_contributors_a_short_batch_counts_as_its_share(kernels: Kernels) -> None:
    shard = make(kernels, sparse_divisor="contributors")
    for batch, made in enumerate([part(1, 2), part(2, 5, value=3.0), part(2)]):
        shard.stage(batch, made)
    order = StepOrder(0, ((0, 1.0), (1, 0.25), (2, 0.0)), 1.25, 1.25, shares=(1.0, 0.25, 1.0))
    assert shard.gradient_norms(order)[1] == pytest.approx([2**0.5 * r for r in (1, 1.75 / 1.25, 3)])
    shard.apply(order)
    assert rows(shard)[:6] == [0, -1, F(-1.75) / F(1.25), 0, 0, -3]
    shard.stage(3, part(0))
    shard.apply(StepOrder(1, ((3, 0.25),), 0.25, 0.25, shares=(0.25,)))
    assert rows(shard)[0] == -1


def test_to_contributors_an_accepted_gradient_counts_as_its_weight(kernels: Kernels) -> None:
    shard = make(kernels, sparse_divisor="contributors")
    for batch, made in enumerate([part(1, 2), part(2, 5, value=3.0)]):
        shard.stage(batch, made)
    shard.apply(StepOrder(0, ((0, 1.0), (1, 0.25)), 1.25, 1.25, accepted=True, shares=(1.0, 0.5)))
    assert rows(shard)[:6] == [0, -1, F(-1.75) / F(1.25), 0, 0, -3]


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 0.0), (1.0, float("nan")), (1.0, -1.0), (1.0, 1.0, 1.0)])
def test_shares_that_cannot_be_change_nothing(kernels: Kernels, shares: tuple[float, ...]) -> None:
    shard = make(kernels, sparse_divisor="contributors")
    shard.stage(0, part(1)), shard.stage(1, part(2))
    with pytest.raises(ValueError, match="Step 0 has a share"):
        shard.apply(StepOrder(0, ((0, 1.0), (1, 1.0)), 2.0, 2.0, shares=shares))
    assert (shard.version, shard.staged, rows(shard)) == (0, (0, 1), [0] * 10)


def test_row_decay_on_touched_rows_or_on_all(kernels: Kernels) -> None:
    for scope, untouched in (("touched", 1.0), ("all", 0.75)):
        shard = make(kernels, row_l2=scope, row_weight_decay=0.25)
        shard.table[:] = 1
        shard.stage(0, part(3))
        shard.apply(StepOrder(0, ((0, 1.0),), 2.0, 1.0))
        assert rows(shard) == [untouched] * 3 + [0.25] + [untouched] * 6
        shard.stage(1, part(0, value=4.0))
        shard.apply(StepOrder(1, ((1, 0.0),), 2.0, 1.0))
        assert rows(shard) == [untouched] * 3 + [0.25] + [untouched] * 6


@pytest.mark.parametrize("scope", ["touched", "all"])
def test_weight_0_touches_nothing(kernels: Kernels, scope: str) -> None:
    adam = OptimizerSpec("adam", 0.1)
    shards = []
    for extra in ([], [1, 2]):
        shard = make(kernels, row_optimizer=adam, dense_optimizer=adam, row_l2=scope, row_weight_decay=0.1)
        shard.stage(0, part(1, 2))
        for batch in extra:
            shard.stage(batch, part(2, 7, value=float("inf"), dense=float("nan")))
        members = [(1, 0.0), (0, 1.0), (2, 0.0)] if extra else [(0, 1.0)]
        shard.apply(StepOrder(0, tuple(members), 1.0, 1.0))
        shards.append(shard)
    assert shards[0].checksum() == shards[1].checksum()


def test_all_weights_0_advances_the_version_alone(kernels: Kernels) -> None:
    shard = make(kernels, dense_optimizer=OptimizerSpec("adam"), row_l2="all", row_weight_decay=0.5)
    shard.stage(0, part(1))
    before = shard.checksum()
    assert shard.apply(StepOrder(0, ((0, 0.0),), divisor=0.0, weight_sum=0.0)) == (0,)
    assert (shard.version, shard.checksum()) == (1, before)
    assert int(shard.dense_state()["step"][0]) == 0
    assert not shard.stage(0, part(1))


def test_a_batch_is_applied_at_most_once_a_phase(kernels: Kernels) -> None:
    shard = make(kernels)
    assert shard.stage(5, part(1))
    assert not shard.stage(5, part(2))
    shard.apply(StepOrder(0, ((5, 1.0),), 1.0, 1.0))
    assert not shard.stage(5, part(3))
    assert shard.staged == ()
    shard.begin_phase()
    assert shard.stage(5, part(4))
    shard.apply(StepOrder(1, ((5, 1.0),), 1.0, 1.0))
    assert rows(shard)[:5] == [0, -1, 0, 0, -1]


def test_a_dropped_part_may_come_again(kernels: Kernels) -> None:
    shard = make(kernels)
    shard.stage(0, part(1))
    assert shard.drop(0)
    assert not shard.drop(0)
    with pytest.raises(ValueError, match="not staged"):
        shard.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0))
    assert shard.stage(0, part(2))


@pytest.mark.parametrize(
    "order",
    [
        StepOrder(1, ((0, 1.0),), 1.0, 1.0),
        StepOrder(0, ((0, 1.0), (9, 1.0)), 1.0, 1.0),
        StepOrder(0, ((0, 1.0), (0, 1.0)), 1.0, 1.0),
        StepOrder(0, ((0, 1.0), (1, -1.0)), 1.0, 1.0),
        StepOrder(0, ((0, float("nan")),), 1.0, 1.0),
        StepOrder(0, ((0, 1.0),), 0.0, 1.0),
        StepOrder(0, ((0, 1.0),), 1.0, float("inf")),
        StepOrder(0, ((0, 1.0), (2, 1.0)), 1.0, 1.0),
    ],
)
def test_an_order_that_cannot_be_changes_nothing(kernels: Kernels, order: StepOrder) -> None:
    shard = make(kernels)
    shard.stage(0, part(1))
    shard.stage(1, part(2))
    shard.stage(2, part(3, dense=None))
    before = shard.checksum()
    with pytest.raises(ValueError, match="Step "):
        shard.apply(order)
    assert (shard.version, shard.checksum(), shard.staged) == (0, before, (0, 1, 2))


@pytest.mark.parametrize(
    "bad",
    [
        part(10), part(-1), part(1, 1),
        GradientSlice(np.array([1], np.int64), np.ones((1, 2), F)),  # type: ignore[arg-type]
        GradientSlice(np.array([1, 2], np.int32), np.ones((1, 2), F)),
        GradientSlice(np.array([1], np.int32), np.ones((1, 3), F)),
        GradientSlice(np.array([1], np.int32), np.ones((1, 2), F), np.ones(2, F)),
    ],
)  # fmt: skip
def test_a_bad_part_is_refused_and_stays_the_callers(kernels: Kernels, bad: GradientSlice) -> None:
    released: list[int] = []
    bad.release = lambda: released.append(1)
    shard = make(kernels)
    with pytest.raises(ValueError, match=r"Refused|must be|expected"):
        shard.stage(0, bad)
    assert shard.staged == ()
    assert released == []


def test_a_part_is_released_once_when_it_is_done_with(kernels: Kernels) -> None:
    released: list[str] = []
    shard = make(kernels)
    names = ("applied", "weightless", "dropped", "detached")
    parts = [part(1, release=lambda name=name: released.append(name)) for name in names]
    for batch, each in enumerate(parts):
        shard.stage(batch, each)
    shard.stage(0, part(1, release=lambda: released.append("repeated")))
    assert released == ["repeated"]
    parts[3].detach()
    shard.apply(StepOrder(0, ((0, 1.0), (1, 0.0), (3, 1.0)), 1.0, 1.0))
    shard.drop(2)
    assert released == ["repeated", "detached", "applied", "weightless", "dropped"]


def test_shared_memory_may_change_after_detach_but_not_the_index(kernels: Kernels) -> None:
    shard = make(kernels)
    shared, held = part(1, release=lambda: None), part(4, release=lambda: None)
    index, grad, late = shared.index, shared.grad, held.index
    shard.stage(0, shared)
    shard.stage(1, held)
    shared.detach()
    index[:], grad[:], late[:] = 9, 100.0, 1_000_000
    shard.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0))
    shard.apply(StepOrder(1, ((1, 1.0),), 1.0, 1.0))
    assert rows(shard) == [0, -1, 0, 0, -1, 0, 0, 0, 0, 0]


def test_rows_may_come_without_a_dense_part(kernels: Kernels) -> None:
    shard = make(kernels)
    shard.stage(0, part(1, dense=None))
    shard.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0))
    assert rows(shard)[1] == -1
    assert int(shard.dense_state()["step"][0]) == 0


def test_pulls(kernels: Kernels) -> None:
    shard = make(kernels)
    shard.table[:, 0] = np.arange(10)
    out = np.empty((3, 2), F)
    shard.pull_rows(np.array([9, 0, 9], np.int32), out)
    assert out[:, 0].tolist() == [9, 0, 9]
    with pytest.raises(ValueError, match="outside"):
        shard.pull_rows(np.array([9, 0, 10], np.int32), out)
    with pytest.raises(ValueError, match="expected"):
        shard.pull_dense(np.empty(2, F))
    with pytest.raises(ValueError, match="no dense"):
        make(kernels, dense=None, dense_init=None).pull_dense(out[0])


def test_dense_state_moves_to_another_shard(kernels: Kernels) -> None:
    adam = OptimizerSpec("adam", 0.1)
    one, other = (make(kernels, dense_optimizer=adam) for _ in range(2))
    for step in range(2):
        one.stage(step, part(1))
        one.apply(StepOrder(step, ((step, 1.0),), 1.0, 1.0))
    assert one.checksum() != other.checksum()
    other.dense_block().load_state(one.dense_state())
    other.table[:] = one.table
    assert one.checksum() == other.checksum()


def test_row_l2_all_is_refused_for_a_large_table() -> None:
    with pytest.raises(ConfigError, match="row_l2=touched"):
        Shard(replace(SPEC, rows=2_000_001, row_l2="all"))
    replace(SPEC, rows=4_000_000, shards=2, row_l2="all").check()


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("width", [16, 17])
def test_memory_is_the_table_and_its_state(kernels: Kernels, name: str, width: int) -> None:
    shard = Shard(ShardSpec(0, 1, 1000, width, row_optimizer=OptimizerSpec(name), dense=None), kernels)
    held = shard.nbytes
    per_row = {"sgd": width, "adagrad": 2 * width, "rowwise_adagrad": width + 1, "adam": 3 * width + 1}[name]
    assert sum(held.values()) == 1000 * 4 * per_row
    shard.stage(0, GradientSlice(np.arange(5, dtype=np.int32), np.ones((5, width), F)))
    assert shard.nbytes["staged"] == 5 * 4 * (width + 1)


def test_the_dense_norm_is_that_of_the_weighted_sum_without_buffers() -> None:
    first, second = np.array([3, 0, 9], np.float32), np.array([0, 8, 9], np.float32)
    assert dense_square([(first, 1.0), (second, 0.5)], 2, 5.0) == pytest.approx((3**2 + 4**2) / 25)


def test_rows_that_several_gradients_carry_are_summed_first() -> None:
    one = (np.array([7, 2], np.int32), np.array([[3, 0], [1, 0]], np.float32), 1.0)
    two = (np.array([7], np.int32), np.array([[0, 2]], np.float32), 2.0)
    assert row_norms([one, two], 2.0, load()) == pytest.approx([0.5, 2.5])


def test_a_sample_is_spread_over_the_rows() -> None:
    index = np.arange(100, dtype=np.int32)[::-1].copy()
    part = (index, index.astype(np.float32).reshape(-1, 1), 1.0)
    found = row_norms([part], 1.0, load())
    assert len(found) <= NORMS_SAMPLED
    assert found == sorted(found) and found[0] == 0 and found[-1] >= 96


def test_nothing_has_no_norm() -> None:
    empty = (np.empty(0, np.int32), np.empty((0, 2), np.float32), 1.0)
    assert row_norms([empty], 1.0, load()) == row_norms([], 1.0, load()) == []


def test_a_shard_tells_those_of_a_step_before_it_is_applied() -> None:
    sgd = OptimizerSpec("sgd", 1.0)
    shard = Shard(ShardSpec(0, 1, 4, 1, row_optimizer=sgd, dense=DenseSpec(2, 1), dense_optimizer=sgd))
    before = shard.checksum()
    for batch in (0, 1):
        grad = np.full((1, 1), 6, np.float32)
        dense = np.array([6, 8, 100], np.float32)
        shard.stage(batch, GradientSlice(np.array([batch], np.int32), grad, dense))
    square, rows = shard.gradient_norms(StepOrder(0, ((0, 1.0), (1, 0.0)), 2.0, 1.0))
    assert math.sqrt(square) == pytest.approx(5.0)
    assert rows == pytest.approx([3.0])
    assert shard.checksum() == before

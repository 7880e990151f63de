"""row_staleness=row: what a row weighs by the steps that touched it since it was pulled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.kernels import load
from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseSpec
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

F = np.float32
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad", "adam"]
SPEC = ShardSpec(
    shard=0, shards=1, rows=6, width=2, row_optimizer=OptimizerSpec("sgd", 1.0), row_staleness="row",
    dense=DenseSpec(3), dense_optimizer=OptimizerSpec("sgd", 1.0), dense_init=np.zeros(3, F),
)  # fmt: skip
HALVES = (1.0, 0.5, 0.25, 0.125)


def make(kernels: Kernels, **changes: Any) -> Shard:
    shard = Shard(replace(SPEC, **changes), kernels)
    shard.table[:] = 0
    return shard


def pull(shard: Shard, batch: int, *rows: int) -> None:
    shard.note_pull(batch, np.array(rows, np.int32))


def push(shard: Shard, batch: int, *rows: int, value: float = 1.0) -> None:
    index = np.array(rows, np.int32)
    assert shard.stage(batch, GradientSlice(index, np.full((len(rows), 2), value, F), np.full(3, value, F)))


def touch(shard: Shard, batch: int, *rows: int) -> None:
    """A step from a fresh gradient of ones."""
    pull(shard, batch, *rows)
    push(shard, batch, *rows)
    shard.apply(StepOrder(shard.version, ((batch, 1.0),), 1.0, 1.0, row_weights=((1.0,),)))


def rows(shard: Shard) -> list[float]:
    return [float(value) for value in shard.table[:, 0]]


def test_a_row_weighs_by_the_steps_that_touched_it_since_it_was_pulled(kernels: Kernels) -> None:
    shard = make(kernels)
    pull(shard, 9, 0, 1, 2)
    touch(shard, 0, 1, 2)
    touch(shard, 1, 2)
    before = rows(shard)
    push(shard, 9, 0, 1, 2)
    shard.apply(StepOrder(2, ((9, 0.25),), 1.0, 0.25, row_weights=(HALVES[:3],)))
    assert [old - new for old, new in zip(before, rows(shard), strict=True)] == [1.0, 0.5, 0.25, 0, 0, 0]


def test_never_more_than_the_token_staleness(kernels: Kernels) -> None:
    shard = make(kernels)
    pull(shard, 9, 0, 1)
    for batch in range(5):
        touch(shard, batch, 1)
    push(shard, 9, 0, 1)
    shard.apply(StepOrder(5, ((9, 0.5),), 1.0, 0.5, row_weights=(HALVES[:2],)))
    assert rows(shard)[:2] == [-1.0, -5.5]


@pytest.mark.parametrize("scope", ["touched", "all"])
def test_a_row_of_weight_0_is_left_out_entirely(kernels: Kernels, scope: str) -> None:
    """No step, no count, no decay of its own; and what is in it spreads nowhere."""
    adam = OptimizerSpec("adam", 0.1)
    shards = []
    for stale in (False, True):
        shard = make(kernels, row_optimizer=adam, row_l2=scope, row_weight_decay=0.1)
        shard.table[:] = 1
        pull(shard, 9, *([0, 1] if stale else [0]))
        touch(shard, 0, 1)
        push(shard, 9, *([0, 1] if stale else [0]))
        if stale:
            shard._staged[9].grad[1] = np.nan
        shard.apply(StepOrder(1, ((9, 0.0),), 2.0, 0.0, row_weights=((1.0, 0.0),)))
        shards.append(shard)
    assert shards[0].checksum() == shards[1].checksum()
    assert shards[1].rows.touch_counts.tolist() == [1, 1, 0, 0, 0, 0]


def test_a_gradient_of_dense_weight_0_may_still_touch_rows(kernels: Kernels) -> None:
    shard = make(kernels)
    pull(shard, 9, 0, 1)
    touch(shard, 0, 1)
    dense = shard.dense_state()["value"].tolist()
    push(shard, 9, 0, 1)
    assert shard.apply(StepOrder(1, ((9, 0.0),), 2.0, 0.0, row_weights=((1.0, 0.0),))) == (9,)
    assert rows(shard)[:2] == [-0.5, -1.0]
    assert shard.dense_state()["value"].tolist() == dense
    assert shard.version == 2


@pytest.mark.parametrize("scope", ["touched", "all"])
@pytest.mark.parametrize(("divisor", "weights"), [(2.0, (0.0, 0.0)), (0.0, (1.0, 0.0))])
def test_if_all_weigh_nothing_or_nothing_is_accepted_only_the_version_advances(
    kernels: Kernels, scope: str, divisor: float, weights: tuple[float, ...]
) -> None:
    shard = make(kernels, row_optimizer=OptimizerSpec("adam"), row_l2=scope, row_weight_decay=0.5)
    shard.table[:] = 1
    before = shard.checksum()
    pull(shard, 0, 0, 1)
    push(shard, 0, 0, 1)
    shard.apply(StepOrder(0, ((0, 0.0),), divisor, 0.0, row_weights=(weights,)))
    assert (shard.version, shard.checksum()) == (1, before)


def test_the_dense_part_counts_where_no_row_does(kernels: Kernels) -> None:
    shard = make(kernels, row_l2="all", row_weight_decay=0.5)
    shard.table[:] = 1
    push(shard, 0)
    shard.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0, row_weights=((1.0,),)))
    assert rows(shard) == [0.5] * 6
    assert shard.dense_state()["value"].tolist() == [-1.0] * 3


def test_contributors_are_those_whose_row_weighs_something(kernels: Kernels) -> None:
    shard = make(kernels, sparse_divisor="contributors")
    for batch in (7, 8, 9):
        pull(shard, batch, *([0, 1] if batch < 9 else [0]))
    touch(shard, 0, 1)
    before = rows(shard)
    pull(shard, 6, 1)
    for batch in (7, 8):
        push(shard, batch, 0, 1)
    push(shard, 9, 0, value=4.0)
    push(shard, 6, 1, value=3.0)
    own = ((1.0, 0.0), (1.0, 0.5), (1.0, 0.0), (1.0,))
    shard.apply(StepOrder(1, ((7, 0.0), (8, 0.5), (9, 0.0), (6, 1.0)), 4.0, 1.5, row_weights=own))
    change = [old - new for old, new in zip(before, rows(shard), strict=True)]
    assert change[:2] == [(1 + 1 + 4) / 3, (0.5 + 3) / 2]


def test_an_accepted_row_s_own_weights_take_the_place_of_the_dense_ones(kernels: Kernels) -> None:
    """Rows that nobody touched meanwhile weigh 1 in all four gradients, of which the dense part accepts one."""
    shard = make(kernels)
    for batch in (6, 7, 8):
        pull(shard, batch, 0, 1)
    touch(shard, 0, 1)
    before = rows(shard)
    pull(shard, 9, 0, 1)
    for batch in (6, 7, 8, 9):
        push(shard, batch, 0, 1)
    members = ((6, 0.0), (7, 0.0), (8, 0.0), (9, 1.0))
    order = StepOrder(1, members, 1.0, 1.0, row_weights=((1.0, 0.0),) * 3 + ((1.0,),), accepted=True)
    assert shard.gradient_norms(order)[1] == pytest.approx([2**0.5, 2**0.5])
    shard.apply(order)
    assert [old - new for old, new in zip(before, rows(shard), strict=True)][:2] == [1.0, 1.0]


@dataclass(frozen=True)
class Gradient:
    """A member of a step: its share of a local batch, f(0) .. f(token staleness), row -> how often that was touched
    since it was pulled, and the gradient of the rows."""

    share: float
    factors: tuple[float, ...]
    touched: dict[int, int]
    value: float

    @property
    def weight(self) -> float:
        return self.factors[-1] * self.share

    def own(self, row: int) -> float:
        return self.factors[min(self.touched[row], len(self.factors) - 1)] * self.share


def divisor_of(row: int, members: list[Gradient], rule: str, accepted: bool, by_row: bool) -> float:
    """Rule 5: whom a row's sum counts, every member (global) or those that carry it, and as what: as its samples, or,
    where weights are counted, as the row's own weight; a gradient without the row has but one weight."""
    carry = [m for m in members if row in m.touched and (m.own(row) if by_row else m.weight) > 0]
    if not accepted:
        return sum(m.share for m in (members if rule == "global" else carry))
    rest = [m for m in members if m not in carry] if rule == "global" else []
    return sum(m.own(row) if by_row else m.weight for m in carry) + sum(m.weight for m in rest)


factors = st.lists(st.sampled_from([1.0, 0.5, 0.25, 0.0]), min_size=1, max_size=4).map(
    lambda found: (1.0, *sorted(found[1:], reverse=True))
)
members_of_a_step = st.lists(
    st.builds(
        Gradient, st.sampled_from([1.0, 0.75, 0.25]), factors,
        st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=6), st.sampled_from([1.0, -2.0, 3.0]),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members_of_a_step, st.sampled_from(["global", "contributors"]), st.booleans(), st.booleans())
def test_a_row_s_sum_is_divided_as_the_rule_says(
    kernels: Kernels, members: list[Gradient], rule: str, accepted: bool, by_row: bool
) -> None:
    shard = make(kernels, sparse_divisor=rule, row_staleness="row" if by_row else "token")
    for batch, member in enumerate(members):
        index = np.array(sorted(member.touched), np.int32)
        part = GradientSlice(index, np.full((len(index), 2), member.value, F), np.full(3, member.value, F))
        pull(shard, batch, *index.tolist())
        shard.stage(batch, part)
        if by_row:  # as if the row had been touched so often since
            part.touches = -np.array([member.touched[row] for row in index], np.uint32)
    weight_sum = sum(m.weight for m in members)
    divisor = weight_sum if accepted else sum(m.share for m in members)
    order = StepOrder(0, tuple((b, m.weight) for b, m in enumerate(members)), divisor, weight_sum, accepted=accepted)
    if by_row:
        order = order._replace(row_weights=tuple(tuple(f * m.share for f in m.factors) for m in members))
    shard.apply(order._replace(shares=tuple(m.share for m in members)))
    for row in range(6):
        moved = sum((m.own(row) if by_row else m.weight) * m.value for m in members if row in m.touched)
        if divisor and moved:
            moved /= divisor_of(row, members, rule, accepted, by_row)
        assert -rows(shard)[row] == pytest.approx(moved if divisor else 0.0, rel=1e-6)


@pytest.mark.parametrize("divisor", ["global", "contributors"])
def test_where_nothing_is_stale_an_accepted_step_is_any_other(kernels: Kernels, divisor: str) -> None:
    """So a step of gba in lock-step stays that of sync, whatever `divisor` and `row_staleness` are."""
    tables = []
    for accepted in (False, True):
        shard = make(kernels, sparse_divisor=divisor)
        for batch, ids in enumerate([(0, 1), (1, 2), (1, 3), (5,)]):
            pull(shard, batch, *ids)
            push(shard, batch, *ids, value=0.1 * batch)
        members = tuple((batch, 1.0) for batch in range(4))
        shard.apply(StepOrder(0, members, 4.0, 4.0, row_weights=((1.0, 0.5),) * 4, accepted=accepted))
        tables.append(shard.table.view(np.int32).copy())
    np.testing.assert_array_equal(*tables)


def test_without_a_note_of_the_same_rows_the_weight_is_that_of_the_token(kernels: Kernels) -> None:
    shard = make(kernels)
    pull(shard, 0, 0, 2)
    pull(shard, 1, 2)
    pull(shard, 2, 0)
    shard.drop(2)
    for batch in range(3):
        push(shard, batch, 0)
    members = tuple((batch, 0.5) for batch in range(3))
    shard.apply(StepOrder(0, members, 1.0, 1.5, row_weights=((1.0, 0.5),) * 3))
    assert rows(shard)[0] == -1.5


def test_the_last_pull_counts(kernels: Kernels) -> None:
    shard = make(kernels)
    pull(shard, 9, 0)
    touch(shard, 0, 0)
    pull(shard, 9, 0)
    push(shard, 9, 0)
    shard.apply(StepOrder(1, ((9, 0.5),), 1.0, 0.5, row_weights=((1.0, 0.5),)))
    assert rows(shard)[0] == -2.0


def test_notes_take_memory_only_while_their_batch_is_outstanding(kernels: Kernels) -> None:
    shard = make(kernels)
    empty = shard.nbytes
    for batch in range(-1, 4):  # a negative one is an evaluation's
        pull(shard, batch, 0, 1, 2)
    assert shard.nbytes["staged"] == 4 * 3 * 8
    push(shard, 0, 0, 1, 2)
    shard.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0, row_weights=((1.0,),)))
    pull(shard, 0, 0, 1, 2)
    shard.drop(1)
    assert shard.nbytes["staged"] == 2 * 3 * 8
    shard.begin_phase()
    assert shard.nbytes == empty
    assert empty["counts"] == 6 * 4
    plain = make(kernels, row_staleness="token")
    pull(plain, 0, 0, 1, 2)
    assert plain.nbytes["staged"] == plain.nbytes["counts"] == 0


@pytest.mark.parametrize(
    "own", [((1.0,),), ((1.0,), ()), ((1.0,), (-1.0,)), ((1.0,), (float("nan"),)), ((1.0,), (float("inf"),))]
)
def test_row_weights_that_cannot_be_change_nothing(kernels: Kernels, own: Any) -> None:
    shard = make(kernels)
    push(shard, 0, 1), push(shard, 1, 2)
    before = shard.checksum()
    with pytest.raises(ValueError, match=r"Step 0 has .*row weight"):
        shard.apply(StepOrder(0, ((0, 1.0), (1, 1.0)), 2.0, 2.0, row_weights=own))
    assert (shard.version, shard.checksum(), shard.staged) == (0, before, (0, 1))
    plain = make(kernels, row_staleness="token")
    push(plain, 0, 1)
    with pytest.raises(ValueError, match=r"has row weights, which need mode\.row_staleness=row"):
        plain.apply(StepOrder(0, ((0, 1.0),), 1.0, 1.0, row_weights=((1.0,),)))


def test_a_pull_of_a_row_that_is_not_there_is_refused(kernels: Kernels) -> None:
    for row in (-1, 6):
        with pytest.raises(ValueError, match="Refused"):
            pull(make(kernels), 0, row)


def run(kernels: Kernels, shards: int, seed: int, **changes: Any) -> tuple[Any, list[Any], Any]:
    """Random pulls, pushes and steps over `shards` shards; the table, all touches, and the model's touches."""
    rng = np.random.default_rng(seed)
    made = [
        Shard(replace(SPEC, shard=s, shards=shards, rows=40, dense=None, dense_init=None, seed=5, **changes), kernels)
        for s in range(shards)
    ]
    touches, pulled = np.zeros(40, int), {}
    flying: list[int] = []
    for batch in range(60):
        ids = rng.permutation(np.unique(rng.zipf(1.4, 12) % 40)).astype(np.int32)
        pulled[batch] = ids, touches[ids].copy()
        flying.append(batch)
        for s, shard in enumerate(made):
            shard.note_pull(batch, ids[ids % shards == s] // shards)
        if len(flying) < 8:
            continue
        members = [flying.pop(int(rng.integers(len(flying)))) for _ in range(3)]
        own = [(1.0, 0.5, 0.3, 0.0)[: int(rng.integers(1, 5))] for _ in members]
        hit: set[int] = set()
        for member, weights in zip(members, own, strict=True):
            ids, seen = pulled[member]
            stale = np.minimum(touches[ids] - seen, len(weights) - 1)
            hit.update(int(row) for row, at in zip(ids, stale, strict=True) if weights[at] > 0)
            grad = rng.standard_normal((len(ids), 2)).astype(F)
            for s, shard in enumerate(made):
                mine = ids % shards == s
                shard.stage(member, GradientSlice(ids[mine] // shards, grad[mine]))
        order = StepOrder(
            made[0].version, tuple((m, w[-1]) for m, w in zip(members, own, strict=True)), 3.0,
            sum(w[-1] for w in own), row_weights=tuple(own),
        )  # fmt: skip
        for s, shard in enumerate(made):
            mine = {row // shards for row in hit if row % shards == s}
            assert set(shard.touched_rows(order).tolist()) == mine
            shard.apply(order)
        touches[sorted(hit)] += 1
    table, counted = np.empty((40, 2), F), np.zeros(40, int)
    for s, shard in enumerate(made):
        table[s::shards], counted[s::shards] = shard.table, shard.rows.touch_counts
    return table, counted.tolist(), touches.tolist()


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scope", ["touched", "all"])
@pytest.mark.parametrize("divisor", ["global", "contributors"])
def test_same_bits_on_any_number_of_shards_and_touches_as_counted_by_hand(
    kernels: Kernels, name: str, scope: str, divisor: str
) -> None:
    changes: dict[str, Any] = {
        "row_optimizer": OptimizerSpec(name, 0.05), "row_l2": scope, "row_weight_decay": 0.02,
        "sparse_divisor": divisor,
    }  # fmt: skip
    table, counted, model = run(kernels, 1, 0, **changes)
    assert counted == model
    assert np.isfinite(table).all()
    for shards in (2, 3):
        other, counted, _ = run(kernels, shards, 0, **changes)
        assert counted == model
        np.testing.assert_array_equal(table.view(np.int32), other.view(np.int32))
    twin, _, _ = run(load("twin"), 1, 0, **changes)
    np.testing.assert_array_equal(table.view(np.int32), twin.view(np.int32))


@pytest.mark.parametrize("divisor", ["global", "contributors"])
@pytest.mark.parametrize("members", [1, 3])
def test_rows_no_fresher_than_their_token_give_the_bits_of_row_staleness_token(
    kernels: Kernels, divisor: str, members: int
) -> None:
    """Every step touches every row: a row's staleness is the token's."""
    tables = []
    for staleness in ("token", "row"):
        shard = make(kernels, row_optimizer=OptimizerSpec("adam", 0.1), sparse_divisor=divisor, row_staleness=staleness)
        rng = np.random.default_rng(1)
        batches = list(range(members * 5))
        for batch in batches:
            pull(shard, batch, *range(6))
        for step in range(5):
            weights = tuple(0.7**s for s in range(step + 1))
            chosen = batches[step * members : (step + 1) * members]
            for batch in chosen:
                shard.stage(batch, GradientSlice(np.arange(6, dtype=np.int32), rng.standard_normal((6, 2)).astype(F)))
            order = StepOrder(step, tuple((b, weights[-1]) for b in chosen), 3.0, weights[-1] * members)
            shard.apply(order._replace(row_weights=(weights,) * members) if staleness == "row" else order)
        tables.append(shard.table.view(np.int32).copy())
    np.testing.assert_array_equal(*tables)

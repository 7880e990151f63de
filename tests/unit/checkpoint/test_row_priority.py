"""Which rows are saved first, against what their definitions say."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checkpoint import row_priority
from gbactl.checkpoint.row_priority import Mfu, Scar, Ssu
from gbactl.errors import ConfigError

ROWS = 40
SPANS = [(2, 12), (20, 40)]
INSIDE = {row for low, high in SPANS for row in range(low, high)}
touches = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=20, unique=True), max_size=20)


def ints(rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int32)


@given(touches, st.integers(0, 35))
def test_mfu_saves_those_used_most_and_clears_them(steps: list[list[int]], count: int) -> None:
    order, table = Mfu(ROWS, SPANS), np.zeros((ROWS, 2), np.float32)
    for rows in steps:
        order.count_updates(ints(rows))
    uses = Counter(row for rows in steps for row in rows if row in INSIDE)
    chosen = order.choose(count, table).tolist()
    assert chosen == sorted(set(chosen)) and len(chosen) == min(count, len(uses))
    left = [uses[row] for row in uses if row not in chosen]
    assert all(uses[row] >= max(left, default=0) for row in chosen)
    rest = order.choose(ROWS, table).tolist()
    assert set(rest) == set(uses) - set(chosen)
    assert order.choose(ROWS, table).tolist() == []


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(-8, 8)), max_size=60), st.integers(0, 35))
def test_scar_saves_those_that_changed_most(changes: list[tuple[int, int]], count: int) -> None:
    table = np.zeros((ROWS, 2), np.float32)
    order = Scar(table, SPANS)
    for row, by in changes:
        table[row] += by
    moved = {row: abs(float(table[row, 0])) for row in INSIDE if table[row, 0] != 0}
    chosen = order.choose(count, table).tolist()
    assert chosen == sorted(set(chosen)) and len(chosen) == min(count, len(moved))
    left = [moved[row] for row in moved if row not in chosen]
    assert all(moved[row] >= max(left, default=0) for row in chosen)
    assert set(order.choose(ROWS, table).tolist()) == set(moved) - set(chosen)
    assert order.choose(ROWS, table).tolist() == []


@given(touches, st.integers(1, 30), st.integers(0, 99))
def test_ssu_holds_a_sample_of_what_was_used(steps: list[list[int]], room: int, seed: int) -> None:
    orders = [Ssu(ROWS, SPANS, room, seed) for _ in range(2)]
    table, seen = np.zeros((ROWS, 2), np.float32), 0
    second: set[int] = set()
    for rows in steps:
        for order in orders:
            order.count_updates(ints(rows))
        second |= {row for place, row in enumerate(rows, seen) if place % 2 == 0 and row in INSIDE}
        seen += len(rows)
    assert orders[0]._count == min(room, len(second)) or len(second) > room
    chosen, again = (order.choose(room, table).tolist() for order in orders)
    assert chosen == again, "the same seed"
    assert chosen == sorted(set(chosen)) and set(chosen) <= second and len(chosen) <= room
    if len(second) <= room:
        assert set(chosen) == second
    assert orders[0]._count == 0


def test_a_full_set_of_ssu_lets_new_rows_in_and_stays_full() -> None:
    order = Ssu(1000, [(0, 1000)], 10, 0)
    for low in range(0, 1000, 100):
        order.count_updates(np.arange(low, low + 100, dtype=np.int32))
    assert order._count == 10
    chosen = order.choose(10, np.zeros((1000, 1), np.float32))
    assert len(set(chosen.tolist())) == 10
    assert chosen.max() >= 500, "those that came first cannot all have stayed"
    order.count_updates(chosen)
    assert order._count == 5, "it is open again for what was in it"


@pytest.mark.parametrize("name", ["scar", "mfu", "ssu"])
def test_a_whole_save_forgets_what_was_noted(name: str) -> None:
    table = np.zeros((ROWS, 2), np.float32)
    order = row_priority.make(name, table, SPANS, 0.5, 0)
    table[2:8] += 1
    order.count_updates(np.arange(2, 8, dtype=np.int32))
    order.record_save(table)
    assert len(order.choose(ROWS, table)) == 0
    assert order.nbytes > 0


@pytest.mark.parametrize("name", ["scar", "mfu", "ssu"])
def test_a_shard_without_large_tables_chooses_nothing(name: str) -> None:
    table = np.zeros((3, 2), np.float32)
    order = row_priority.make(name, table, [], 0.5, 0)
    order.count_updates(ints([0, 1]))
    assert len(order.choose(3, table)) == 0


def test_unknown_priorities_are_told() -> None:
    with pytest.raises(ConfigError, match="scar, mfu and ssu"):
        row_priority.make("lru", np.zeros((1, 1), np.float32), [], 0.5, 0)


def test_the_largest_tables_that_hold_a_share() -> None:
    tables = [(0, 10), (10, 500), (500, 510), (510, 1000)]
    assert row_priority.largest_tables(tables, 0.9) == [(10, 500), (510, 1000)]
    assert row_priority.largest_tables(tables, 0.4) == [(10, 500)]
    assert row_priority.largest_tables(tables, 1.0) == tables


@given(st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_local_spans_are_the_rows_that_lie_there(shards: int, sizes: list[int]) -> None:
    edges = np.cumsum([0, *sizes]).tolist()
    tables = [(low, high) for low, high in itertools.pairwise(edges)][::2]
    for shard in range(shards):
        spans = row_priority.local_spans(tables, shard, shards)
        local = [row for low, high in spans for row in range(low, high)]
        expected = [row // shards for low, high in tables for row in range(low, high) if row % shards == shard]
        assert local == expected

"""Updates of rows that lost servers undo, counted once and exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gbactl.checkpoint.pls import PlsCounter
from gbactl.checkpoint.row_updates import RowUpdates, UpdateCounter


def test_what_is_saved_is_not_undone_and_what_is_lost_is_lost_once() -> None:
    counter = UpdateCounter(2)
    counter.applied(0, 10)
    counter.applied(1, 7)
    at = counter.unsaved
    counter.applied(0, 5)
    for shard, updates in enumerate(at):
        counter.saved(shard, updates)
    assert counter.lost(0) == 5 and counter.lost(0) == 0
    counter.missed(0, 3)
    assert (counter.total, counter.total_lost) == (25, 8)
    assert counter.share == 8 / 25 and counter.unsaved == [0, 0]


def test_without_updates_nothing_is_lost() -> None:
    counter = UpdateCounter(3)
    assert counter.lost(1) == 0 and counter.share == 0.0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("touch"), st.sets(st.integers(0, 9))),
            st.tuples(st.just("save"), st.sets(st.integers(0, 9))),
            st.tuples(st.just("all"), st.just(set())),
        )
    )
)
def test_every_row_is_undone_back_to_its_own_save(events: list[tuple[str, set[int]]]) -> None:
    rows, counter, since = RowUpdates(10), UpdateCounter(1), dict.fromkeys(range(10), 0)
    for kind, chosen in events:
        index = np.array(sorted(chosen), np.int32)
        if kind == "touch":
            rows.touched(index)
            counter.applied(0, len(index))
            since.update({row: since[row] + 1 for row in chosen})
        else:
            counter.saved(0, rows.saved(None if kind == "all" else index))
            since.update(dict.fromkeys(range(10) if kind == "all" else chosen, 0))
    assert counter.lost(0) == sum(since.values())


def test_parts_that_never_came_count_in_the_pls() -> None:
    pls = PlsCounter(1000, 2)
    pls.saved(100)
    assert pls.lost(0, 300) == 200 / 2000
    assert pls.missed(0, 50) == 50 / 2000
    assert pls.total == 250 / 2000 and pls.of[1] == 0.0

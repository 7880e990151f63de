"""A snapshot is the moment it was taken at, whatever training changes meanwhile."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gbactl.server.snapshot import Snapshot

ROWS = 30
Action = tuple[str, list[int]]
actions = st.lists(
    st.one_of(
        st.tuples(st.just("piece"), st.lists(st.integers(1, 12), min_size=1, max_size=1)),
        st.tuples(st.just("step"), st.lists(st.integers(0, ROWS - 1), max_size=10, unique=True)),
        st.tuples(st.just("all"), st.just([])),
    ),
    max_size=30,
)


@given(actions, st.one_of(st.none(), st.lists(st.integers(0, ROWS - 1), unique=True).map(sorted)))
def test_pieces_together_are_the_moment(todo: list[Action], rows: list[int] | None) -> None:
    rng = np.random.default_rng(0)
    arrays = {"rows": rng.random((ROWS, 3), np.float32), "counts": np.arange(ROWS, dtype=np.uint32)}
    before = {name: array.copy() for name, array in arrays.items()}
    index = None if rows is None else np.array(rows, np.int32)
    snapshot, found = Snapshot(arrays, index), []
    for what, numbers in todo:
        if what == "piece":
            found.append(snapshot.piece(numbers[0]))
            continue
        changed = None if what == "all" else np.array(numbers, np.int32)
        snapshot.changing(changed)
        for array in arrays.values():
            array[slice(None) if changed is None else changed] += 1
    while not snapshot.done:
        found.append(snapshot.piece(4))
    for name, array in before.items():
        parts = [piece[name] for piece in found]
        saved = np.concatenate(parts) if parts else array[:0]
        np.testing.assert_array_equal(saved, array if index is None else array[index])


def test_only_rows_still_to_come_are_kept() -> None:
    table = np.zeros((10, 4), np.float32)
    snapshot = Snapshot({"rows": table}, np.array([1, 5, 7], np.int32))
    snapshot.piece(1)
    snapshot.changing(np.array([0, 1, 2, 5], np.int32))
    assert snapshot.kept_bytes == snapshot.row_bytes == 16

"""A server's saver and its snapshot: the moment it was told at, bounded memory, and what it says when it cannot."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from gbactl.checkpoint import row_priority
from gbactl.checkpoint.failure_cost_counters import UpdateCounter
from gbactl.checkpoint.tensor_file_writer import from_bf16
from gbactl.errors import WireError
from gbactl.server.checkpoint_writer import PIECES_AHEAD, RowChooser, ShardSaver, Snapshot
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.shard import Shard, ShardSpec
from gbactl.wire.messages import Save, Saved
from tests.support.checkpoint_files import fill, spec

ROWS = 3000


def step(shard: Shard, rows: np.ndarray) -> None:
    """Train one gradient that carries these rows."""
    grad = np.ones((len(rows), 3), np.float32)
    dense = np.ones(9, np.float32)
    shard.stage(shard.version, GradientSlice(rows.astype(np.int32), grad, dense))
    shard.apply(StepOrder(shard.version, ((shard.version, 1.0),), 1.0, 1.0))


def saver_of(folder: Path, most_kept: int = 1 << 30, inline: bool = False) -> tuple[Shard, ShardSaver, list[Saved]]:
    shard, told = Shard(spec(0, 1, ROWS)), []
    fill(shard)
    return shard, ShardSaver(shard, folder, RowChooser(shard, None, (), 1.0), most_kept, told.append, inline), told


def ended(saver: ShardSaver, told: list[Saved]) -> Saved:
    deadline = time.monotonic() + 20
    while not told:
        assert time.monotonic() < deadline
        saver.advance()
    return told[0]


@pytest.mark.parametrize("most_kept", [1 << 30, 0])
def test_what_is_saved_is_the_moment_of_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    monkeypatch.setattr("gbactl.server.checkpoint_writer.COPY", 4000)
    shard, saver, told = saver_of(tmp_path, most_kept)
    (tmp_path / "cut-000001").mkdir()
    assert saver.patience is None
    step(shard, np.arange(50))
    before = {name: array.copy() for name, array in {**shard.rows.moments, "rows": shard.table}.items()}
    dense = shard.dense_state()
    saver.begin(Save(1, 1, "cut-000001", "whole", True, 0.0))
    for number in range(40):
        step(shard, np.arange(number * 60, number * 60 + 100))
        if number % 3 == 0:
            saver.advance()
    if not most_kept:
        assert saver._snapshot is None, "it did not hold more than it may"
    found = ended(saver, told)
    saved = load_file(tmp_path / "cut-000001" / "S0.safetensors")
    assert (found.error, found.rows, found.number) == ("", ROWS, 1)
    assert set(found.sums) == {"", *saved}
    np.testing.assert_array_equal(saved["rows"], before["rows"])
    np.testing.assert_array_equal(saved["row_moment.first"], before["first"])
    np.testing.assert_array_equal(saved["dense.value"], dense["value"])
    assert saver.patience is None and shard.watcher is None


def test_rows_and_moments_take_half_the_bytes(tmp_path: Path) -> None:
    """And no more is rounded than them."""
    shard, told = Shard(spec(0, 2, ROWS)), list[Saved]()
    fill(shard)
    chain = []
    for number, dtype in enumerate(("fp32", "bf16")):
        saver = ShardSaver(shard, tmp_path, RowChooser(shard, None, (), 1.0), 1 << 30, told.append, dtype=dtype)
        (tmp_path / f"cut-00000{number}").mkdir()
        saver.begin(Save(number, 0, f"cut-00000{number}", "whole", True, 0.0))
        ended(saver, told)
        chain.append(told.pop())
    plain, small = (load_file(tmp_path / f"cut-00000{number}" / "S0.safetensors") for number in (0, 1))
    rows = 4 * 3 * 3 * len(shard.table)
    assert not chain[1].error and 0 <= chain[0].bytes - chain[1].bytes - rows // 2 < 64  # the header is shorter, too
    for name, values in plain.items():
        if name in ("rows", "row_moment.first", "row_moment.second"):
            np.testing.assert_allclose(from_bf16(small[name]), values, rtol=2**-8)
            assert (from_bf16(small[name]) != values).any()
        else:
            np.testing.assert_array_equal(small[name], values)


SLOW = 20_000.0  # bytes a second: what it has takes longer than a test


@pytest.mark.parametrize(("pieces", "most"), [(1000, 1000), (12, 12), (0, PIECES_AHEAD)])
def test_it_copies_ahead_of_the_disk_as_much_as_it_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, most: int
) -> None:
    """So rows that change are copied once; and it can be given up with all that waits."""
    monkeypatch.setattr("gbactl.server.checkpoint_writer.COPY", 4000)
    shard, saver, told = saver_of(tmp_path, 4000 * pieces)
    (tmp_path / "cut-000001").mkdir()
    saver.begin(Save(1, 0, "cut-000001", "whole", True, SLOW))
    waiting = 0
    while saver.has_room:
        assert saver.patience == 0.0
        saver.advance()
        assert saver._writer is not None
        waiting = max(waiting, saver._writer.waiting)
    assert saver.patience and not told
    if pieces == 1000:
        assert saver._snapshot is None and shard.watcher is None, "all is copied, and steps cost nothing more"
    else:
        assert most - 1 <= waiting <= most and saver._snapshot is not None
    saver.give_up()
    assert not list((tmp_path / "cut-000001").iterdir()) and shard.watcher is None


def test_before_it_holds_too_much_it_writes_as_fast_as_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And serves on; past that it does not."""
    monkeypatch.setattr("gbactl.server.checkpoint_writer.COPY", 4000)
    row = 4 * (3 * 3 + 1)
    shard, saver, told = saver_of(tmp_path, 200 * row)
    (tmp_path / "cut-000001").mkdir()
    saver.begin(Save(1, 0, "cut-000001", "whole", True, SLOW))
    writer = saver._writer
    assert writer is not None
    step(shard, np.arange(ROWS - 100, ROWS))
    assert writer.pace == SLOW
    step(shard, np.arange(ROWS - 110, ROWS - 90))
    assert writer.pace == 0 and saver._snapshot is not None
    step(shard, np.arange(ROWS - 300, ROWS - 100))
    assert saver._snapshot is None, "it did not hold more than it may"
    assert ended(saver, told).error == ""


def test_a_folder_that_is_not_there_is_told_and_training_goes_on(tmp_path: Path) -> None:
    shard, saver, told = saver_of(tmp_path)
    saver.begin(Save(1, 0, "cut-000001", "whole", True, 0.0))
    step(shard, np.arange(10))
    assert "No such file" in ended(saver, told).error
    step(shard, np.arange(10))
    (tmp_path / "cut-000002").mkdir()
    told.clear()
    saver.begin(Save(2, 2, "cut-000002", "whole", True, 0.0))
    assert ended(saver, told).error == ""


@pytest.mark.parametrize("inline", [False, True])
def test_rows_that_are_not_finite_leave_no_file(tmp_path: Path, inline: bool) -> None:
    shard, saver, told = saver_of(tmp_path, inline=inline)
    shard.rows.moments["first"][ROWS - 1, 0] = np.nan
    (tmp_path / "cut-000001").mkdir()
    saver.begin(Save(1, 0, "cut-000001", "whole", True, 0.0))
    found = ended(saver, told)
    assert not found.finite and "S0.safetensors is not finite: row_moment.first holds" in found.error
    assert not list((tmp_path / "cut-000001").iterdir())


def test_an_order_that_comes_too_early_gives_up_the_one_before(tmp_path: Path) -> None:
    _, saver, told = saver_of(tmp_path)
    for number in (1, 2):
        (tmp_path / f"cut-00000{number}").mkdir()
        saver.begin(Save(number, 0, f"cut-00000{number}", "whole", True, 0.0))
    assert ended(saver, told).number == 2
    assert not list((tmp_path / "cut-000001").iterdir())


def test_in_line_it_is_done_at_once(tmp_path: Path) -> None:
    _, saver, told = saver_of(tmp_path, inline=True)
    (tmp_path / "cut-000001").mkdir()
    saver.begin(Save(1, 0, "cut-000001", "whole", True, 0.0))
    assert told[0].error == ""


CASES = [(5, "cut-000001", "whole"), (0, "../x", "whole"), (0, "cut-000001", "x")]


@pytest.mark.parametrize(("step", "name", "kind"), CASES)
def test_orders_that_cannot_be(tmp_path: Path, step: int, name: str, kind: str) -> None:
    with pytest.raises(WireError, match="at version 0"):
        saver_of(tmp_path)[1].begin(Save(1, step, name, kind, True, 0.0))


@pytest.mark.parametrize(("pace", "seconds"), [(0.0, 0.005), (20e6, 0.03), (4e8, 0.00524288), (1e9, 0.005)])
def test_a_server_looks_as_often_as_the_pace_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: float, seconds: float
) -> None:
    (tmp_path / "cut-000001").mkdir()
    _, saver, told = saver_of(tmp_path)
    saver.begin(Save(1, 0, "cut-000001", "whole", True, pace))
    assert saver.patience == 0.0, "there is room for a piece"
    with monkeypatch.context() as full:
        full.setattr("gbactl.server.checkpoint_writer.ShardSaver.has_room", False)
        assert saver.patience == pytest.approx(seconds)
    ended(saver, told)


FEW_ROWS = 30
Action = tuple[str, list[int]]
actions = st.lists(
    st.one_of(
        st.tuples(st.just("piece"), st.lists(st.integers(1, 12), min_size=1, max_size=1)),
        st.tuples(st.just("step"), st.lists(st.integers(0, FEW_ROWS - 1), max_size=10, unique=True)),
        st.tuples(st.just("all"), st.just([])),
    ),
    max_size=30,
)


@given(actions, st.one_of(st.none(), st.lists(st.integers(0, FEW_ROWS - 1), unique=True).map(sorted)))
def test_pieces_together_are_the_moment(todo: list[Action], rows: list[int] | None) -> None:
    rng = np.random.default_rng(0)
    arrays = {"rows": rng.random((FEW_ROWS, 3), np.float32), "counts": np.arange(FEW_ROWS, dtype=np.uint32)}
    before = {name: array.copy() for name, array in arrays.items()}
    index = None if rows is None else np.array(rows, np.int32)
    snapshot, found = Snapshot(arrays, index), []
    for what, numbers in todo:
        if what == "piece":
            found.append(snapshot.next_piece(numbers[0]))
            continue
        changed = None if what == "all" else np.array(numbers, np.int32)
        snapshot.copy_before_change(changed)
        for array in arrays.values():
            array[slice(None) if changed is None else changed] += 1
    while not snapshot.done:
        found.append(snapshot.next_piece(4))
    for name, array in before.items():
        parts = [piece[name] for piece in found]
        saved = np.concatenate(parts) if parts else array[:0]
        np.testing.assert_array_equal(saved, array if index is None else array[index])


def test_only_rows_still_to_come_are_kept() -> None:
    table = np.zeros((10, 4), np.float32)
    snapshot = Snapshot({"rows": table}, np.array([1, 5, 7], np.int32))
    snapshot.next_piece(1)
    snapshot.copy_before_change(np.array([0, 1, 2, 5], np.int32))
    assert snapshot.copied_bytes == snapshot.row_bytes == 16


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
    shard = Shard(ShardSpec(0, 1, 10, 2))
    rows = RowChooser(shard, row_priority.make("mfu", shard.table, [(0, 10)], 0.5, 0), [(0, 10)], 0.5)
    counter, since = UpdateCounter(1), dict.fromkeys(range(10), 0)
    for kind, chosen in events:
        index = np.array(sorted(chosen), np.int32)
        if kind == "touch":
            rows.count_updates([(index, np.ones((len(index), 2), np.float32), 1.0)])
            counter.count_applied(0, len(index))
            since.update({row: since[row] + 1 for row in chosen})
        else:
            counter.count_saved(0, rows.mark_saved(None if kind == "all" else index))
            since.update(dict.fromkeys(range(10) if kind == "all" else chosen, 0))
    assert counter.count_lost(0) == sum(since.values())

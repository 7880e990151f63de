"""Multi-valued fields: their arrays on disk, slices and selections of them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.data import cache_writer
from gbactl.data.cache import data_fingerprint, prepare
from gbactl.data.cache_writer import WrittenArrays, equal_days, reorder, write_all
from gbactl.data.dataset import META, Batch, Dataset, Jagged, ListField, Schema, map_arrays, open_dataset
from gbactl.data.synthetic import Synthetic
from gbactl.errors import DataError

Load = Callable[..., Dataset]
Lists = list[list[list[int]]]  # of each field, of each sample
WITH_LISTS = {
    "name": "synthetic", "rows_per_day": 3000, "days": 2, "max_cardinality": 300, "fields": 4, "numeric": 2,
    "lists": 2, "list_length": 6, "history_length": 9,
}  # fmt: skip
ROWS = 700  # of a reader that writes lists by itself


def one_field(lists: list[list[int]], weighted: bool = False) -> Jagged:
    values = np.array([value for each in lists for value in each], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)])
    return Jagged(1, offsets, values, values.astype(np.float32) / 2 if weighted else None)


def as_lists(jagged: Jagged) -> Lists:
    """Lists of each field of each sample; weights, where there are any, are half the values."""
    starts = (jagged.offsets - jagged.offsets[0]).tolist()
    cut = [jagged.values[low:high].tolist() for low, high in pairwise(starts)]
    if jagged.weights is not None:
        assert np.array_equal(jagged.weights, jagged.values.astype(np.float32) / 2)
    return [cut[field :: jagged.lists] for field in range(jagged.lists)]


@st.composite
def samples(draw: st.DrawFn) -> Lists:
    rows, fields = draw(st.integers(0, 12)), draw(st.integers(1, 3))
    each = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), min_size=rows, max_size=rows)
    return [draw(each) for _ in range(fields)]


@settings(deadline=None)
@given(lists=samples(), cut=st.integers(0, 12), weighted=st.booleans(), seed=st.integers(0, 99))
def test_what_is_written_in_chunks_is_read_sliced_and_selected(
    lists: Lists, cut: int, weighted: bool, seed: int
) -> None:
    joined = Jagged.joined([one_field(field, weighted) for field in lists])
    rows, fields = len(lists[0]), len(lists)
    numbers = np.arange(rows)
    whole = Batch(numbers.astype(np.uint8), np.zeros((rows, 1), np.float32), numbers.astype(np.int32)[:, None], joined)
    cut, order = min(cut, rows), np.random.default_rng(seed).permutation(rows)
    assert as_lists(joined) == lists
    for field in range(fields):
        assert as_lists(joined.of_field(field)) == [lists[field]]
    with TemporaryDirectory() as folder:
        chunks = [whole.slice(0, cut), whole.slice(cut, rows)]
        assert write_all(Path(folder), chunks) == rows
        schema = Schema(1, (20, *[2**31 - 1] * fields), (), (ListField(4),) * fields, weighted)
        read = map_arrays(Path(folder), schema)
        other = Path(folder) / "other"
        other.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_writer, "AT_ONCE", 3)
            reorder(read, other, order)
        turned = map_arrays(other, schema)
    for batch, where in (
        (read, numbers), (read.slice(cut, rows), numbers[cut:]), (turned, order), (read.take(order), order),
        (read.slice(cut, rows).take(np.arange(rows - cut)[::-1]), numbers[cut:][::-1]),
    ):  # fmt: skip
        assert batch.ids[:, 0].tolist() == where.tolist() and batch.jagged is not None
        assert as_lists(batch.jagged) == [[field[row] for row in where] for field in lists]
        assert (batch.jagged.weights is None) != weighted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [0, 3, 2, 4, 5]}, "offsets of the multi-valued fields do not match their values"),
        ({"offsets": [0, 1, 2, 4, 4]}, "offsets of the multi-valued fields do not match their values"),
        ({"offsets": [0, 0, 0, 5, 5]}, "list of multi-valued field 0 has 5 values, more than 3"),
        ({"values": [1, 2, 3, 0, 7]}, "has the id 7, not one below 7"),
        ({"values": [1, 2, 4, 0, 6]}, "has the id 4, not one below 4"),
        ({"values": [1, -1, 3, 0, 6]}, "has the id -1, not one below 7"),
        ({"weights": [1, 1, np.nan, 1, 1]}, "weights of the multi-valued fields are not all finite and at least 0"),
        ({"weights": [1, 1, -0.5, 1, 1]}, "weights of the multi-valued fields are not all finite and at least 0"),
    ],
)
def test_lists_outside_of_the_bounds_of_their_schema(change: dict[str, list[Any]], message: str) -> None:
    schema = Schema(0, (9, 4, 7), (), (ListField(3), ListField(2, "sum")))
    good = {"offsets": [0, 1, 2, 3, 5], "values": [1, 2, 3, 0, 6], "weights": [1, 1, 1, 1, 0]}

    def made(given: dict[str, list[Any]]) -> Jagged:
        kinds = (np.int64, np.int32, np.float32)
        return Jagged(2, *(np.array(given[name], kind) for name, kind in zip(good, kinds, strict=True)))

    assert made(good).checked_lengths(schema).tolist() == [1, 1, 1, 2]
    with pytest.raises(DataError, match=message) as caught:
        made({**good, **change}).checked_lengths(schema)
    assert "prepare the data again" in str(caught.value)


class Reader:
    """A reader whose first sample has one list too long, or an id too large."""

    def __init__(self, longest: int, cardinality: int) -> None:
        self.longest, self.cardinality = longest, cardinality

    def build(self, folder: Path, progress: Any) -> WrittenArrays:
        lists = one_field([[5, 6, 7], *[[1]] * (ROWS - 1)])
        columns = np.zeros(ROWS, np.uint8), np.zeros((ROWS, 0), np.float32), np.zeros((ROWS, 1), np.int32)
        write_all(folder, [Batch(*columns, lists)])
        schema = Schema(0, (1, self.cardinality), (), (ListField(self.longest),))
        return WrittenArrays("days", schema, equal_days(ROWS, 2), [], ["one", "many"])


@pytest.mark.parametrize(("longest", "cardinality"), [(3, 8), (2, 8), (3, 7)])
def test_a_reader_that_writes_what_its_schema_forbids_leaves_no_cache(
    longest: int, cardinality: int, cache: Path, caches: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Synthetic, "build", lambda self, *given: Reader(longest, cardinality).build(*given))
    options = {"name": "synthetic", "cache": str(cache)}
    if (longest, cardinality) == (3, 8):
        assert open_dataset(prepare(options)).rows == ROWS
        return
    with pytest.raises(DataError, match="prepare the data again"):
        prepare(options)
    assert caches() == []


@pytest.mark.parametrize("name", ["offsets.npy", "values.npy"])
def test_a_damaged_array_of_lists_is_found_and_written_again(name: str, load: Load) -> None:
    place = load(**WITH_LISTS).path
    whole = (place / name).read_bytes()
    (place / name).write_bytes(whole[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(DataError, match=rf"{name} is damaged; prepare the data again\."):
        open_dataset(place)
    assert load(**WITH_LISTS).path == place and (place / name).read_bytes() == whole


def test_a_cache_without_its_arrays_of_lists_or_with_others_is_refused(load: Load) -> None:
    place = load(**WITH_LISTS).path
    meta = json.loads((place / META).read_text())
    for change in ({"lists": [], "cardinalities": meta["cardinalities"][:4], "tables": []}, {"weighted": True}):
        (place / META).write_text(json.dumps({**meta, **change}))
        with pytest.raises(DataError, match="names files that are not those of a data cache"):
            open_dataset(place)
    (place / META).write_text(json.dumps({**meta, "lists": meta["lists"][:1], "cardinalities": [1] * 5, "tables": []}))
    with pytest.raises(DataError, match=r"offsets\.npy does not fit the rows of labels\.npy"):
        open_dataset(place)
    with pytest.raises(DataError, match="pooling median; it can be sum, mean, max"):
        ListField(3, "median")


def test_options_of_lists_that_are_not_used_keep_the_fingerprint() -> None:
    known = {"name": "synthetic", "rows_per_day": 70_000, "days": 2, "max_cardinality": 500}
    assert data_fingerprint(known).startswith("93a911ba0d656de5"), "caches made before lists existed are used on"
    assert data_fingerprint({**known, "lists": 1}) != data_fingerprint(known)


def test_fields_share_tables_as_the_schema_says() -> None:
    schema = Schema(1, (5, 9, 4, 9), (0, 1, 2, 1), (ListField(3, "max"), ListField(7)))
    assert (schema.fields, schema.columns, schema.rows) == (4, 2, 18)
    assert (schema.spans, schema.offsets.tolist()) == ([(0, 5), (5, 14), (14, 18)], [0, 5, 14, 5])
    assert Schema.from_stored(json.loads(json.dumps(schema.stored_values()))) == schema
    assert Schema(0, (4, 6), (0, 0)).rows == 6 and Schema(2, ()).rows == 0

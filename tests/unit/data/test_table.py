from __future__ import annotations

import datetime
import gzip
import itertools
import math
import random
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fsspec.registry import _registry, known_implementations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.data import table_files, text_files
from gbactl.data.cache import data_fingerprint, prepare
from gbactl.data.column_conversion import days, texts, timestamps
from gbactl.data.data_summary import overview, summarise
from gbactl.data.dataset import ARRAYS, DAYS_BY_ROWS, Batch, Dataset, ListField, Split, open_dataset
from gbactl.data.readers.table import Table
from gbactl.data.remote_files import _filesystem
from gbactl.data.table_files import TextForm, read_table
from gbactl.data.text_files import BadLines
from gbactl.errors import ConfigError, DataError, GbactlError, MissingDependencyError

Load = Callable[..., Dataset]
SCHEMA = """
columns:
  clicked: {kind: label, positive: "yes"}
  user id: user
  when: {kind: day, fields: [hour, weekday]}
  age: {kind: numeric, transform: bucketize, buckets: 4}
  price: {kind: numeric, transform: standardize}
  views: {kind: numeric, transform: log1p}
  plain: {kind: numeric}
  "country, code": {kind: categorical, buckets: 5000}
  item: {kind: categorical, buckets: 900}
  tags: {kind: multi, max_length: 4, buckets: 700, pooling: sum, weights: scores}
  seen: {kind: sequence, max_length: 3, table: item}
  comment: ignore
"""
CODES = ["DE", "de", "0x1F", "007", "7", 'a "quoted" one', "a\nb, c"]
BEGIN = datetime.datetime(2024, 2, 28, 12)


def table(count: int, seed: int = 0) -> dict[str, list[Any]]:
    """Rows over four days in a mixed order, with missing values, quotes, line ends and texts that look like numbers."""
    rng = random.Random(seed)
    times = [BEGIN + datetime.timedelta(minutes=rng.randrange(4 * 24 * 60)) for _ in range(count)]

    def some(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    found = {
        "clicked": [rng.choice(["yes", "no"]) for _ in range(count)],
        "user id": [rng.randrange(1, 40) for _ in range(count)],
        "when": times,
        "age": [some(rng.randrange(18, 90)) for _ in range(count)],
        "price": [some(round(rng.gauss(50, 20), 2)) for _ in range(count)],
        "views": [some(rng.randrange(-3, 10_000)) for _ in range(count)],
        "plain": [some(rng.random()) for _ in range(count)],
        "country, code": [some(rng.choice(CODES)) for _ in range(count)],
        "item": [rng.randrange(20) for _ in range(count)],
        "tags": [some([f"tag {rng.randrange(9)}" for _ in range(rng.randrange(6))]) for _ in range(count)],
        "seen": [[rng.randrange(20) for _ in range(rng.randrange(6))] for _ in range(count)],
        "comment": ["free text, with; separators" for _ in range(count)],
    }  # fmt: skip
    scores = [tags and [rng.choice([0.0, 0.1, 2.5]) for _ in tags] for tags in found["tags"]]
    return {**found, "scores": scores}


def write(path: Path, columns: dict[str, list[Any]], separator: str = ",") -> Path:
    """CSV as others write it: a header, quotes where they are needed, empty cells where a value is missing."""

    def cell(value: Any) -> str:
        if isinstance(value, list):
            value = (" " if all(type(each) is int for each in value) else "|").join(map(str, value))
        text = "" if value is None else str(value)
        return '"' + text.replace('"', '""') + '"' if any(c in text for c in f'"\n{separator}') else text

    lines = [separator.join(map(cell, row)) for row in [list(columns), *zip(*columns.values(), strict=True)]]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def parquet(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    pa.parquet.write_table(pa.table(columns), path, **options)
    return path


def whole(data: Dataset) -> Batch:
    parts = [split.slice(0, split.rows) for split in data]
    return Batch(*(np.concatenate([getattr(each, name) for each in parts]) for name in ARRAYS))


def _jagged(split: Split) -> Any:
    return split.slice(0, split.rows).jagged


def lists_in(split: Split, field: int) -> list[list[int]]:
    """Ids of a multi-valued field, by rows."""
    own = _jagged(split).of_field(field)
    return [own.values[low:high].tolist() for low, high in itertools.pairwise(own.offsets)]


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA)
    return str(path)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_columns_become_what_the_schema_says(name: str, load: Load, schema: str, tmp_path: Path) -> None:
    rows = table(400)
    path = tmp_path / name
    if name == "t.parquet":
        parquet(path, rows, row_group_size=70)
    else:
        write(path, rows, "\t" if name == "t.tsv" else ",")
    data = load(name="table", path=str(path), schema=schema)
    assert data.meta["numeric_names"] == ["price", "views", "plain"]
    assert data.meta["field_names"] == [
        "user", "country, code", "item", "when.hour", "when.weekday", "age", "tags", "seen",
    ]  # fmt: skip
    assert data.schema.cardinalities == (131072, 5000, 900, 24, 7, 5, 700, 900)
    assert data.schema.tables == (0, 1, 2, 3, 4, 5, 6, 2)
    assert data.schema.lists == (ListField(4, "sum"), ListField(3, "mean"))
    assert data.user_field == 0 and not data.days_by_rows

    order = sorted(range(400), key=lambda i: rows["when"][i])  # stable: rows of a time keep their order
    dates = sorted({time.date() for time in rows["when"]})
    assert [split.name for split in data] == [str(date) for date in dates]
    assert [split.rows for split in data] == [sum(t.date() == date for t in rows["when"]) for date in dates]
    found = whole(data)
    assert found.labels.tolist() == [int(rows["clicked"][i] == "yes") for i in order]

    first = [i for i in order if rows["when"][i].date() == dates[0]]
    prices = [rows["price"][i] for i in first if rows["price"][i] is not None]
    mean, deviation = np.mean(prices), np.std(prices)
    expected = [
        [
            0.0 if price is None else (price - mean) / deviation,
            0.0 if views is None else math.copysign(math.log1p(abs(views)), views),
            plain or 0.0,
        ]
        for price, views, plain in ((rows["price"][i], rows["views"][i], rows["plain"][i]) for i in order)
    ]
    assert np.allclose(found.numeric, expected, atol=1e-5)

    ages = [rows["age"][i] for i in first if rows["age"][i] is not None]
    borders = np.quantile(ages, [0.25, 0.5, 0.75])
    buckets = [0 if rows["age"][i] is None else 1 + int((borders <= rows["age"][i]).sum()) for i in order]
    assert found.ids[:, 5].tolist() == buckets
    assert found.ids[:, 3].tolist() == [rows["when"][i].hour for i in order]
    assert found.ids[:, 4].tolist() == [rows["when"][i].weekday() for i in order]
    for field, column in ((0, "user id"), (1, "country, code")):
        pairs = {(rows[column][i], int(each)) for i, each in zip(order, found.ids[:, field], strict=True)}
        assert len(pairs) == len(set(rows[column])) == len({each for _, each in pairs})  # one id each, 0 if missing
        assert all((value is None) == (each == 0) for value, each in pairs)
    of_item = {rows["item"][i]: int(each) for i, each in zip(order, found.ids[:, 2], strict=True)}
    tags, seen = ([each for split in data for each in lists_in(split, field)] for field in (0, 1))
    assert seen == [[of_item[value] for value in rows["seen"][i][-3:]] for i in order]
    assert [len(each) for each in tags] == [min(4, len(rows["tags"][i] or [])) for i in order]
    named = {
        pair for i, ids in zip(order, tags, strict=True) for pair in zip((rows["tags"][i] or [])[:4], ids, strict=True)
    }
    assert len(named) == 9 == len({each for _, each in named}) and all(0 < each < 700 for _, each in named)
    scores, ones = (np.concatenate([_jagged(split).of_field(field).weights for split in data]) for field in (0, 1))
    assert scores.tolist() == [np.float32(each) for i in order for each in (rows["scores"][i] or [])[:4]]
    assert len(ones) == sum(map(len, seen)) and (ones == 1).all()


def test_csv_and_parquet_of_a_table_are_the_same_data(load: Load, schema: str, tmp_path: Path) -> None:
    rows = table(150)
    one = load(name="table", path=str(write(tmp_path / "a.csv", rows)), schema=schema)
    two = load(name="table", path=str(parquet(tmp_path / "a.parquet", rows)), schema=schema)
    for name in (f"{each}.npy" for each in one.schema.arrays):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(40, 90), seed=st.integers(0, 99), block=st.integers(400, 4000), chunk=st.integers(5, 60),
    form=st.sampled_from(["csv", "csv.gz", "parquet"]), files=st.integers(1, 2),
)  # fmt: skip
def test_the_size_of_a_chunk_changes_nothing(
    count: int, seed: int, block: int, chunk: int, form: str, files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "schema.yaml").write_text(SCHEMA)
    for number in range(files):
        rows = table(count, seed + number)
        (parquet if form == "parquet" else write)(folder / f"t{number}.{form}", rows)
    options = {"name": "table", "path": str(folder / f"t*.{form}"), "schema": str(folder / "schema.yaml")}
    plain = open_dataset(prepare({**options, "cache": str(folder / "plain")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "BLOCK", block)
        patch.setattr(table_files, "CHUNK", chunk)
        small = open_dataset(prepare({**options, "cache": str(folder / "small")}))
    assert plain.meta["splits"] == small.meta["splits"]
    for name in (f"{each}.npy" for each in plain.schema.arrays):
        assert (plain.path / name).read_bytes() == (small.path / name).read_bytes()


def test_chunks_are_bounded_whatever_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "BLOCK", 2000)
    monkeypatch.setattr(table_files, "CHUNK", 50)
    rows = table(3000)
    for path in (write(tmp_path / "t.csv", rows), parquet(tmp_path / "t.parquet", rows)):
        seen = list(read_table(path, TextForm(), None, BadLines(0), lambda stage, fraction: None))
        assert sum(len(each.frame) for each in seen) == 3000
        assert max(len(each.frame) for each in seen) <= 50


def test_text_is_read_ahead_of_its_rows_by_a_bounded_number_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "BLOCK", 2000)
    monkeypatch.setattr(text_files, "PIECE", 2000)
    path, told = tmp_path / "t.csv", list[float]()
    path.write_bytes(b"a,b\n" + b"1234,5678\n" * 100_000)  # 500 blocks
    chunks = read_table(path, TextForm(), None, BadLines(0), lambda stage, fraction: told.append(fraction))
    next(chunks)
    time.sleep(0.5)
    assert len(next(chunks).frame) <= 200 and 0 < told[-1] < 0.1, "pyarrow reads at most 32 blocks ahead"
    chunks.close()


def test_rows_with_long_lists_are_read_fewer_at_a_time(tmp_path: Path) -> None:
    lists = pa.array([np.arange(2000, dtype=np.int32)] * 2000)
    path = parquet(tmp_path / "t.parquet", {"seen": lists, "x": np.arange(2000)})
    seen = [each.frame for each in read_table(path, TextForm(), None, BadLines(0), lambda stage, fraction: None)]
    assert [int(frame["seen"].list.len().sum()) for frame in seen] == [1_048_000, 1_048_000, 1_048_000, 856_000]
    [alone] = read_table(path, TextForm(), ["x"], BadLines(0), lambda stage, fraction: None)
    assert alone.frame["x"].to_list() == list(range(2000))


def test_nothing_of_a_later_day_changes_an_earlier_one(load: Load, schema: str, tmp_path: Path) -> None:
    rows = table(300)
    last = max(time.date() for time in rows["when"])
    before = load(name="table", path=str(write(tmp_path / "a.csv", rows)), schema=schema)
    for name in ("age", "price", "views"):
        rows[name] = [1e6 if t.date() == last else value for t, value in zip(rows["when"], rows[name], strict=True)]
    after = load(name="table", path=str(write(tmp_path / "b.csv", rows)), schema=schema)
    for split, same in list(zip(before, after, strict=True))[:-1]:
        one, two = split.slice(0, split.rows), same.slice(0, same.rows)
        assert np.array_equal(one.numeric, two.numeric) and np.array_equal(one.ids, two.ids)


SMALL = "columns: {y: label, x: numeric, c: categorical}"


def small(tmp_path: Path, text: str, schema: str = SMALL, name: str = "t.csv") -> dict[str, Any]:
    (tmp_path / name).write_text(text)
    (tmp_path / "s.yaml").write_text(schema)
    return {"name": "table", "path": str(tmp_path / name), "schema": str(tmp_path / "s.yaml")}


@pytest.mark.parametrize(
    ("decimal", "thousands", "cells", "values"),
    [
        (".", ",", ["1.5", "+1,234", " 1,234,567.5 ", "-12,345", "1e3"], [1.5, 1234, 1234567.5, -12345, 1000]),
        (",", ".", ["1,5", "1.234", "1.234.567,5", "-3", "0,125"], [1.5, 1234, 1234567.5, -3, 0.125]),
    ],
)
def test_numbers_may_have_a_decimal_comma_or_marks_between_thousands(
    decimal: str, thousands: str, cells: list[str], values: list[float], load: Load, tmp_path: Path
) -> None:
    text = "y;x;c\n" + "".join(f"{i % 2};{cell};a\n" for i, cell in enumerate(cells))
    marks = f"decimal: '{decimal}', thousands: '{thousands}'"
    schema = f"columns: {{y: label, x: {{kind: numeric, {marks}}}, c: categorical}}"
    assert whole(load(**small(tmp_path, text, schema), days=2)).numeric[:, 0].tolist() == values
    if decimal == ".":
        with pytest.raises(
            DataError, match=r"the column x is '0,5', not a number \(of a decimal comma, the schema says"
        ):
            load(**small(tmp_path, text + "1;0,5;a\n", schema), days=2)
    for cell in ("1,2,3", "12.34,5", "1.23,4.5"):
        with pytest.raises(DataError, match=f"the column x is '{cell}', not a number"):
            load(**small(tmp_path, text + f"1;{cell};a\n", schema), days=2)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "told"),
    [
        (
            "{kind: numeric}",
            "1",
            "1,234",
            r"a number .of a decimal comma, .* decimal: ','; of marks .* says thousands: ','\)",
        ),
        ("{kind: numeric, decimal: ','}", "1,5", "1.234", r"a number \(of marks .*, the schema says thousands: '\.'\)"),
        ("{kind: label, at_least: 2000}", "1999", "1,234", "a number"),
        ("time", "1700000000", "1,700,000,000", "a time"),
        ("day", "1", "1,234", "a day"),
        ("{kind: multi, weights: v}", "0|0", "1,234", "a weight"),
    ],
)
def test_no_mark_between_thousands_is_read_unless_the_schema_says_so(
    kind: str, good: str, bad: str, told: str, load: Load, tmp_path: Path
) -> None:
    text = f"y;x;v;c\n1;{good};{good};a|b\n0;{bad};{bad};a\n"
    name = "v" if "v" in kind else "x"
    columns = f"c: {kind}" if name == "v" else f"c: categorical, x: {kind}"
    label = "" if "label" in kind else "y: label, "
    with pytest.raises(DataError, match=rf"row \d: the column {name} is '{bad}', not {told}"):
        load(**small(tmp_path, text, f"columns: {{{label}{columns}}}"), days=2)


@pytest.mark.parametrize("cells", ['["a, b"]|[]', "{a,b}|{}", "('a', 'b')|()"])
def test_brackets_and_quotation_marks_of_lists_are_left_out(cells: str, load: Load, tmp_path: Path) -> None:
    schema = "columns: {y: label, t: {kind: multi, separator: ',', buckets: 900}}"
    full, empty = cells.split("|")
    text = "y|t\n" + f'1|"{full}"\n0|{empty}\n'.replace('["', '[""').replace('"]', '""]') * 2
    plain = load(**small(tmp_path, "y|t\n" + "1|a,b\n0|\n" * 2, schema), days=2)
    found = load(**small(tmp_path, text, schema, "u.csv"), days=2)
    for a, b in zip(plain, found, strict=True):
        assert lists_in(a, 0) == lists_in(b, 0) and [len(each) for each in lists_in(b, 0)] == [2, 0]


def test_days_by_row_count_are_told(load: Load, tmp_path: Path) -> None:
    text = "y,x,c\n" + "1,2,a\n0,3,b\n" * 7
    data = load(**small(tmp_path, text))
    assert [split.rows for split in data] == [2] * 7
    assert data.days_by_rows and summarise(data)["days_by_rows"]
    assert DAYS_BY_ROWS in overview(data).plain
    small(tmp_path, text, name="u.csv")
    by_file = load(**{**small(tmp_path, text), "path": [str(tmp_path / "t.csv"), str(tmp_path / "u.csv")]})
    assert [split.rows for split in by_file] == [14, 14] and not by_file.days_by_rows
    assert load(**{**small(tmp_path, text), "path": str(tmp_path / "?.csv"), "days": 4}).days_by_rows


def test_a_part_of_a_table_may_have_no_rows_but_not_a_day(load: Load, tmp_path: Path) -> None:
    """Spark writes such parts."""
    text = "y,x,c\n" + "".join(f"{i % 2},{i},a\n" for i in range(6))
    small(tmp_path, "y,x,c\n", name="part-0.csv")
    options = {**small(tmp_path, text, name="part-1.csv"), "path": str(tmp_path / "part-*")}
    none = pa.table({name: pa.array([], pa.int64()) for name in ("y", "x", "c")})
    pa.parquet.write_table(none, tmp_path / "part-2.parquet")
    assert whole(load(**options, days=2)).numeric[:, 0].tolist() == list(range(6))
    with pytest.raises(DataError, match=r"part-0\.csv has no readable row below its header"):
        load(**options)


def test_a_time_puts_rows_in_order_and_cuts_them_into_equal_parts(load: Load, tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},{i},a,{1_700_000_000 + (i * 7 % 20)}\n" for i in range(20))
    schema = "columns: {y: label, x: numeric, c: categorical, t: time}"
    data = load(**small(tmp_path, "y,x,c,t\n" + rows, schema), days=4)
    assert whole(data).numeric[:, 0].tolist() == sorted(range(20), key=lambda i: i * 7 % 20)
    assert [split.rows for split in data] == [5] * 4 and not data.days_by_rows
    for number, name in enumerate(("late", "early")):  # each file is in order, and the second one precedes the first
        half = "".join(f"{i % 2},{i},a,2024-01-{20 - 10 * number + i}\n" for i in range(5))
        small(tmp_path, "y,x,c,t\n" + half, schema, f"{number}-{name}.csv")
    split = load(name="table", path=str(tmp_path / "?-*.csv"), schema=str(tmp_path / "s.yaml"), days=2)
    assert whole(split).numeric[:, 0].tolist() == [0, 1, 2, 3, 4] * 2
    dated = schema.replace("t: time", "t: {kind: time, fields: [weekday]}")
    split = load(**{**small(tmp_path, "y,x,c,t\n", dated, "unused"), "path": str(tmp_path / "?-*.csv")}, days=2)
    assert whole(split).ids[:, 1].tolist() == [(i + 2) % 7 for i in range(5)] + [(i + 5) % 7 for i in range(5)]


@pytest.mark.parametrize(
    ("kind", "cells", "order"),
    [
        ("day", [f"2024-03-01 {hour}:30" for hour in ("13", "12", "11", "10")], [3, 2, 1, 0]),
        ("day", ["2024-03-02 01:00", "2024-03-01 23:00", "2024-03-02 00:00", "2024-03-01 22:00"], [3, 1, 2, 0]),
        ("day", ["2024-03-02", "2024-03-01", "2024-03-02", "2024-03-01"], [1, 3, 0, 2]),
        ("day", ["1709289000", "1709285400", "1709281800", "1709278200"], [3, 2, 1, 0]),
        ("day", ["7", "5", "7", "5"], [1, 3, 0, 2]),
        ("day", ["-1", "3", "-2", "-1"], [2, 0, 3, 1]),
        ("day", ["20240302", "2024-03-01 23:00", "20240301", "2024-03-01 22:00"], [2, 3, 1, 0]),
        (
            "{kind: day, format: '%d.%m.%Y %H'}",
            [f"01.03.2024 {hour}" for hour in ("13", "12", "13", "10")],
            [3, 1, 0, 2],
        ),
        ("{kind: day, fields: [hour]}", [f"1969-12-31 {hour}:00" for hour in ("22", "21", "23", "20")], [3, 1, 0, 2]),
    ],
)
def test_rows_of_a_date_are_in_order_of_time_where_the_cells_have_one(
    kind: str, cells: list[str], order: list[int], load: Load, tmp_path: Path
) -> None:
    text = "y,x,d\n" + "".join(f"{i % 2},{i},{cell}\n" for i, cell in enumerate(cells))
    data = load(**small(tmp_path, text, f"columns: {{y: label, x: numeric, d: {kind}}}"), days=2)
    assert whole(data).numeric[:, 0].tolist() == order


def test_dates_of_years_beyond_9999_are_the_last_day(load: Load, tmp_path: Path) -> None:
    at = pa.array([300_000_000_000_000_000, 1, 0], pa.timestamp("us"))
    path = parquet(tmp_path / "t.parquet", {"y": [0, 1, 0], "x": [0.0, 1.0, 2.0], "d": at})
    (tmp_path / "s.yaml").write_text("columns: {y: label, x: numeric, d: day}")
    data = load(name="table", path=str(path), schema=str(tmp_path / "s.yaml"))
    assert whole(data).numeric[:, 0].tolist() == [2, 1, 0] and [split.rows for split in data] == [2, 1]


def test_a_whole_number_has_one_id_however_a_file_writes_it(load: Load, tmp_path: Path) -> None:
    """pandas writes 12.0 into the files of those days on which another row has none."""
    schema = "columns: {y: label, x: categorical, l: {kind: multi, separator: ' '}}"
    small(tmp_path, "y,x,l\n0,12,3 -4\n1,0,3\n0,1.50,3\n1,007,3 5\n", schema, "0.csv")
    small(tmp_path, "y,x,l\n0,12.0,3.0 -4.0\n1,0.0,3.0\n0,1.5,3.0\n1,007.0,3.0 5.0\n", schema, "1.csv")
    one, two = load(name="table", path=str(tmp_path / "?.csv"), schema=str(tmp_path / "s.yaml"))
    pairs = list(zip(*(each.slice(0, 4).ids[:, 0].tolist() for each in (one, two)), strict=True))
    assert [a == b for a, b in pairs] == [True, True, False, False] and len({a for a, _ in pairs}) == 4
    assert lists_in(one, 0) == lists_in(two, 0) and len({each for ids in lists_in(one, 0) for each in ids}) == 3


def test_a_column_of_lists_that_is_called_user_is_no_user(load: Load, tmp_path: Path) -> None:
    text = "y,x,user\n" + "1,2,a|b\n0,3,b\n" * 2
    data = load(**small(tmp_path, text, "columns: {y: label, x: categorical, user: multi}"), days=2)
    assert data.meta["field_names"] == ["x", "user"] and data.user_field is None


def test_no_weekday_is_made_of_the_number_of_a_day(load: Load, tmp_path: Path) -> None:
    text = "y,x,d\n" + "".join(f"{i % 2},1,{20240301 + i // 4}\n" for i in range(8))
    schema = "columns: {y: label, x: numeric, d: {kind: day, fields: [weekday]}}"
    told = r"row 2: the column d is '20240301', not a date, of which weekday could be made \(.* says format: '%Y%m%d'\)"
    with pytest.raises(DataError, match=told):
        load(**small(tmp_path, text, schema))
    dated = schema.replace("fields", "format: '%Y%m%d', fields")
    assert whole(load(**small(tmp_path, text, dated))).ids[:, 0].tolist() == [4] * 4 + [5] * 4


LABELS = [
    ("label", ["0", "1", "true", "False"], [0, 1, 1, 0]),
    ("{kind: label, at_least: 4}", ["3.5", "4", "5", "-1"], [0, 1, 1, 0]),
    ("{kind: label, positive: '>50K'}", ["<=50K", " >50K ", ">50k", ">50K"], [0, 1, 0, 1]),
    ("{kind: label, positive: 2}", ["1", "2", "2", "1"], [0, 1, 1, 0]),
    ("{kind: label, positive: 1}", ["1.0", "0.0", " 1 ", "+1"], [1, 0, 1, 1]),
    ("{kind: label, positive: 1.0}", ["1", "0", "10", "1.00"], [1, 0, 0, 1]),
    ("{kind: label, positive: '1.0'}", ["1", "0", "x", "1.0"], [1, 0, 0, 1]),
    ("{kind: label, positive: 9007199254740993}", ["9007199254740992", "9007199254740993", "1", "0"], [0, 1, 0, 0]),
    (
        "{kind: label, positive: 1234.5, decimal: ',', thousands: '.'}",
        ['"1.234,5"', "0", "2", '"1234,50"'],
        [1, 0, 0, 1],
    ),
    ("{kind: label, positive: '1.234,5', decimal: ',', thousands: '.'}", ["0", '"1234,5"', "2", "3"], [0, 1, 0, 0]),
    ("{kind: label, positive: 'true'}", ["true", "false", "x", "true"], [1, 0, 0, 1]),
]


@pytest.mark.parametrize(("kind", "cells", "labels"), LABELS)
def test_labels(kind: str, cells: list[str], labels: list[int], load: Load, tmp_path: Path) -> None:
    text = "y,x\n" + "".join(f"{cell},1\n" for cell in cells)
    assert whole(load(**small(tmp_path, text, f"columns: {{y: {kind}, x: numeric}}"), days=2)).labels.tolist() == labels


BOOLEANS, FLOATS = [True, False, False, True], [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("positive", "cells", "labels"),
    [
        *((positive, BOOLEANS, [1, 0, 0, 1]) for positive in ("true", "yes", "'true'", "'True'", "1", "'1'")),
        *((positive, BOOLEANS, [0, 1, 1, 0]) for positive in ("false", "'FALSE'", "0")),
        *((positive, FLOATS, [1, 0, 0, 1]) for positive in ("1", "1.0", "'1'", "'1.0'")),
        ("12", [12, 120, 7, 12], [1, 0, 0, 1]),
        ("2.5", ["2.50", "2", "x", "2.5"], [1, 0, 0, 1]),
    ],
)
def test_labels_of_parquet_are_compared_by_their_value(
    positive: str, cells: list[Any], labels: list[int], load: Load, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(f"columns: {{y: {{kind: label, positive: {positive}}}, x: numeric}}")
    path = parquet(tmp_path / "t.parquet", {"y": cells, "x": [1.0] * 4})
    found = load(name="table", path=str(path), schema=str(tmp_path / "s.yaml"), days=2)
    assert whole(found).labels.tolist() == labels


TIMES = [
    (None, "2024-02-29", "2024-02-29 00:00:00"),
    (None, "2024-02-29T13:05:01.5Z", "2024-02-29 13:05:01.500000"),
    (None, "2024-02-29 13:05", "2024-02-29 13:05:00"),
    (None, "2024-02-29 13:05:00+02:00", "2024-02-29 11:05:00"),
    (None, "2024-02-29 13:05:00 UTC", "2024-02-29 13:05:00"),
    (None, "1709211900", "2024-02-29 13:05:00"),
    (None, "1709211900000", "2024-02-29 13:05:00"),
    ("%d.%m.%Y %H:%M", "29.02.2024 13:05", "2024-02-29 13:05:00"),
    ("%y%m%d%H", "24022913", "2024-02-29 13:00:00"),
    ("%m/%d/%Y", "02/29/2024", "2024-02-29 00:00:00"),
    ("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 13:05:01.5", "2024-02-29 13:05:01.500000"),
    ("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 13:05:01.000025", "2024-02-29 13:05:01.000025"),
    ("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 13:05:01", "2024-02-29 13:05:01"),
    ("%d.%m.%Y %H:%M:%S,%3f", "29.02.2024 13:05:01,250", "2024-02-29 13:05:01.250000"),
    ("%Y%m%d%H%M%S%6f", "20240229130501000250", "2024-02-29 13:05:01.000250"),
    (None, "29 Feb", None),
]


@pytest.mark.parametrize(("form", "text", "moment"), TIMES)
def test_times(form: str | None, text: str, moment: str | None) -> None:
    import polars as pl

    found = timestamps(pl.Series([text, None]), form).cast(pl.Datetime("us")).to_list()
    assert [None if each is None else str(each) for each in found] == [moment, None]
    if moment is not None:
        assert days(pl.Series([text]), form).to_list() == [20240229]


@pytest.mark.parametrize("form", ["%d.%m.%Y %H:%M:%S,%f", "%Y%m%d%H%M%S%f", "%Y-%m-%d %H:%M:%S%%%f"])
def test_a_fraction_without_a_point_needs_its_number_of_digits(form: str, load: Load, tmp_path: Path) -> None:
    schema = f"columns: {{y: label, x: numeric, c: {{kind: time, format: '{form}'}}}}"
    told = f"The format '{re.escape(form)}' has %f without a point before it; type %3f for 3 digits, or %6f for 6."
    with pytest.raises(ConfigError, match=told):
        load(**small(tmp_path, GOOD, schema))


def test_a_number_has_the_text_that_others_write() -> None:
    import polars as pl

    assert texts(pl.Series([7.0, 7.5, None, math.nan])).to_list() == ["7", "7.5", None, None]
    assert texts(pl.Series([True, False])).to_list() == ["1", "0"]
    assert texts(pl.Series([" a ", " ", ""])).to_list() == ["a", None, None]


GOOD = "y,x,c\n" + "1,2,a\n0,3,b\n" * 4
SCHEMA_ERRORS = [
    (
        "columns: {y: label, x: numeric, c: categoric}",
        r"columns.c.kind=categoric is not known; .*Did you mean categorical\?",
    ),
    ("columns: {y: label, x: {kind: numeric, transfrom: log1p}}", r"has no key transfrom; .*Did you mean transform\?"),
    (
        "columns: {y: label, x: {kind: numeric, transform: log}}",
        r"x.transform=log is not known; type .*x.transform= one of: none, log1p.*mean log1p\?",
    ),
    (
        "columns: {y: label, x: {kind: numeric, transform: bucketize, buckets: 1}}",
        "x.buckets=1 is not a whole number from 2",
    ),
    ("columns: {y: label, x: numeric, x: categorical}", "x is there twice; leave one of them out"),
    ("columns: {x: numeric}", "has no label; type kind: label"),
    ("columns: {y: label}", "has no features; type kind: numeric"),
    ("columns: {y: label, x: label, c: categorical}", r"has 2 columns of kind label \(y, x\); one is possible"),
    ("columns: {y: label, x: time, c: day}", r"has 2 columns of kind time or day \(x, c\)"),
    ("columns: {y: {kind: label, positive: yes}, x: numeric}", "put it in quotes"),
    (
        "columns: {y: {kind: label, positive: no}, x: numeric}",
        "YAML reads positive of the column y as false, and the column holds no Booleans; type the text of a cell",
    ),
    ("columns: {y: {kind: label, positive: a, at_least: 1}, x: numeric}", "both positive and at_least"),
    ("columns: {y: label, x: {transform: log1p}}", r"columns.x has no kind; type \{kind: KIND\}"),
    ("columns: {y: label, c: {kind: multi, separator: ''}}", "c.separator is empty"),
    ("columns: {y: label, c: {kind: sequence, pooling: men}}", r"c.pooling=men is not known; type .*sum, mean, max"),
    (
        "columns: {y: label, x: categorical, c: {kind: multi, table: z}}",
        "table=z is no categorical column; type one of: x",
    ),
    ("columns: {y: label, x: categorical, c: {kind: multi, table: x, buckets: 9}}", "both table and buckets"),
    ("columns: {y: label, c: multi}", r"The column c: its separator '\|' is in none of the 8 rows; type separator:"),
    (
        "columns: {y: label, x: {kind: time, fields: [minute]}, c: categorical}",
        "x.fields cannot have minute; type some of: hour",
    ),
    ("colums: {y: label}", "has no columns; type columns:"),
    ("[", "is not YAML"),
    ("separator: ab\ncolumns: {y: label, x: numeric}", "separator='ab' is not one character"),
    ("seperator: ';'\ncolumns: {y: label, x: numeric}", r"no key seperator; keys are: .*Did you mean separator\?"),
    (
        "columns: {y: label, x: numeric, cc: categorical}",
        r"t.csv has no column cc, which the schema names; its columns are: y, x, c",
    ),
    (
        "columns: {y: label, x: numeric, c: numeric}",
        r"t.csv, row 2: the column c is 'a', not a number; fix it or type data.max_bad_lines",
    ),
    (
        "columns: {y: label, c: categorical, x: {kind: time, format: '%Y-%m'}}",
        "The format '%Y-%m' is invalid|not a time of the format",
    ),
    ("columns: {y: label, x: numeric, c: day}", "row 2: the column c is 'a', not a day such as"),
    (
        "columns: {c: {kind: label, positive: woon}, x: numeric}",
        "rows have the label 0, .* say in c: .* positive: CELL",
    ),
    ("columns: {x: {kind: label, at_least: -1}, c: categorical}", "rows have the label 1, so that no model can learn"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMA_ERRORS)
def test_a_wrong_schema_is_one_sentence(schema: str, message: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(GbactlError, match=message) as caught:
        load(**small(tmp_path, GOOD, schema))
    assert "\n" not in str(caught.value)


FILE_ERRORS = [
    ("", "t.csv is empty"),
    ("y,x,c\n", "no readable row below its header"),
    ("y,x,c", "no readable row below its header"),
    ("y;x;c\n1;2;a\n", "__fine__"),
    ("y:x:c\n1:2:a\n", "has no column y.*Its columns seem to be apart by another character"),
    ("y,x,c,c\n1,2,a,b\n", "t.csv has 2 columns c"),
    ("y,x,c\n1,2,a\n2,3,b\n", "row 3: the column y is '2', not 0 or 1"),
    ("y,x,c\n1,2,a\n,3,b\n", "row 3: the column y is missing, not 0 or 1"),
    ("y,x,c\n1,2,a\n0,3\n", "row 3: 2 cells where the header has 3; fix it or type data.max_bad_lines=100"),
    ("y,x,c\n1,2,a\n0,inf,b\n", "row 3: the column x is 'inf', not a number"),
    ("PK\x03\x04", "t.csv is a ZIP archive or an Excel file; unpack it"),
    ("y,x,c\r1,2,a\r0,3,b\r", r"ends its lines by \\r alone; convert it by: tr"),
    ('y,x,c\n1,2,"a\n' + "0,3,b\n" * 400, "a row is longer than .*quotation mark"),
]


@pytest.mark.parametrize(("text", "message"), FILE_ERRORS)
def test_a_wrong_file_is_one_sentence(
    text: str,
    message: str,
    load: Load,
    caches: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_files, "BLOCK", 1000)
    options = small(tmp_path, text)
    if message == "__fine__":
        message = "has 1 rows, which cannot be cut"
    with pytest.raises(DataError, match=message):
        load(**options)
    assert caches() == []


def test_files_that_are_not_text_or_not_there(load: Load, tmp_path: Path) -> None:
    options = small(tmp_path, GOOD)
    (tmp_path / "t.csv").write_bytes("y,x,c\n1,2,größe\n".encode("latin1"))
    with pytest.raises(DataError, match=r"t.csv is not UTF-8 text; convert it"):
        load(**options)
    with pytest.raises(DataError, match=r"nowhere.csv does not exist"):
        load(**{**options, "path": str(tmp_path / "nowhere.csv")})
    with pytest.raises(DataError, match=r"none.yaml does not exist; set data.schema"):
        load(**{**options, "schema": str(tmp_path / "none.yaml")})
    with pytest.raises(ConfigError, match=r"data.schema is not set; .*infer-schema"):
        load(**{**options, "schema": None})
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"t.parquet is not whole Parquet"):
        load(**{**options, "path": str(tmp_path / "t.parquet")})
    parquet(tmp_path / "l.parquet", {"y": [0, 1], "x": [1.0, 2.0], "c": [["a"], ["b", "c"]]})
    with pytest.raises(DataError, match=r"the column c holds List\(String\); type kind: multi"):
        load(**{**options, "path": str(tmp_path / "l.parquet")})
    whole_file = gzip.compress(GOOD.encode() * 50)
    (tmp_path / "g.csv.gz").write_bytes(whole_file[: len(whole_file) // 2])
    with pytest.raises(DataError, match=r"g.csv.gz: the gzip data ends too early"):
        load(**{**options, "path": str(tmp_path / "g.csv.gz")})


def test_types_of_parquet_that_only_a_schema_of_another_kind_can_read(load: Load, tmp_path: Path) -> None:
    options = small(tmp_path, GOOD)
    structs, times = [[{"a": 1}]] * 4, [datetime.time(3, minute) for minute in range(4)]
    parquet(tmp_path / "t.parquet", {"y": [0, 1] * 2, "x": [1.0] * 4, "c": structs, "t": times})
    for column, told in (
        ("c: multi", r"the column c holds List\(Struct\(.*; type kind: ignore for it\.$"),
        ("t: time", r"row 1: the column t is '03:00:00', not a time such as"),
    ):
        (tmp_path / "s.yaml").write_text(f"columns: {{y: label, x: numeric, {column}}}")
        with pytest.raises(DataError, match=told):
            load(**{**options, "path": str(tmp_path / "t.parquet")}, days=2)


def test_a_dictionary_of_parquet_is_read_as_its_texts(load: Load, tmp_path: Path) -> None:
    cells = ["1.5", "2", "", "1.5"]
    columns = {"y": [0, 1, 0, 1], "x": pa.array(cells).dictionary_encode(), "c": pa.array(cells).dictionary_encode()}
    parquet(tmp_path / "t.parquet", columns)
    text = "y,x,c\n" + "".join(f"{i % 2},{cell},{cell}\n" for i, cell in enumerate(cells))
    plain = load(**small(tmp_path, text), days=2)
    found = load(name="table", path=str(tmp_path / "t.parquet"), schema=str(tmp_path / "s.yaml"), days=2)
    assert whole(found).numeric.tolist() == whole(plain).numeric.tolist() == [[1.5], [2], [0], [1.5]]
    assert whole(found).ids.tolist() == whole(plain).ids.tolist()


def test_a_text_that_means_missing_does_so_in_parquet_too(load: Load, tmp_path: Path) -> None:
    cells = {"y": ["0", "1", "0", "1"], "x": ["1.5", "NA", "2", "NA"], "c": ["a", "-", "b", "NA"]}
    schema = f"missing: ['', NA, '-']\n{SMALL}"
    text = "\n".join(",".join(row) for row in [[*cells], *zip(*cells.values(), strict=True)])
    plain = load(**small(tmp_path, text, schema), days=2)
    parquet(tmp_path / "t.parquet", cells)
    found = load(name="table", path=str(tmp_path / "t.parquet"), schema=str(tmp_path / "s.yaml"), days=2)
    assert whole(found).numeric.tolist() == whole(plain).numeric.tolist() == [[1.5], [0], [2], [0]]
    assert whole(found).ids.tolist() == whole(plain).ids.tolist()
    assert [row[0] == 0 for row in whole(found).ids.tolist()] == [False, True, False, True]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("missing", "cells", "gone"),
    [
        ("['', NA]", ["NA", " NA", "NA ", "  "], [True] * 4),
        ("[' NA']", ["NA", " NA", "N A", "na"], [True, True, False, False]),
        ("[]", ["NA", "", " ", "?"], [False, True, True, False]),
    ],
)
def test_blanks_around_a_text_that_means_missing_do_not_count(
    missing: str, cells: list[str], gone: list[bool], form: str, load: Load, tmp_path: Path
) -> None:
    numbers = [cell if lost else "2" for cell, lost in zip(cells, gone, strict=True)]
    rows = {"y": ["0", "1"] * 2, "x": numbers, "c": cells, "user": cells}
    (tmp_path / "s.yaml").write_text(
        f"missing: {missing}\ncolumns: {{y: label, x: numeric, c: categorical, user: user}}"
    )
    path = (parquet if form == "parquet" else write)(tmp_path / f"t.{form}", rows)
    found = whole(load(name="table", path=str(path), schema=str(tmp_path / "s.yaml"), days=2))
    assert found.numeric[:, 0].tolist() == [0.0 if lost else 2.0 for lost in gone]
    assert [(ids == 0).tolist() for ids in found.ids] == [[lost] * 2 for lost in gone]


def test_all_rows_of_one_day_are_refused_with_the_way_out(load: Load, tmp_path: Path) -> None:
    text = "y,x,d\n" + "1,2,2024-01-31\n0,3,2024-01-31\n" * 4
    options = small(tmp_path, text, "columns: {y: label, x: numeric, d: day}")
    with pytest.raises(DataError, match=r"one day, 2024-01-31; type data\.days=7"):
        load(**options)
    assert load(**options, days=2).rows == 8


def test_bad_rows_are_counted_and_named(load: Load, tmp_path: Path) -> None:
    text = 'y,x,c\n1,2,a\n1,2\n1,"4",a\n0,x,b\n9,1,b\n0,NA,b\n1,5,"a\nb"\n1,2,3,4\n0,1,c\n'
    options = small(tmp_path, text, f"missing: ['', NA]\n{SMALL}")
    with pytest.raises(DataError, match=r"row 3: 2 cells"):
        load(**options, days=2)
    with pytest.raises(DataError, match=r"row 9: 4 cells"):  # counted before the cells of rows that are whole
        load(**options, days=2, max_bad_lines=1)
    with pytest.raises(DataError, match=r"row 6: the column y is '9', not 0 or 1"):
        load(**options, days=2, max_bad_lines=3)
    data = load(**options, days=2, max_bad_lines=4)
    assert (data.meta["bad_lines"], whole(data).numeric[:, 0].tolist()) == (4, [2.0, 4.0, 0.0, 5.0, 1.0])


@pytest.mark.parametrize(
    ("values", "weights"),
    [("a|b", "1"), ("a", "1|2"), ("", "1"), ("a|b", ""), ("a|b", "1|x"), ("a", "-1"), ("a", "inf")],
)
def test_a_list_without_a_weight_for_each_value_is_a_bad_row(
    values: str, weights: str, load: Load, tmp_path: Path
) -> None:
    text = f"y,t,w\n1,a|b,1|2\n0,{values},{weights}\n0,||c,4|1|.5\n1,,\n"
    options = small(tmp_path, text, "columns: {y: label, t: {kind: multi, weights: w}}")
    shown = repr(weights) if weights else "missing"
    with pytest.raises(DataError, match=rf"row 3: the column w is {re.escape(shown)}, not a weight .* each value of t"):
        load(**options, days=2)
    data = load(**options, days=2, max_bad_lines=1)
    assert [_jagged(split).weights.tolist() for split in data] == [[1, 2], [0.5]]
    with pytest.raises(DataError, match=r"no column u, which the schema names"):
        load(**small(tmp_path, text, "columns: {y: label, t: {kind: multi, weights: u}}"))


def test_the_key_has_the_schema_and_not_its_path(tmp_path: Path) -> None:
    options = small(tmp_path, GOOD)
    before = data_fingerprint(options)
    (tmp_path / "other.yaml").write_text(SMALL)
    assert data_fingerprint({**options, "schema": str(tmp_path / "other.yaml")}) == before
    (tmp_path / "other.yaml").write_text(SMALL.replace("x: numeric", "x: categorical"))
    assert data_fingerprint({**options, "schema": str(tmp_path / "other.yaml")}) != before


def test_a_cache_of_an_earlier_version_of_the_reader_is_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small(tmp_path, GOOD)
    now = data_fingerprint(options)
    monkeypatch.setattr(Table, "arrays_version", 1)  # as before lists in brackets were read
    assert data_fingerprint(options) != now


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_remote_files_are_read_in_place(form: str, load: Load, tmp_path: Path, schema: str) -> None:
    rows = table(120)
    local = (parquet if form == "parquet" else write)(tmp_path / f"t.{form}", rows)
    memory = fsspec.filesystem("memory")
    for number in range(2):
        memory.pipe(f"/tables/{form}/day_{number}.{form}", local.read_bytes())
    memory.pipe(f"/tables/{form}.yaml", SCHEMA.encode())
    remote = {"path": f"memory://tables/{form}", "schema": f"memory://tables/{form}.yaml"}
    found = load(name="table", **remote)
    same = load(name="table", path=[str(local), str(local)], schema=schema)
    for name in (f"{each}.npy" for each in found.schema.arrays):
        assert (found.path / name).read_bytes() == (same.path / name).read_bytes()
    key = data_fingerprint({"name": "table", **remote})
    memory.pipe(f"/tables/{form}/day_1.{form}", local.read_bytes())  # written again, at another time
    assert data_fingerprint({"name": "table", **remote}) != key
    one = load(name="table", path=f"file://{local}", schema=schema)
    assert one.rows == 120
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as packed:
        packed.write(local, f"inside.{form}")
    for chain in (
        f"simplecache::memory://tables/{form}/day_0*",
        f"zip://*.{form}::file://{tmp_path}/t.zip",
        f"zip::file://{tmp_path}/t.zip",
        f"zip://*.{form}::simplecache::file://{tmp_path}/t.zip",
        f"simplecache::zip://*.{form}::file://{tmp_path}/t.zip",
    ):
        through = load(name="table", path=chain, schema=schema)
        assert (through.path / "ids.npy").read_bytes() == (one.path / "ids.npy").read_bytes()
        for forget in (_filesystem.cache_clear, fsspec.get_filesystem_class("zip").clear_instance_cache):
            forget()  # as another process begins
        assert data_fingerprint({"name": "table", "path": chain, "schema": schema}) == through.fingerprint


def test_other_readers_take_urls_too(load: Load, criteo_lines: Callable[[int], list[str]], tmp_path: Path) -> None:
    text = "\n".join(criteo_lines(30)).encode()
    (tmp_path / "day_0").write_bytes(text)
    fsspec.filesystem("memory").pipe("/criteo/day_0", gzip.compress(text))
    remote = load(name="criteo", path="memory://criteo/day_*", days=3)
    local = load(name="criteo", path=str(tmp_path / "day_0"), days=3)
    assert (remote.path / "ids.npy").read_bytes() == (local.path / "ids.npy").read_bytes()
    assert remote.days_by_rows


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("s3://bucket/t.csv", MissingDependencyError, r"s3:// has no driver here; type pip install 'gbactl\[s3\]'\."),
        ("nothing://a/b", ConfigError, "nothing://a/b cannot be read .*type a path, or s3://"),
        (
            "simplecache::s3://bucket/t.csv",
            MissingDependencyError,
            r"^s3:// has no driver here; type pip install 'gbactl\[s3\]'\.",
        ),
        (
            "zip://*.csv::simplecache::s3://bucket/t.zip",
            MissingDependencyError,
            r"^s3:// has no driver here; type pip install 'gbactl\[s3\]'\.$",
        ),
        (
            "zip://t.csv::absent://bucket/t.zip",
            MissingDependencyError,
            r"^absent:// has no driver here; fsspec says: Install absentfs for it\.$",
        ),
        ("memory://nowhere/t.csv", DataError, "memory://nowhere/t.csv does not exist"),
        ("memory://nowhere/*.csv", DataError, "has no file that matches"),
    ],
)
def test_urls_that_cannot_be_read(
    url: str, kind: type[GbactlError], message: str, load: Load, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"class": "absentfs.AbsentFileSystem", "err": "Install absentfs for it."}
    for protocol in ("absent", "s3"):
        monkeypatch.setitem(known_implementations, protocol, lacking)
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(kind, match=message):
        load(name="table", path=url, schema=schema)


READ = """
import sys
from pathlib import Path
from gbactl.data.table_files import TextForm, read_table
from gbactl.data.text_files import BadLines
list(read_table(Path(sys.argv[1]), TextForm(), None, BadLines(0), print))
"""


def test_an_error_does_not_abort_the_process_while_pyarrow_reads_ahead(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    rows = "".join(f"0,{random.random()}\n" for _ in range(50_000)).encode()  # more than gzip's window
    path.write_bytes(gzip.compress(b"click,a\n1,2\n1\n" + rows * 20, 1))
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "1 cells where the header has 2" in done.stderr

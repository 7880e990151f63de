"""Reader of tables: Parquet, CSV and TSV files whose columns a schema file explains.

Rows are read in chunks, so the memory does not grow with the files; only rows that are not in order of time cost more,
16 bytes of memory a row for the sort. What a transform has to know of the data (mean and deviation, borders of buckets)
comes from the first day alone, since every later day is evaluated before it is trained on. Categories are hashed: an id
needs no vocabulary, and depends on nothing but its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Days, Natural, TableRows, did_you_mean
from gbactl.data.cache_writer import (
    AT_ONCE,
    Clock,
    Order,
    WrittenArrays,
    equal_days,
    put_in_order,
    splits_between,
    write_all,
)
from gbactl.data.column_conversion import (
    DAY,
    LAST_DAY_NUMBER,
    dates,
    day_name,
    days,
    equal,
    ids_of,
    lists_of,
    numbers,
    texts,
    time_ids,
    timestamps,
    weights_of,
)
from gbactl.data.dataset import Batch, Jagged, Progress
from gbactl.data.readers.criteo import signed_log
from gbactl.data.remote_files import SourceFile
from gbactl.data.table_files import TextForm, header_of, read_table
from gbactl.data.table_schema import Day, Label, Numeric, Sequence, TableSchema, Time, read_schema
from gbactl.data.text_files import BadCells, BadLines, Rows, find
from gbactl.errors import ConfigError, DataError, require

MOST_DAYS = 100_000
SAMPLE = 1 << 20  # values of the first day from which the borders of buckets come
LARGEST = float(np.finfo(np.float32).max)
WAITING = ("standardize", "bucketize")  # transforms that wait for the statistics of the first day
Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """Options of the data source data=table."""

    arrays_version: ClassVar[int] = 5
    path: str | list[str] | None = None
    patterns: list[str] = field(default_factory=lambda: ["*.parquet", "*.csv*", "*.tsv*"])
    schema: str | None = None
    days: Days | None = None
    buckets: TableRows = 131072
    max_bad_lines: Natural = 0

    def sources(self) -> list[SourceFile]:
        """Find the tables and, as the last one, the schema file."""
        tables = find(self.path, self.patterns)
        problem = f"data.schema is not set; type data.schema=FILE (gbactl data infer-schema {tables[0]} writes one)."
        require(bool(self.schema), problem)
        found = find(self.schema, ["schema.yaml"], "data.schema")
        require(len(found) == 1, f"data.schema stands for {len(found)} files; name one.")
        return [*tables, *found]

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays, in order of time."""
        *files, schema_file = self.sources()
        schema, bad = read_schema(schema_file, self.buckets), BadLines(self.max_bad_lines)
        with TemporaryDirectory(dir=folder, prefix="staged-") as name:
            staged, ends = Path(name), list[int]()
            clock = Clock(staged / "times")
            chunks = self._chunks(files, schema, clock, bad, ends, progress)
            rows = write_all(staged, chunks)
            splits, by_rows = self._splits(rows, ends, schema, clock)
            clicks = np.count_nonzero(np.load(staged / "labels.npy", mmap_mode="r"))
            if clicks in (0, rows):
                raise DataError(
                    f"All {rows:,} rows have the label {int(clicks > 0)}, so that no model can learn from them; say in "
                    f"{schema.label}: of the schema which cells are clicks, by positive: CELL."
                )
            order = clock.order()
            change = first_day_transform(np.load(staged / "numeric.npy", mmap_mode="r"), order, splits[0][2], schema)
            put_in_order(staged, folder, schema.made, order, progress, change)
        names = [*(name for name, _ in schema.fields), *schema.lists]
        return WrittenArrays("days", schema.made, splits, schema.numeric, names, bad.count, days_by_rows=by_rows)

    def _chunks(
        self, files: list[SourceFile], schema: TableSchema, clock: Clock, bad: BadLines, ends: list[int],
        progress: Progress,
    ) -> Iterator[Batch]:  # fmt: skip
        """Iterate over the rows of all files; fills `ends` with the number of rows until the end of each file."""
        rows, parted = 0, set[str]()
        form = TextForm(schema.separator, schema.missing)
        for place, file in enumerate(files):
            _check_columns(file, header_of(file, form)[0], schema)

            def report_progress(stage: str, fraction: float, before: int = place) -> None:
                progress(stage, (before + fraction) / len(files))

            for chunk in read_table(file, form, schema.read, bad, report_progress):
                batch, times = _arrays(chunk, file, schema, bad)
                parted |= {
                    name for name in schema.lists if name not in parted and _is_parted(chunk.frame[name], schema)
                }
                if times is not None:
                    clock.add(times, times // DAY if schema.of_kind(Day) else None)
                    if len(clock.counts) > MOST_DAYS:
                        raise DataError(f"The column of kind day has more than {MOST_DAYS:,} days; type kind: time.")
                rows += len(batch)
                yield batch
            if rows == (ends[-1] if ends else 0) and self.days is None and schema.clock is None:  # each file is a day
                raise DataError(f"{file} has no readable row below its header.")
            ends.append(rows)
        if not rows:
            raise DataError(f"{files[0]} has no readable row below its header.")
        for name in schema.lists:
            if name not in parted:
                lacking = f"its separator {schema.lists[name].separator!r} is in none of the {rows:,} rows"
                raise DataError(f"The column {name}: {lacking}; type separator: for another one, or kind: categorical.")

    def _splits(
        self, rows: int, ends: list[int], schema: TableSchema, clock: Clock
    ) -> tuple[list[tuple[str, int, int]], bool]:
        """Divide the rows, in time order, into days. Also returns whether the division is by row count."""
        if self.days is None and clock.counts:
            if len(clock.counts) == 1:
                [day] = clock.counts
                raise DataError(
                    f"All rows are of one day, {day_name(day)}; type data.days=7 to cut them into equal parts."
                )
            return clock.splits(day_name), False
        if self.days is None and len(ends) > 1 and schema.clock is None:
            return splits_between(ends), False
        return equal_days(rows, self.days), schema.clock is None


def _check_columns(file: SourceFile, columns: list[str], schema: TableSchema) -> None:
    """Raise DataError unless a file has each of the schema's columns once."""
    for name in schema.read:
        count = columns.count(name)
        if count > 1:
            raise DataError(f"{file} has {count} columns {name}; name them apart, or leave {name} out of the schema.")
        if not count:
            meant = did_you_mean(name, columns)
            hint = f" {meant}" if meant else ""
            if len(columns) == 1 and len(schema.columns) > 1:
                apart = "Its columns seem to be apart by another character: type separator: ';' or so in the schema"
                hint = f" {apart}, or remove what stands above the header."
            shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")
            raise DataError(f"{file} has no column {name}, which the schema names; its columns are: {shown}.{hint}")


def _arrays(rows: Rows, file: SourceFile, schema: TableSchema, bad: BadLines) -> tuple[Batch, Integers | None]:
    """Convert a chunk's readable rows to arrays; return also the rows' sort keys (None without a time column)."""
    frame, bad_cells = rows.frame, BadCells(rows)
    listed = {name for column, kind in schema.lists.items() for name in (column, kind.weights)}
    for name in schema.read:
        kind = frame[name].dtype
        inner = kind.inner if isinstance(kind, pl.List) else kind
        if inner.is_nested() or inner == pl.Binary:
            raise DataError(f"{file}: the column {name} holds {kind}; type kind: ignore for it.")
        if inner != kind and name not in listed:
            raise DataError(f"{file}: the column {name} holds {kind}; type kind: multi for it.")
    labels = _labels(frame, file, schema, bad_cells)
    numeric = [_numbers(frame, name, schema, bad_cells) for name in (*schema.numeric, *schema.bucketized)]
    ids = [ids_of(frame[name], place, size) for place, (name, size) in enumerate(schema.hashed.items())]
    clock = None
    if schema.clock is not None:
        clock, moment = _times(frame, schema.clock, schema, bad_cells)
        ids += [time_ids(moment, part) for part in schema.time_fields]
    lists = Jagged.joined([_list(frame, name, schema, bad_cells) for name in schema.lists]) if schema.lists else None
    batch = Batch(labels, _stacked(numeric, len(frame), np.float32), _stacked(ids, len(frame), np.int32), lists)
    kept = bad_cells.readable_rows(file, bad)
    if kept is None:
        return batch, clock
    return batch.take(kept), None if clock is None else clock[kept]


def _list(frame: pl.DataFrame, name: str, schema: TableSchema, bad_cells: BadCells) -> Jagged:
    column, kind, (place, size) = frame[name], schema.lists[name], schema.list_ids(name)
    lengths, values, taken = lists_of(column, kind.separator, kind.max_length, isinstance(kind, Sequence))
    weights = None
    if kind.weights is not None:
        weights, bad = weights_of(frame[kind.weights], column, kind.separator)
        weights = weights[taken]
        bad_cells.record(pl.Series(bad), kind.weights, f"a weight of at least 0 for each value of {name}")
    return Jagged(1, np.concatenate([[0], np.cumsum(lengths)]), ids_of(values, place, size), weights)


def _is_parted(column: pl.Series, schema: TableSchema) -> bool:
    """Return whether a multi-valued column has a list type, or some text in it contains the separator."""
    separator = schema.lists[column.name].separator
    return column.dtype.is_nested() or bool(texts(column).str.contains(separator, literal=True).any())


def _stacked(columns: list[NDArray[Any]], rows: int, kind: type[Any]) -> NDArray[Any]:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0), kind)


def _bits(true: pl.Series) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = true.fill_null(False).to_numpy().astype(np.uint8)
    return found


def _labels(frame: pl.DataFrame, file: SourceFile, schema: TableSchema, bad_cells: BadCells) -> NDArray[np.uint8]:
    column, kind = frame[schema.label], schema.of_kind(Label)[schema.label]
    written = texts(column)
    if isinstance(kind.positive, bool) and column.dtype != pl.Boolean:
        raise ConfigError(
            f"{file}: YAML reads positive of the column {schema.label} as {str(kind.positive).lower()}, and the column "
            "holds no Booleans; type the text of a cell for positive, and put it in quotes."
        )
    if kind.positive is not None:
        bad_cells.record(written.is_null(), schema.label, "a label")
        return _bits(equal(column, kind.positive, kind.decimal, kind.thousands))
    number = numbers(written.str.to_lowercase().replace({"true": "1", "false": "0"}), kind.decimal, kind.thousands)
    if kind.at_least is not None:
        bad_cells.record(number.is_null(), schema.label, "a number")
        return _bits(number >= kind.at_least)
    wrong = ~((number == 0) | (number == 1)).fill_null(False)
    bad_cells.record(wrong, schema.label, "0 or 1 (of another label, the schema says positive: or at_least:)")
    return _bits(number == 1)


def _numbers(frame: pl.DataFrame, name: str, schema: TableSchema, bad_cells: BadCells) -> Floats:
    """Convert a numeric column; NaN marks a missing value that is replaced once first-day statistics are known."""
    column, kind = frame[name], schema.of_kind(Numeric)[name]
    number = numbers(column, kind.decimal, kind.thousands)
    lost = number.is_null() & column.is_not_null()
    if lost.any():  # NaN, and cells of blanks, are missing too
        lost &= ~texts(column).str.to_lowercase().is_in(["nan", ""]).fill_null(True)
    like = _like(column.filter(lost), kind) if lost.any() else "a number"
    bad_cells.record(lost | (number.abs() > LARGEST).fill_null(False), name, like)
    values = number.clip(-LARGEST, LARGEST).to_numpy().astype(np.float64)
    if kind.transform == "log1p":
        return signed_log(values)
    return (values if kind.transform in WAITING else np.nan_to_num(values)).astype(np.float32)


def _like(lost: pl.Series, kind: Numeric) -> str:
    """Describe a valid cell, and the schema options (decimal, thousands) with which unreadable cells become numbers."""
    other = "," if kind.decimal == "." else "."
    ways = {
        "of a decimal comma, the schema says decimal: ','": numbers(lost, ","),
        f"of marks between thousands, the schema says thousands: '{other}'": numbers(lost, kind.decimal, other),
    }
    told = "; ".join(words for words, found in ways.items() if found.null_count() < len(lost))
    return f"a number ({told})" if told else "a number"


def _times(frame: pl.DataFrame, name: str, schema: TableSchema, bad_cells: BadCells) -> tuple[Integers, Integers]:
    """Return each row's sort key, and the times from which fields such as the hour are made.

    The key of kind time is the time. The key of kind day is the day number times DAY, plus the time of day where the
    cell is a date with or without a time."""
    kind = schema.of_kind(Time)[name]
    moment = timestamps(frame[name], kind.format)
    like = f"of the format {kind.format!r}" if kind.format else "such as 2024-12-31 23:59:59 or seconds since 1970"
    times = moment.fill_null(0).to_numpy()
    if not isinstance(kind, Day):
        bad_cells.record(moment.is_null(), name, f"a time {like}")
        return times, times
    day = days(frame[name], kind.format, moment)
    bad_cells.record(day.is_null(), name, f"a day {like}")
    dated = day.eq_missing(dates(moment))
    if kind.fields:
        needed = f"a date, of which {kind.fields[0]} could be made (of 20241231, the schema says format: '%Y%m%d')"
        bad_cells.record(~dated, name, needed)
    number = day.fill_null(0).clip(-LAST_DAY_NUMBER, LAST_DAY_NUMBER)  # keys are int64
    return number.to_numpy() * DAY + np.where(dated.to_numpy(), times % DAY, 0), times


def first_day_transform(
    numeric: Floats, order: Order, rows: int, schema: TableSchema
) -> Callable[[Batch], Batch] | None:
    """Make the function that scales or buckets columns by first-day statistics; None if no column needs them.

    `numeric`: the staged numeric features of all rows; the first day has `rows` of them, in `order`."""
    kinds = schema.of_kind(Numeric)
    standardized = [place for place, name in enumerate(schema.numeric) if kinds[name].transform == "standardize"]
    if not standardized and not schema.bucketized:
        return None
    first = _Day(numeric, order, rows)
    mean, deviation = first.means_and_deviations(standardized)
    borders = [
        first.bucket_borders(len(schema.numeric) + place, kind.buckets)
        for place, kind in enumerate(schema.bucketized.values())
    ]  # fmt: skip

    def change(chunk: Batch) -> Batch:
        values = chunk.numeric[:, : len(schema.numeric)].copy()
        scaled = (values[:, standardized].astype(np.float64) - mean) / deviation
        values[:, standardized] = np.nan_to_num(scaled, posinf=LARGEST, neginf=-LARGEST)
        raw = chunk.numeric[:, len(schema.numeric) :]
        more = [
            np.where(np.isnan(raw[:, place]), 0, 1 + np.searchsorted(border, raw[:, place], side="right"))
            for place, border in enumerate(borders)
        ]  # fmt: skip
        ids = np.concatenate([chunk.ids, _stacked(more, len(chunk), np.int32)], axis=1).astype(np.int32)
        return Batch(chunk.labels, values, ids, chunk.jagged)

    return change


class _Day:
    """Numeric features of the first day, read a chunk at a time."""

    def __init__(self, numeric: Floats, order: Order, rows: int) -> None:
        self._numeric, self._order, self._rows = numeric, order, rows

    def _at(self, places: Integers, columns: list[int]) -> NDArray[np.float64]:
        rows = places if self._order is None else self._order[places]
        return self._numeric[np.ix_(rows, np.array(columns, np.int64))].astype(np.float64)

    def _chunks(self, columns: list[int]) -> Iterator[NDArray[np.float64]]:
        for low in range(0, self._rows, AT_ONCE):
            yield self._at(np.arange(low, min(low + AT_ONCE, self._rows)), columns)

    def means_and_deviations(self, columns: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute columns' means and deviations (1 if 0) without missing values; (0, 1) for an empty column."""
        count = np.maximum(1, sum(np.sum(~np.isnan(chunk), axis=0) for chunk in self._chunks(columns)))
        mean = sum(np.nansum(chunk, axis=0) for chunk in self._chunks(columns)) / count
        square = sum(np.nansum((chunk - mean) ** 2, axis=0) for chunk in self._chunks(columns)) / count
        return mean, np.where(square > 0, np.sqrt(square), 1.0)

    def bucket_borders(self, column: int, buckets: int) -> Floats:
        """Compute the borders of buckets with equal numbers of rows, from at most SAMPLE rows at equal distances."""
        places = np.linspace(0, self._rows - 1, min(self._rows, SAMPLE)).astype(np.int64)
        values = self._at(places, [column])[:, 0]
        known = values[~np.isnan(values)]
        shares = np.arange(1, buckets) / buckets
        return np.unique(np.quantile(known, shares)).astype(np.float32) if len(known) else np.empty(0, np.float32)

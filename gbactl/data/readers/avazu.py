"""Reader of Avazu's CSV (Kaggle): a header, `click`, `hour` as YYMMDDHH; all other columns but `id` are categorical.

Days come from `hour`, so rows must be in time order. The hour of the day is the last field. There are no
numeric features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from gbactl.checked_dataclasses import Natural, TableRows
from gbactl.data.cache_writer import WrittenArrays, splits_between, write_all
from gbactl.data.dataset import Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import (
    BadLines,
    FastPathMismatch,
    LineBlock,
    find,
    is_integer,
    parse,
    read_all,
    table,
    to_ids,
)
from gbactl.errors import DataError

NOT_FIELDS = ("id", "click", "hour")
LAST_HOUR = 99123123


@dataclass(frozen=True)
class DatedRows:
    """Chunk of parsed rows with the day (YYMMDD) of each row."""

    batch: Batch
    days: np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class AvazuLines:
    """Line format of Avazu files, with the columns named in a file's header."""

    columns: tuple[str, ...]
    buckets: int

    @property
    def fields(self) -> list[str]:
        """Names of the categorical columns."""
        return [name for name in self.columns if name not in NOT_FIELDS]

    def fast(self, data: bytes, lines: int) -> DatedRows:
        skipped = b" " in data or b"+" in data  # polars would skip these before a number
        number = pl.String if skipped else pl.Int64
        schema = {name: number if name in ("click", "hour") else pl.String for name in self.columns}
        frame = table(data, lines, ",", schema)
        click, hour = (_integers(frame[name]) if skipped else frame[name] for name in ("click", "hour"))
        good = click.is_in([0, 1]) & hour.is_between(0, LAST_HOUR) & (hour % 100 < 24)
        if not good.fill_null(False).all():
            raise FastPathMismatch("click or hour")
        of_day = (hour % 100).to_numpy()
        columns = [to_ids(frame[name], f, self.buckets) for f, name in enumerate(self.fields)]
        ids = np.stack([*columns, of_day.astype(np.int32)], axis=1)
        labels = click.to_numpy().astype(np.uint8)
        return DatedRows(Batch(labels, np.empty((lines, 0), np.float32), ids), (hour // 100).to_numpy())

    def explain(self, line: str) -> str | None:
        cells = line.split(",")
        if len(cells) != len(self.columns):
            return f"{len(cells)} columns where the header has {len(self.columns)}"
        row = dict(zip(self.columns, cells, strict=True))
        if not is_integer(row["click"]) or int(row["click"]) not in (0, 1):
            return f"click is {row['click']!r}, not 0 or 1"
        hour = int(row["hour"]) if is_integer(row["hour"]) else -1
        if not 0 <= hour <= LAST_HOUR or hour % 100 > 23:
            return f"hour is {row['hour']!r}, not YYMMDDHH"
        return None


def _integers(column: pl.Series) -> pl.Series:
    """Convert texts of plain digits to Int64. Raises FastPathMismatch for any other text."""
    if not column.str.contains(r"^-?[0-9]+$").fill_null(False).all():
        raise FastPathMismatch("characters that polars would skip")
    return column.cast(pl.Int64)


class DayBoundaries:
    """Detector of the first row of each day in a stream of day numbers, one per row."""

    def __init__(self) -> None:
        self.rows = 0
        self.starts: dict[int, int] = {}
        self._last = -1

    def add(self, days: np.ndarray[tuple[int], np.dtype[np.int64]], path: SourceFile) -> None:
        """Process the day numbers of the next rows. Raises DataError if a day precedes an earlier row's."""
        steps = np.diff(days, prepend=self._last)
        if (steps < 0).any():
            wrong = int(days[np.argmax(steps < 0)])
            raise DataError(f"{path} is not in time order: {_date(wrong)} follows a later day; sort it by hour.")
        for at in np.flatnonzero(steps):
            self.starts[int(days[at])] = self.rows + int(at)
        self._last = int(days[-1])
        self.rows += len(days)

    def splits(self) -> list[tuple[str, int, int]]:
        """Return each day's range of rows: (date, first, end)."""
        return splits_between([*list(self.starts.values())[1:], self.rows], map(_date, self.starts))


def _date(day: int) -> str:
    return f"20{day // 10000:02d}-{day // 100 % 100:02d}-{day % 100:02d}"


def _header(block: LineBlock) -> tuple[tuple[str, ...], LineBlock]:
    head, _, rest = block.data.partition(b"\n")
    columns = tuple(head.decode("utf-8", "replace").strip("\r\ufeff ").split(","))
    missing = [name for name in ("click", "hour") if name not in columns]
    if missing or len(set(columns)) != len(columns):
        what = f"no column {' or '.join(missing)}" if missing else "a column twice"
        raise DataError(f"{block.path}, line 1: not a header of Avazu's CSV ({what}).")
    return columns, LineBlock(block.path, 2, rest)


@dataclass(frozen=True)
class Avazu:
    """Options of the data source data=avazu."""

    path: str | list[str] | None = None
    patterns: list[str] = field(default_factory=lambda: ["train*", "*.csv*"])
    buckets: TableRows = 131072
    max_bad_lines: Natural = 0

    def sources(self) -> list[SourceFile]:
        """Find the source files, in time order."""
        return find(self.path, self.patterns)

    def _parsed(self, progress: Progress, bad: BadLines) -> Iterator[tuple[AvazuLines, SourceFile, DatedRows | None]]:
        form: AvazuLines | None = None
        for _, block in read_all(self.sources(), progress):
            if block.first_line == 1:
                columns, block = _header(block)
                if form and columns != form.columns:
                    raise DataError(f"{block.path}, line 1: the header differs from the first file's.")
                form = AvazuLines(columns, self.buckets)
            assert form is not None
            yield form, block.path, parse(form, block, bad) if block.data else None

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        bad, days = BadLines(self.max_bad_lines), DayBoundaries()
        parsed = self._parsed(progress, bad)
        form, path, first = next(parsed)

        def chunks() -> Iterator[Batch]:
            for _, at, rows in chain([(form, path, first)], parsed):
                if rows is not None:
                    days.add(rows.days, at)
                    yield rows.batch

        names = [*form.fields, "hour_of_day"]
        if not write_all(folder, chunks()):
            raise DataError(f"{path}, line 2: there are no rows below the header.")
        cardinalities = (*[self.buckets] * len(form.fields), 24)
        return WrittenArrays("days", Schema(0, cardinalities), days.splits(), [], names, bad.count)

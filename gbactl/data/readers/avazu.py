"""Reader of Avazu's CSV (Kaggle): a header, `click`, `hour` as YYMMDDHH; all other columns but `id` are categorical.

Days come from `hour`; rows are sorted by day. The hour of the day is the last field. There are no numeric features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Natural, TableRows
from gbactl.data.cache_writer import Clock, WrittenArrays, put_in_order, write_all
from gbactl.data.dataset import Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import BadCells, BadLines, LineBlock, find, read_all, rows_of, to_ids, whole_numbers
from gbactl.errors import DataError

NOT_FIELDS = ("id", "click", "hour")
LAST_HOUR = 99123123


def parse(block: LineBlock, columns: Sequence[str], buckets: int, bad: BadLines) -> tuple[Batch, NDArray[np.int64]]:
    """Parse a block's readable lines, with the day (YYMMDD) of each.

    `columns`: those that the file's header names; ids are hashed into `buckets` values per field."""
    kinds = {name: pl.Int64 if name in ("click", "hour") else pl.String for name in columns}
    rows = rows_of(block, ",", kinds, bad)
    frame, bad_cells = rows.frame, BadCells(rows)
    click, hour = whole_numbers(frame["click"]), whole_numbers(frame["hour"])
    bad_cells.record(~click.is_in([0, 1]).fill_null(False), "click", "0 or 1")
    bad_cells.record(~(hour.is_between(0, LAST_HOUR) & (hour % 100 < 24)).fill_null(False), "hour", "YYMMDDHH")
    hours = hour.fill_null(0).to_numpy()
    ids = [to_ids(frame[name], f, buckets) for f, name in enumerate(fields_of(columns))]
    labels, none = click.fill_null(0).to_numpy().astype(np.uint8), np.empty((len(frame), 0), np.float32)
    batch, days = Batch(labels, none, np.stack([*ids, (hours % 100).astype(np.int32)], axis=1)), hours // 100
    kept = bad_cells.readable_rows(block.path, bad)
    return (batch, days) if kept is None else (batch.take(kept), days[kept])


def fields_of(columns: Sequence[str]) -> list[str]:
    """Return the names of the categorical columns."""
    return [name for name in columns if name not in NOT_FIELDS]


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
        """Find the source files, in the order of their paths, which has to be that of time."""
        return find(self.path, self.patterns)

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays, in order of the days."""
        bad, fields = BadLines(self.max_bad_lines), list[str]()
        with TemporaryDirectory(dir=folder, prefix="staged-") as name:
            staged = Path(name)
            clock = Clock(staged / "times")
            rows = write_all(staged, self._chunks(fields, clock, bad, progress))
            if not rows:
                raise DataError(f"{self.sources()[0]}, line 2: there are no rows below the header.")
            schema = Schema(0, (*[self.buckets] * len(fields), 24))
            put_in_order(staged, folder, schema, clock.order(), progress)
        return WrittenArrays("days", schema, clock.splits(_date), [], [*fields, "hour_of_day"], bad.count)

    def _chunks(self, fields: list[str], clock: Clock, bad: BadLines, progress: Progress) -> Iterator[Batch]:
        """Iterate over the readable rows of all files; fills `fields` with the names of their fields."""
        columns: tuple[str, ...] = ()
        for _, block in read_all(self.sources(), progress):
            if block.first_line == 1:
                own, block = _header(block)
                if columns and own != columns:
                    raise DataError(f"{block.path}, line 1: the header differs from the first file's.")
                columns, fields[:] = own, fields_of(own)
            batch, days = parse(block, columns, self.buckets, bad)
            clock.add(days, days)
            yield batch

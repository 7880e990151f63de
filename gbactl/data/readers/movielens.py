"""Reader of MovieLens ratings (ratings.dat, u.data, ratings.csv): rating >= 4 is a click.

Fields are user, item, hour of the day and weekday (UTC). Rows are sorted by time (stable) and cut into days.
An unsorted copy of the arrays is kept on disk until they are sorted; only times and sort order are in memory (16 bytes
a rating).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Days, Natural
from gbactl.data.cache_writer import Clock, WrittenArrays, equal_days, put_in_order, write_all
from gbactl.data.dataset import USER, Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import BadCells, BadLines, LineBlock, find, read_all, rows_of, whole_numbers
from gbactl.errors import DataError

FIELDS = [USER, "item", "hour", "weekday"]
CLICK = 4.0
LIMITS = {"user": 2**31 - 2, "item": 2**31 - 2, "time": 2**40}
COLUMNS: dict[str, type[pl.DataType]] = {"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64, "time": pl.Int64}
HEADER = b"userId,movieId,rating,timestamp"


def parse(block: LineBlock, separator: str, bad: BadLines) -> tuple[Batch, NDArray[np.int64]]:
    """Parse a block's readable lines, with the time of each in seconds since 1970 UTC.

    The separator is `::`, a tab or a comma."""
    if separator == "::":
        block, separator = replace(block, data=block.data.replace(b"::", b"\t")), "\t"
    rows = rows_of(block, separator, COLUMNS, bad)
    frame, bad_cells = rows.frame, BadCells(rows)
    numbers = {name: whole_numbers(frame[name]) for name in LIMITS}
    for name, number in numbers.items():
        bad_cells.record(
            ~number.is_between(0, LIMITS[name]).fill_null(False), name, f"a number from 0 to {LIMITS[name]}"
        )
    rating = frame["rating"].cast(pl.Float64, strict=False)
    bad_cells.record(~rating.is_between(0, 10).fill_null(False), "rating", "a number from 0 to 10")
    user, item, time = (number.fill_null(0).to_numpy() for number in numbers.values())
    ids = np.stack([user, item, time // 3600 % 24, (time // 86400 + 3) % 7], axis=1).astype(np.int32)
    labels = (rating >= CLICK).fill_null(False).to_numpy().astype(np.uint8)
    batch, kept = Batch(labels, np.empty((len(frame), 0), np.float32), ids), bad_cells.readable_rows(block.path, bad)
    return (batch, time) if kept is None else (batch.take(kept), time[kept])


def _without_header(block: LineBlock) -> tuple[str, LineBlock]:
    """Return the separator of a file, from its first block, and that block without a header."""
    head, _, rest = block.data.partition(b"\n")
    line = head.rstrip(b"\r")
    for separator in ("::", "\t", ","):
        if line.count(separator.encode()) == 3:
            return separator, LineBlock(block.path, 2, rest) if line == HEADER else block
    raise DataError(f"{block.path}, line 1: not ratings (user, item, rating, time; apart by ::, tab or comma).")


@dataclass(frozen=True)
class Movielens:
    """Options of the data source data=movielens."""

    path: str | list[str] | None = None
    patterns: list[str] = field(default_factory=lambda: ["ratings.dat*", "u.data*", "ratings.csv*"])
    days: Days | None = None
    max_bad_lines: Natural = 0

    def sources(self) -> list[SourceFile]:
        """Find the ratings files."""
        return find(self.path, self.patterns)

    def _parsed(self, progress: Progress, bad: BadLines) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
        separator = ""
        for _, block in read_all(self.sources(), progress):
            if block.first_line == 1:
                separator, block = _without_header(block)
            yield parse(block, separator, bad)

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays, with rows sorted by time."""
        bad, largest = BadLines(self.max_bad_lines), np.zeros(2, np.int64)
        with TemporaryDirectory(dir=folder, prefix="unsorted-") as name:
            unsorted = Path(name)
            clock = Clock(unsorted / "times")

            def chunks() -> Iterator[Batch]:
                for batch, times in self._parsed(progress, bad):
                    clock.add(times)
                    np.maximum(largest, batch.ids[:, :2].max(axis=0, initial=0), out=largest)
                    yield batch

            splits = equal_days(write_all(unsorted, chunks()), self.days)
            schema = Schema(0, (int(largest[0]) + 1, int(largest[1]) + 1, 24, 7))
            put_in_order(unsorted, folder, schema, clock.order(), progress)
        return WrittenArrays("days", schema, splits, [], FIELDS, bad.count)

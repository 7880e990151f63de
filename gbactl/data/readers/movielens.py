"""Reader of MovieLens ratings (ratings.dat, u.data, ratings.csv): rating >= 4 is a click.

Fields are user, item, hour of the day and weekday (UTC). Rows are sorted by time (stable) and cut into days.
An unsorted copy of the arrays is kept on disk until they are sorted; only times and sort order are in memory (16 bytes
a rating).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Days, Natural
from gbactl.data.cache_writer import Clock, WrittenArrays, equal_days, reorder, write_all
from gbactl.data.dataset import USER, Batch, Progress, Schema, map_arrays
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import BadLines, FastPathMismatch, LineBlock, find, is_integer, parse, read_all, table
from gbactl.errors import DataError

FIELDS = [USER, "item", "hour", "weekday"]
CLICK = 4.0
LIMITS = (2**31 - 2, 2**31 - 2, 2**40)
HEADER = b"userId,movieId,rating,timestamp"


@dataclass(frozen=True)
class Ratings:
    """Chunk of parsed ratings with the time of each row, in seconds since 1970 UTC."""

    batch: Batch
    times: NDArray[np.int64]


@dataclass(frozen=True)
class RatingLines:
    """Line format of rating files with one separator: `::`, a tab or a comma."""

    separator: str

    def fast(self, data: bytes, lines: int) -> Ratings:
        if b" " in data or b"+" in data:
            raise FastPathMismatch("characters that polars would skip")
        if data.count(self.separator.encode()) != 3 * lines:
            raise FastPathMismatch("columns")
        bare = data.replace(b"::", b"\t")
        kinds = {"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64, "time": pl.Int64}
        frame = table(bare, lines, "," if self.separator == "," else "\t", kinds)
        if sum(frame.null_count().row(0)) or not frame["rating"].is_between(0, 10).all():
            raise FastPathMismatch("rating")
        user, item, time = (frame[name].to_numpy() for name in ("user", "item", "time"))
        if not all(a.min() >= 0 and a.max() <= top for a, top in zip((user, item, time), LIMITS, strict=True)):
            raise FastPathMismatch("range")
        ids = np.stack([user, item, time // 3600 % 24, (time // 86400 + 3) % 7], axis=1).astype(np.int32)
        labels = (frame["rating"].to_numpy() >= CLICK).astype(np.uint8)
        return Ratings(Batch(labels, np.empty((lines, 0), np.float32), ids), time)

    def explain(self, line: str) -> str | None:
        cells = line.split(self.separator)
        if len(cells) != 4:
            return f"{len(cells)} columns where there are 4 (user, item, rating, time)"
        for name, at, limit in zip(("user", "item", "time"), (0, 1, 3), LIMITS, strict=True):
            cell = cells[at]
            if not is_integer(cell) or not 0 <= int(cell) <= limit:
                return f"the {name} is {cell!r}, not a number from 0 to {limit}"
        whole, _, part = cells[2].partition(".")
        if not (whole + part).isdigit() or not cells[2].isascii() or not 0 <= float(cells[2]) <= 10:
            return f"the rating is {cells[2]!r}, not a number from 0 to 10"
        return None


def _format(block: LineBlock) -> tuple[RatingLines, LineBlock]:
    """Return the format of a file, from its first block, and that block without a header."""
    head, _, rest = block.data.partition(b"\n")
    line = head.rstrip(b"\r")
    for separator in ("::", "\t", ","):
        if line.count(separator.encode()) == 3:
            return RatingLines(separator), LineBlock(block.path, 2, rest) if line == HEADER else block
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

    def _parsed(self, progress: Progress, bad: BadLines) -> Iterator[Ratings]:
        form: RatingLines | None = None
        for _, block in read_all(self.sources(), progress):
            if block.first_line == 1:
                form, block = _format(block)
            assert form is not None
            rows = parse(form, block, bad) if block.data else None
            if rows is not None:
                yield rows

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays, with rows sorted by time."""
        bad, largest = BadLines(self.max_bad_lines), np.zeros(2, np.int64)
        with TemporaryDirectory(dir=folder, prefix="unsorted-") as name:
            unsorted = Path(name)
            clock = Clock(unsorted / "times")

            def chunks() -> Iterator[Batch]:
                for rows in self._parsed(progress, bad):
                    clock.add(rows.times)
                    np.maximum(largest, rows.batch.ids[:, :2].max(axis=0), out=largest)
                    yield rows.batch

            splits = equal_days(write_all(unsorted, chunks()), self.days)
            progress("sorting by time", 1.0)
            schema = Schema(0, (int(largest[0]) + 1, int(largest[1]) + 1, 24, 7))
            reorder(map_arrays(unsorted, schema), folder, clock.order())
        return WrittenArrays("days", schema, splits, [], FIELDS, bad.count)

"""Reader of Criteo's TSV (Kaggle and 1TB): label, 13 integers, 26 hexadecimal ids, each of which may be empty.

An integer x becomes log(1 + x), or -log(1 - x) where it is negative, 0 where it is missing. An id is hashed
into its field's buckets, where 0 means "missing".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Days, Natural, TableRows
from gbactl.data.cache_writer import WrittenArrays, equal_days, splits_between, write_all
from gbactl.data.dataset import Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import (
    BadCells,
    BadLines,
    LineBlock,
    find,
    read_all,
    rows_of,
    to_ids,
    to_numbers,
    whole_numbers,
)
from gbactl.errors import DataError

NUMERIC = [f"I{i}" for i in range(1, 14)]
FIELDS = [f"C{i}" for i in range(1, 27)]
COLUMNS: dict[str, type[pl.DataType]] = {
    "label": pl.Int64, **dict.fromkeys(NUMERIC, pl.Int64), **dict.fromkeys(FIELDS, pl.String)
}  # fmt: skip


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Compute sign(x) * log(1 + |x|); NaN (missing) becomes 0."""
    logs: NDArray[np.float32] = np.nan_to_num(np.sign(values) * np.log1p(np.abs(values))).astype(np.float32)
    return logs


def parse(block: LineBlock, buckets: int, bad: BadLines) -> Batch:
    """Parse a block's readable lines. Ids are hashed into `buckets` values per field."""
    rows = rows_of(block, "\t", COLUMNS, bad)
    frame, bad_cells = rows.frame, BadCells(rows)
    label = whole_numbers(frame["label"])
    bad_cells.record(~label.is_in([0, 1]).fill_null(False), "label", "0 or 1")
    numbers = [whole_numbers(frame[name]) for name in NUMERIC]
    for name, number in zip(NUMERIC, numbers, strict=True):
        if number.null_count() > frame[name].null_count():
            bad_cells.record(number.is_null() & frame[name].is_not_null(), name, "a whole number")
    ids = np.empty((len(frame), len(FIELDS)), np.int32)
    for f, name in enumerate(FIELDS):
        cells = frame[name]
        number = to_numbers(cells)
        signed = frame["label"].dtype == pl.String  # of a block that may have signs
        if signed or number.null_count() > cells.null_count() or (number < 0).any():
            invalid = (number < 0).fill_null(cells.is_not_null()) | cells.str.starts_with("+").fill_null(False)
            bad_cells.record(invalid, name, "a hexadecimal id")
        ids[:, f] = to_ids(cells, f, buckets, number)
    numeric = signed_log(np.stack([number.cast(pl.Float64).to_numpy() for number in numbers], axis=1))
    batch = Batch(label.fill_null(0).to_numpy().astype(np.uint8), numeric, ids)
    kept = bad_cells.readable_rows(block.path, bad)
    return batch if kept is None else batch.take(kept)


@dataclass(frozen=True)
class Criteo:
    """Options of the data source data=criteo.

    Each file is a day, or the rows of all files are cut into `days` equal days."""

    path: str | list[str] | None = None
    patterns: list[str] = field(default_factory=lambda: ["day_*", "*.tsv*", "*.txt*"])
    days: Days | None = None
    buckets: TableRows = 131072
    max_bad_lines: Natural = 0

    def sources(self) -> list[SourceFile]:
        """Find the source files, in time order."""
        return find(self.path, self.patterns)

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        paths, bad, ends = self.sources(), BadLines(self.max_bad_lines), list[int]()

        def chunks() -> Iterator[Batch]:
            rows = np.zeros(len(paths), np.int64)
            for i, block in read_all(paths, progress):
                chunk = parse(block, self.buckets, bad)
                rows[i] += len(chunk)
                yield chunk
            if not rows.all():
                raise DataError(f"{paths[int(np.argmin(rows))]} has no readable line.")
            ends.extend(np.cumsum(rows).tolist())

        total = write_all(folder, chunks())
        per_file = self.days is None and len(paths) > 1
        splits = splits_between(ends) if per_file else equal_days(total, self.days)
        schema = Schema(13, (self.buckets,) * 26)
        return WrittenArrays("days", schema, splits, NUMERIC, FIELDS, bad.count, days_by_rows=not per_file)

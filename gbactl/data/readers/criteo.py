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
    BadLines,
    FastPathMismatch,
    find,
    is_integer,
    parse,
    read_all,
    table,
    to_ids,
    to_numbers,
)
from gbactl.errors import DataError

NUMERIC = [f"I{i}" for i in range(1, 14)]
FIELDS = [f"C{i}" for i in range(1, 27)]
HEX = set("0123456789abcdefABCDEF")


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Compute sign(x) * log(1 + |x|); NaN (missing) becomes 0."""
    logs: NDArray[np.float32] = np.nan_to_num(np.sign(values) * np.log1p(np.abs(values))).astype(np.float32)
    return logs


@dataclass(frozen=True)
class CriteoLines:
    """Line format of Criteo files; ids are hashed into `buckets` values per field."""

    buckets: int

    def fast(self, data: bytes, lines: int) -> Batch:
        if b" " in data or b"+" in data:
            raise FastPathMismatch("characters that Criteo does not use")
        schema = {"label": pl.Int64, **dict.fromkeys(NUMERIC, pl.Int64), **dict.fromkeys(FIELDS, pl.String)}
        frame = table(data, lines, "\t", schema)
        labels = frame["label"]
        if labels.null_count() or not labels.is_in([0, 1]).all():
            raise FastPathMismatch("label")
        numbers = np.stack([frame[name].cast(pl.Float64).to_numpy() for name in NUMERIC], axis=1)
        ids = np.empty((lines, len(FIELDS)), np.int32)
        for f, name in enumerate(FIELDS):
            number = to_numbers(frame[name])
            if number.null_count() != frame[name].null_count() or (number < 0).any():
                raise FastPathMismatch(name)
            ids[:, f] = to_ids(frame[name], f, self.buckets, number)
        return Batch(labels.to_numpy().astype(np.uint8), signed_log(numbers), ids)

    def explain(self, line: str) -> str | None:
        cells = line.split("\t")
        if len(cells) != 40:
            return f"{len(cells)} columns where Criteo has 40 (label, 13 integers, 26 ids, tab-separated)"
        if not is_integer(cells[0]) or int(cells[0]) not in (0, 1):
            return f"the label is {cells[0]!r}, not 0 or 1"
        for name, cell in zip(NUMERIC, cells[1:14], strict=True):
            if cell and not is_integer(cell):
                return f"{name} is {cell!r}, not an integer"
        for name, cell in zip(FIELDS, cells[14:], strict=True):
            if not HEX.issuperset(cell) or len(cell) > 15:
                return f"{name} is {cell!r}, not a hexadecimal id"
        return None


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
                chunk = parse(CriteoLines(self.buckets), block, bad)
                if chunk is not None:
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

"""Reader of libfm text with one-hot fields (Frappe and the like): label 1/-1 or 1/0, then `id:1` pairs.

All lines have the same number of pairs. Ids are used unhashed and shared by all fields (one table of the largest
id + 1 rows). Three files: train, validation, test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from gbactl.checked_dataclasses import Natural
from gbactl.data.cache_writer import WrittenArrays, splits_between, write_all
from gbactl.data.dataset import USER, Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import BadCells, BadLines, LineBlock, find, read_all, rows_of, whole_numbers
from gbactl.errors import DataError, require

SPLITS = ("train", "validation", "test")
LARGEST = 2**31 - 2


def parse(block: LineBlock, fields: int, bad: BadLines) -> Batch:
    """Parse a block's readable lines, with `fields` pairs `id:1` each."""
    data = block.data.replace(b"\r\n", b"\n").replace(b" \n", b"\n")
    columns: dict[str, type[pl.DataType]] = {"label": pl.Int64, **{f"field{f}": pl.String for f in range(fields)}}
    rows = rows_of(replace(block, data=data), " ", columns, bad)
    frame, bad_cells = rows.frame, BadCells(rows)
    label = whole_numbers(frame["label"])
    bad_cells.record(~label.is_in([-1, 0, 1]).fill_null(False), "label", "1, 0 or -1")
    ids = np.empty((len(frame), fields), np.int32)
    for f, name in enumerate(frame.columns[1:]):
        number = frame[name].str.extract("^([0-9]+):1$").cast(pl.Int64, strict=False)
        good = number.is_between(0, LARGEST).fill_null(False)
        bad_cells.record(~good, name, f"an id from 0 to {LARGEST} with the value 1, as 7:1")
        ids[:, f] = number.set(~good, 0).to_numpy()
    batch = Batch((label == 1).fill_null(False).to_numpy().astype(np.uint8), np.empty((len(frame), 0), np.float32), ids)
    kept = bad_cells.readable_rows(block.path, bad)
    return batch if kept is None else batch.take(kept)


@dataclass(frozen=True)
class Libfm:
    """Options of the data source data=libfm."""

    train: str | None = None
    validation: str | None = None
    test: str | None = None
    max_bad_lines: Natural = 0
    user_field: Natural | None = None

    def sources(self) -> list[SourceFile]:
        """Find the source files of train, validation and test."""
        for name in SPLITS:
            require(bool(getattr(self, name)), f"data.{name} is not set; type data.{name}=FILE.")
        paths = [find(getattr(self, name), ["*.libfm*"], f"data.{name}") for name in SPLITS]
        for name, found in zip(SPLITS, paths, strict=True):
            require(len(found) == 1, f"data.{name} stands for {len(found)} files; name one.")
        return [found[0] for found in paths]

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        paths, bad = self.sources(), BadLines(self.max_bad_lines)
        rows, largest = np.zeros(len(paths), np.int64), 0
        blocks = read_all(paths, progress)
        first = next(blocks)
        fields = _fields(first[1])
        problem = f"data.user_field={self.user_field} is no field; type a number from 0 to {fields - 1}."
        require((self.user_field or 0) < fields, problem)

        def chunks() -> Iterator[Batch]:
            nonlocal largest
            for i, block in chain([first], blocks):
                chunk = parse(block, fields, bad)
                rows[i] += len(chunk)
                largest = max(largest, int(chunk.ids.max(initial=0)))
                yield chunk

        write_all(folder, chunks())
        for path, count in zip(paths, rows, strict=True):
            if not count:
                raise DataError(f"{path} has no readable line.")
        schema = Schema(0, (largest + 1,) * fields, tables=(0,) * fields)
        splits = splits_between(np.cumsum(rows).tolist(), SPLITS)
        names = [USER if i == self.user_field else f"field{i}" for i in range(fields)]
        return WrittenArrays("splits", schema, splits, [], names, bad.count)


def _fields(block: LineBlock) -> int:
    line = block.data.partition(b"\n")[0]
    count = line.count(b":")
    if not count:
        raise DataError(f"{block.path}, line 1: no id:1 pair; this is not libfm text.")
    return count

"""Reader of libfm text with one-hot fields (Frappe and the like): label 1/-1 or 1/0, then `id:1` pairs.

All lines have the same number of pairs. Ids are used unhashed and shared by all fields (one table of the largest
id + 1 rows). Three files: train, validation, test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from gbactl.checked_dataclasses import Natural
from gbactl.data.cache_writer import WrittenArrays, splits_between, write_all
from gbactl.data.dataset import USER, Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import BadLines, FastPathMismatch, LineBlock, find, is_integer, parse, read_all, table
from gbactl.errors import DataError, require

SPLITS = ("train", "validation", "test")
LARGEST = 2**31 - 2


@dataclass(frozen=True)
class LibfmLines:
    """Line format of libfm files with `fields` pairs `id:1` a line."""

    fields: int

    def fast(self, data: bytes, lines: int) -> Batch:
        data = data.replace(b" \n", b"\n")
        pairs = data.count(b":")
        if pairs != lines * self.fields or data.count(b":1 ") + data.count(b":1\n") != pairs or b"+" in data:
            raise FastPathMismatch("pairs")
        bare = data.replace(b":1 ", b" ").replace(b":1\n", b"\n")
        names = [f"f{i}" for i in range(self.fields)]
        frame = table(bare, lines, " ", {"label": pl.Int64, **dict.fromkeys(names, pl.Int64)})
        label = frame["label"]
        if not label.is_in([-1, 0, 1]).fill_null(False).all():
            raise FastPathMismatch("label")
        wide = frame.select(names).fill_null(-1).to_numpy()
        if wide.min() < 0 or wide.max() > LARGEST:
            raise FastPathMismatch("id")
        labels = (label.to_numpy() == 1).astype(np.uint8)
        return Batch(labels, np.empty((lines, 0), np.float32), np.ascontiguousarray(wide, np.int32))

    def explain(self, line: str) -> str | None:
        label, *pairs = line.removesuffix(" ").split(" ")
        if not is_integer(label) or int(label) not in (-1, 0, 1):
            return f"the label is {label!r}, not 1, 0 or -1"
        if len(pairs) != self.fields:
            return f"{len(pairs)} id:1 pairs where the first line has {self.fields}"
        for pair in pairs:
            identity, _, value = pair.partition(":")
            if not is_integer(identity) or not 0 <= int(identity) <= LARGEST:
                return f"{pair!r} has no id from 0 to {LARGEST}"
            if value != "1":
                return f"{pair!r} has a value other than 1, which is not a one-hot field"
        return None


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
        form = LibfmLines(_fields(first[1]))
        told = f"data.user_field={self.user_field} is no field; type a number from 0 to {form.fields - 1}."
        require((self.user_field or 0) < form.fields, told)

        def chunks() -> Iterator[Batch]:
            nonlocal largest
            for i, block in chain([first], blocks):
                chunk = parse(form, block, bad)
                if chunk is not None:
                    rows[i] += len(chunk)
                    largest = max(largest, int(chunk.ids.max()))
                    yield chunk

        write_all(folder, chunks())
        for path, count in zip(paths, rows, strict=True):
            if not count:
                raise DataError(f"{path} has no readable line.")
        schema = Schema(0, (largest + 1,) * form.fields, tables=(0,) * form.fields)
        splits = splits_between(np.cumsum(rows).tolist(), SPLITS)
        names = [USER if i == self.user_field else f"field{i}" for i in range(form.fields)]
        return WrittenArrays("splits", schema, splits, [], names, bad.count)


def _fields(block: LineBlock) -> int:
    line = block.data.partition(b"\n")[0]
    count = line.count(b":")
    if not count:
        raise DataError(f"{block.path}, line 1: no id:1 pair; this is not libfm text.")
    return count

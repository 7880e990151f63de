"""Reader of Criteo with several ids a field, in the layout of MLPerf's DLRM-v2: three files of NumPy arrays a day.

    day_0_labels.npy             int32[rows, 1]
    day_0_dense.npy              float32[rows, 13], logarithms already
    day_0_sparse_multi_hot.npz   its members 0.npy to 25.npy: int32[rows, ids of the field]

A field with one id is a column, any other one is multi-valued; its lists all have the same length. Numbers are used as
they are, and ids modulo `buckets`. The arrays are read side by side in chunks, from the archive too, which is not
unpacked: memory is 16,384 rows (14 MB as published) and the buffers of the open files.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Days, TableRows
from gbactl.data.cache_writer import WrittenArrays, equal_days, splits_between, write_all
from gbactl.data.dataset import Batch, Jagged, ListField, Pooling, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.text_files import find
from gbactl.errors import DataError

CHUNK = 1 << 14
LABELS, DENSE, SPARSE = KINDS = ("_labels.npy", "_dense.npy", "_sparse_multi_hot.npz")
DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError)
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class ArrayStream:
    """Array of numbers in NumPy's file format, read some rows at a time. Raises DataError for anything else."""

    def __init__(self, name: str, stream: Any, kinds: str = "iuf") -> None:
        self._name, self._stream = name, stream
        try:
            shape, by_columns, self._kind = READ_HEADER[np.lib.format.read_magic(stream)](stream)
        except (ValueError, KeyError, *DAMAGES) as error:
            raise DataError(f"{name} is no array of NumPy ({error}); fetch the file again.") from None
        if by_columns or len(shape) not in (1, 2) or self._kind.kind not in kinds or 0 in shape[1:]:
            wanted = "whole numbers" if kinds == "iu" else "numbers"
            raise DataError(f"{name} is {self._kind}{list(shape)}; it has to be an array of {wanted} [rows, columns].")
        self.rows, self.columns = (*shape, 1)[:2]

    def read(self, rows: int) -> NDArray[Any]:
        """Read the next rows. Raises DataError if the file is damaged."""
        size = rows * self.columns * self._kind.itemsize
        try:
            data = self._stream.read(size)
        except DAMAGES as error:
            raise DataError(f"{self._name} is damaged ({error}); fetch the file again.") from None
        if len(data) < size:
            raise DataError(f"{self._name} ends too early; fetch the file again.")
        return np.frombuffer(data, self._kind).reshape(rows, self.columns)


@dataclass(frozen=True)
class Day:
    """Open arrays of a day."""

    name: str
    labels: ArrayStream
    dense: ArrayStream
    fields: list[ArrayStream]

    @property
    def shape(self) -> tuple[int, tuple[int, ...]]:
        """Number of numeric features, and for each field the number of its ids per sample."""
        return self.dense.columns, tuple(field.columns for field in self.fields)


def _opened(files: dict[str, SourceFile], stack: ExitStack) -> Day:
    """Open the files of a day, by their kinds, and check that they have the same number of rows."""

    def stream(file: SourceFile) -> BinaryIO:
        return stack.enter_context(file.open("rb"))

    labels, dense = (ArrayStream(str(files[kind]), stream(files[kind])) for kind in (LABELS, DENSE))
    try:
        archive = stack.enter_context(zipfile.ZipFile(stream(files[SPARSE])))
        names = [f"{place}.npy" for place in range(len(archive.namelist()))]
        if not names or set(names) != set(archive.namelist()):
            array_names = ", ".join(archive.namelist()[:5]) or "none"
            raise DataError(f"{files[SPARSE]} has the arrays {array_names}; they have to be 0.npy, 1.npy and so on.")
        members = [stack.enter_context(archive.open(name)) for name in names]
    except DAMAGES as error:
        raise DataError(f"{files[SPARSE]} is damaged ({error}); fetch the file again.") from None
    fields = [
        ArrayStream(f"{name} of {files[SPARSE]}", member, "iu") for name, member in zip(names, members, strict=True)
    ]
    for array, name in ((dense, DENSE), *((field, SPARSE) for field in fields)):
        if array.rows != labels.rows:
            counts = f"{array.rows:,} rows and {files[LABELS]} {labels.rows:,}"
            raise DataError(f"{files[name]} has {counts}; fetch all files of this day again.")
    if not labels.rows:
        raise DataError(f"{files[LABELS]} has no rows; leave this day out.")
    return Day(str(files[SPARSE]), labels, dense, fields)


@dataclass(frozen=True)
class CriteoMultihot:
    """Options of the data source data=criteo_multihot.

    Each three files are a day, or the rows of all files are cut into `days` equal days."""

    path: str | list[str] | None = None
    days: Days | None = None
    buckets: TableRows = 131072
    pooling: Pooling = "sum"

    def sources(self) -> list[SourceFile]:
        """Find the files, in order of time."""
        return [file for files in self._by_day().values() for file in files.values()]

    def _by_day(self) -> dict[str, dict[str, SourceFile]]:
        """Return the files as {path without suffix: {suffix: file}}. Raises DataError if one is missing."""
        found: dict[str, dict[str, SourceFile]] = {}
        for file in find(self.path, [f"*{kind}" for kind in KINDS]):
            for kind in KINDS:
                if file.name.endswith(kind):
                    found.setdefault(str(file).removesuffix(kind), {})[kind] = file
        for day, files in found.items():
            for kind in KINDS:
                if kind not in files:
                    other, lacking = next(iter(files.values())), f"{day.rpartition('/')[2]}{kind}"
                    raise DataError(f"{other} has no {lacking} beside it; set data.path to a folder with all three.")
        if not found:
            raise DataError(f"{self.path} is none of MLPerf's files; set data.path to a folder with day_0{SPARSE}.")
        return found

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays."""
        days, ends = list(self._by_day().values()), [0]
        with ExitStack() as stack:
            numeric, hot = _opened(days[0], stack).shape
        columns = [place for place, size in enumerate(hot) if size == 1]
        lists = [place for place, size in enumerate(hot) if size > 1]
        largest = np.zeros(len(hot), np.int64)

        def chunks() -> Iterator[Batch]:
            for number, files in enumerate(days):
                with ExitStack() as stack:
                    day = _opened(files, stack)
                    if day.shape != (numeric, hot):
                        raise DataError(f"{day.name} has other fields than the first day; name files of one data set.")
                    for low in range(0, day.labels.rows, CHUNK):
                        progress(f"reading {files[SPARSE].name}", (number + low / day.labels.rows) / len(days))
                        yield self._rows(day, min(CHUNK, day.labels.rows - low), columns, lists, largest)
                    ends.append(ends[-1] + day.labels.rows)

        write_all(folder, chunks())
        per_file = self.days is None and len(days) > 1
        splits = splits_between(ends[1:]) if per_file else equal_days(ends[-1], self.days)
        order = [*columns, *lists]
        fields = tuple(ListField(hot[place], self.pooling) for place in lists)
        schema = Schema(numeric, tuple(int(largest[place]) + 1 for place in order), (), fields)
        names = [f"I{place + 1}" for place in range(numeric)], [f"C{place + 1}" for place in order]
        return WrittenArrays("days", schema, splits, *names, days_by_rows=not per_file)

    def _rows(self, day: Day, rows: int, columns: list[int], lists: list[int], largest: NDArray[np.int64]) -> Batch:
        """Read the next rows of a day, and update `largest`, the largest id of each field so far."""
        labels, dense = day.labels.read(rows)[:, 0], day.dense.read(rows)
        ids = [field.read(rows) for field in day.fields]
        if not ((labels == 0) | (labels == 1)).all():
            raise DataError(f"The labels of {day.name} are not all 0 or 1; fetch all files of this day again.")
        if not np.isfinite(dense).all() or min(each.min() for each in ids) < 0:
            raise DataError(f"{day.name} or its dense file has ids below 0, or NaN; fetch all files of this day again.")
        ids = [(each % self.buckets).astype(np.int32) for each in ids]
        np.maximum(largest, [each.max() for each in ids], out=largest)
        one = np.concatenate([np.empty((rows, 0), np.int32), *(ids[place] for place in columns)], axis=1)
        jagged = None
        if lists:
            lengths = np.tile([day.fields[place].columns for place in lists], rows)
            values = np.concatenate([ids[place] for place in lists], axis=1).reshape(-1)
            jagged = Jagged(len(lists), np.concatenate([[0], np.cumsum(lengths)]), values)
        return Batch(labels.astype(np.uint8), dense.astype(np.float32), one, jagged)

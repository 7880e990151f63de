"""Writer of the three cache arrays: appended when the number of rows is not known, mapped when it is; cut into days.

Appending costs one buffered write a chunk; the .npy header is rewritten in place at the end.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gbactl.data.dataset import ARRAYS, Batch, Schema
from gbactl.errors import DataError

DTYPES: dict[str, np.dtype[Any]] = {
    "labels": np.dtype("uint8"),
    "numeric": np.dtype("<f4"),
    "ids": np.dtype("<i4"),
}
HEADER = 128
DEFAULT_DAYS = 7


@dataclass(frozen=True)
class WrittenArrays:
    """Description of the arrays that a source wrote; `splits` are (name, first row, end row)."""

    kind: str
    schema: Schema
    splits: list[tuple[str, int, int]]
    numeric_names: list[str]
    field_names: list[str]
    bad_lines: int = 0
    best_auc: dict[str, float] = field(default_factory=dict)


def _shape(name: str, rows: int, numeric: int, fields: int) -> tuple[int, ...]:
    return {"labels": (rows,), "numeric": (rows, numeric), "ids": (rows, fields)}[name]


class ArrayWriter:
    """Writer that appends chunks to labels.npy, numeric.npy and ids.npy in a folder."""

    def __init__(self, folder: Path, numeric: int, fields: int) -> None:
        self.rows = 0
        self._width = (numeric, fields)
        self._files: dict[str, BinaryIO] = {name: (folder / f"{name}.npy").open("wb") for name in ARRAYS}
        self._headers()

    def _headers(self) -> None:
        for name, file in self._files.items():
            file.seek(0)
            shape = _shape(name, self.rows, *self._width)
            header: dict[str, Any] = {"descr": DTYPES[name].str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            assert file.tell() == HEADER

    def append(self, chunk: Batch) -> None:
        """Write one chunk of rows."""
        for name, file in self._files.items():
            array = np.ascontiguousarray(getattr(chunk, name), DTYPES[name])
            assert array.shape == _shape(name, len(chunk), *self._width)
            file.write(array.tobytes())
        self.rows += len(chunk)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._headers()
        for file in self._files.values():
            file.close()


def write_all(folder: Path, numeric: int, fields: int, chunks: Iterable[Batch]) -> int:
    """Append every chunk and return the number of rows."""
    with ArrayWriter(folder, numeric, fields) as writer:
        for chunk in chunks:
            writer.append(chunk)
    return writer.rows


def allocate(folder: Path, rows: int, numeric: int, fields: int) -> Batch:
    """Create writable maps of the three arrays for a known number of rows.

    Raises DataError where the disk is too small.
    """
    size = rows * sum(DTYPES[name].itemsize * math.prod(_shape(name, 1, numeric, fields)) for name in ARRAYS)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"The data takes {size / 1e9:,.1f} GB, of which {folder.parent} has {free / 1e9:,.1f} free; type a smaller "
            "data.rows_per_day or data.days, or set data.cache to another folder."
        )
    make = np.lib.format.open_memmap
    labels, values, ids = (
        make(folder / f"{name}.npy", "w+", DTYPES[name], _shape(name, rows, numeric, fields)) for name in ARRAYS
    )
    return Batch(labels, values, ids)


def reorder(source: Path, folder: Path, order: NDArray[np.int64], chunk: int = 1 << 18) -> None:
    """Write the arrays of `source` into `folder` in the given order of rows, a chunk at a time."""
    arrays = {name: np.load(source / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    with ArrayWriter(folder, arrays["numeric"].shape[1], arrays["ids"].shape[1]) as writer:
        for lo in range(0, len(order), chunk):
            index = order[lo : lo + chunk]
            writer.append(Batch(*(arrays[name][index] for name in ARRAYS)))


def sync_folder(folder: Path) -> None:
    """Flush every file of a folder, and the folder itself, to disk."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def equal_days(rows: int, days: int | None) -> list[tuple[str, int, int]]:
    """Cut rows into `days` (default 7) equal days: (name, first, end). Raises DataError with fewer rows than days."""
    count = days or DEFAULT_DAYS
    if rows < count:
        raise DataError(f"The data has {rows} rows, which cannot be cut into data.days={count}; set fewer days.")
    return days_between([rows * (i + 1) // count for i in range(count)])


def days_between(ends: list[int]) -> list[tuple[str, int, int]]:
    """Row ranges of consecutive days, (name, first, end), from the end row of each."""
    return [(f"day{i}", start, end) for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]

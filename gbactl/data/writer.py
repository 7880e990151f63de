"""Writer of a cache's three arrays (labels, numeric, ids), and their division into days.

Appending costs one buffered write a chunk; the .npy header is rewritten in place at the end.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
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
AT_ONCE = 1 << 18  # rows that are copied at once


@dataclass(frozen=True)
class WrittenArrays:
    """Description of the arrays that a source has written; `splits` are (name, first row, end row)."""

    kind: str
    schema: Schema
    splits: list[tuple[str, int, int]]
    numeric_names: list[str]
    field_names: list[str]
    bad_lines: int = 0
    days_by_rows: bool = False  # days are cut by number of rows, as the source has no time
    best_auc: dict[str, float] = field(default_factory=dict)


def _shape(name: str, rows: int, numeric: int, fields: int) -> tuple[int, ...]:
    return {"labels": (rows,), "numeric": (rows, numeric), "ids": (rows, fields)}[name]


def _write_headers(files: dict[str, BinaryIO], rows: int, numeric: int, fields: int) -> None:
    for name, file in files.items():
        file.seek(0)
        shape = _shape(name, rows, numeric, fields)
        header: dict[str, Any] = {"descr": DTYPES[name].str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        assert file.tell() == HEADER


def write_all(folder: Path, numeric: int, fields: int, chunks: Iterable[Batch]) -> int:
    """Append all chunks to labels.npy, numeric.npy and ids.npy in a folder; return the number of rows."""
    rows = 0
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in ARRAYS}
        _write_headers(files, 0, numeric, fields)
        for chunk in chunks:
            for name, file in files.items():
                array = np.ascontiguousarray(getattr(chunk, name), DTYPES[name])
                assert array.shape == _shape(name, len(chunk), numeric, fields)
                file.write(array.tobytes())
            rows += len(chunk)
        _write_headers(files, rows, numeric, fields)
    return rows


def allocate(folder: Path, rows: int, numeric: int, fields: int) -> Batch:
    """Create writable memory-mapped arrays for a known number of rows.

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


def reorder(
    source: Path, folder: Path, order: NDArray[np.int64] | None, change: Callable[[Batch], Batch] = lambda rows: rows
) -> None:
    """Copy the arrays of `source` into `folder`, a chunk at a time.

    `order`: places of the rows in the order in which they are copied; None: as they are. `change` is applied to each
    chunk."""
    arrays = {name: np.load(source / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    rows = len(arrays["labels"])

    def chunk(lo: int, hi: int) -> Batch:
        places = slice(lo, hi) if order is None else order[lo:hi]
        return change(Batch(*(arrays[name][places] for name in ARRAYS)))

    shape = chunk(0, 0)
    batches = (chunk(lo, min(lo + AT_ONCE, rows)) for lo in range(0, rows, AT_ONCE))
    write_all(folder, shape.numeric.shape[1], shape.ids.shape[1], batches)


def sync_folder(folder: Path) -> None:
    """Sync a folder and every file in it to disk."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def equal_days(rows: int, days: int | None) -> list[tuple[str, int, int]]:
    """Divide rows into `days` (default 7) equal days; returns (name, first, end). Raises DataError for too few rows."""
    count = days or DEFAULT_DAYS
    if rows < count:
        raise DataError(f"The data has {rows} rows, which cannot be cut into data.days={count}; set fewer days.")
    return days_between([rows * (i + 1) // count for i in range(count)])


def days_between(ends: list[int]) -> list[tuple[str, int, int]]:
    """Return the rows of consecutive days as (name, first, end), from the end row of each day."""
    return [(f"day{i}", start, end) for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]

"""Writer of a cache's arrays (labels, numeric, ids; lists of multi-valued fields), and their division into days.

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

from gbactl.data.dataset import Batch, Jagged, Schema, Split, array_names, map_arrays
from gbactl.errors import DataError

DTYPES: dict[str, np.dtype[Any]] = {
    "labels": np.dtype("uint8"),
    "numeric": np.dtype("<f4"),
    "ids": np.dtype("<i4"),
    "offsets": np.dtype("<i8"),
    "values": np.dtype("<i4"),
    "weights": np.dtype("<f4"),
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


Shapes = dict[str, tuple[int, ...]]


def _shapes(rows: int, numeric: int, columns: int, lists: int = 0, values: int = 0) -> Shapes:
    return {
        "labels": (rows,), "numeric": (rows, numeric), "ids": (rows, columns),
        "offsets": (rows * lists + 1,), "values": (values,), "weights": (values,),
    }  # fmt: skip


def _write_headers(files: dict[str, BinaryIO], shapes: Shapes) -> None:
    for name, file in files.items():
        file.seek(0)
        header: dict[str, Any] = {"descr": DTYPES[name].str, "fortran_order": False, "shape": shapes[name]}
        np.lib.format.write_array_header_1_0(file, header)
        assert file.tell() == HEADER


def _appended(chunk: Batch, lists: int, values: int) -> dict[str, NDArray[Any]]:
    """Return a chunk's arrays as appended to a cache that already has `values` values of lists."""
    arrays: dict[str, NDArray[Any]] = {"labels": chunk.labels, "numeric": chunk.numeric, "ids": chunk.ids}
    if chunk.jagged is not None:
        jagged = chunk.jagged
        assert jagged.lists == lists and len(jagged.offsets) == len(chunk) * lists + 1
        arrays["offsets"] = jagged.offsets[1:] - (jagged.offsets[0] - values)
        arrays["values"] = jagged.values
        arrays["weights"] = np.ones(len(jagged.values), np.float32) if jagged.weights is None else jagged.weights
    return arrays


def write_all(
    folder: Path, numeric: int, columns: int, chunks: Iterable[Batch], lists: int = 0, weighted: bool = False
) -> int:
    """Append all chunks to the arrays (labels.npy and so on) in a folder; return the number of rows.

    `columns`: fields with one id a sample; `lists`: multi-valued fields, whose values have weights if `weighted`."""
    rows = values = 0
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in array_names(lists, weighted)
        }
        _write_headers(files, _shapes(0, numeric, columns))
        if lists:
            files["offsets"].write(bytes(8))
        for chunk in chunks:
            found = _appended(chunk, lists, values)
            for name, file in files.items():
                array = np.ascontiguousarray(found[name], DTYPES[name])
                assert array.shape[1:] == _shapes(0, numeric, columns)[name][1:]
                file.write(array.tobytes())
            rows += len(chunk)
            values += 0 if chunk.jagged is None else len(chunk.jagged.values)
        _write_headers(files, _shapes(rows, numeric, columns, lists, values))
    return rows


def allocate(
    folder: Path, rows: int, numeric: int, columns: int, lists: int = 0, values: int = 0, weighted: bool = False
) -> Batch:
    """Create writable memory-mapped arrays for a known number of rows, and of `values` values of multi-valued fields.

    Raises DataError where the disk is too small.
    """
    shapes = _shapes(rows, numeric, columns, lists, values)
    names = array_names(lists, weighted)
    size = sum(DTYPES[name].itemsize * math.prod(shapes[name]) for name in names)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"The data takes {size / 1e9:,.1f} GB, of which {folder.parent} has {free / 1e9:,.1f} free; type a smaller "
            "data.rows_per_day or data.days, or set data.cache to another folder."
        )
    make = np.lib.format.open_memmap
    made = {name: make(folder / f"{name}.npy", "w+", DTYPES[name], shapes[name]) for name in names}
    jagged = Jagged(lists, made["offsets"], made["values"], made.get("weights")) if lists else None
    return Batch(made["labels"], made["numeric"], made["ids"], jagged)


def reorder(
    source: Path, folder: Path, order: NDArray[np.int64] | None, lists: int = 0, weighted: bool = False,
    chunk: int = AT_ONCE, change: Callable[[Batch], Batch] = lambda rows: rows,
) -> None:  # fmt: skip
    """Copy the arrays of `source` into `folder`, a chunk at a time.

    `order`: places of the rows in the order in which they are copied; None: as they are. `change` is applied to each
    chunk; it keeps the lists. A chunk has fewer rows where these have long lists."""
    whole = Split("", map_arrays(source, lists, weighted))
    if whole.whole.jagged is not None:
        chunk = max(1, chunk // (1 + len(whole.whole.jagged.values) // max(1, whole.rows)))

    def copied(lo: int, hi: int) -> Batch:
        return change(whole.slice(lo, hi) if order is None else whole.take(order[lo:hi]))

    shape = copied(0, 0)
    batches = (copied(lo, min(lo + chunk, whole.rows)) for lo in range(0, whole.rows, chunk))
    write_all(folder, shape.numeric.shape[1], shape.ids.shape[1], batches, lists, weighted)


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

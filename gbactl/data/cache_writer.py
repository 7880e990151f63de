"""Writer of a cache's arrays (labels, numeric, ids; lists of multi-valued fields): their order and division into days.

To append costs one buffered write for each chunk; the .npy header is rewritten in place at the end.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gbactl.data.dataset import Batch, Progress, Schema, map_arrays
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
Order = NDArray[np.int64] | None  # row numbers sorted by time; None: the rows are in order


@dataclass(frozen=True)
class WrittenArrays:
    """Description of the arrays that a source has written; `splits` are (name, first row, end row).

    `kind`: days, splits or parts, as `Dataset` explains them."""

    kind: str
    schema: Schema
    splits: list[tuple[str, int, int]]
    numeric_names: list[str]
    field_names: list[str]
    bad_lines: int = 0
    days_by_rows: bool = False  # days are cut by number of rows, as the source has no time
    best_auc: dict[str, float] = field(default_factory=dict)


def _write_headers(files: Mapping[str, BinaryIO], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, file in files.items():
        file.seek(0)
        header: dict[str, Any] = {"descr": DTYPES[name].str, "fortran_order": False, "shape": shapes[name]}
        np.lib.format.write_array_header_1_0(file, header)
        assert file.tell() == HEADER


def _appended(chunk: Batch, values: int) -> dict[str, NDArray[Any]]:
    """Return a chunk's arrays by name, with its list offsets moved by the `values` list values already in the cache."""
    arrays: dict[str, NDArray[Any]] = {"labels": chunk.labels, "numeric": chunk.numeric, "ids": chunk.ids}
    if (jagged := chunk.jagged) is not None:
        if len(jagged.offsets) != (wanted := len(chunk) * jagged.lists + 1):
            raise DataError(f"A chunk has {len(jagged.offsets)} offsets for {wanted - 1} lists; it needs {wanted}.")
        arrays["offsets"] = jagged.offsets[1:] - (jagged.offsets[0] - values)
        arrays["values"] = jagged.values
        if jagged.weights is not None:
            arrays["weights"] = jagged.weights
    return arrays


def _stored(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to the type in which it is stored. Raises DataError if this would change a whole number."""
    with np.errstate(invalid="ignore"):  # of NaN, which is told below
        found = np.ascontiguousarray(array, DTYPES[name])
    if array.dtype != found.dtype and found.dtype.kind != "f" and (changed := found != array).any():
        raise DataError(f"The value {array[changed][0]} cannot be written to {name}.npy, which is of {found.dtype}.")
    return found


def write_all(folder: Path, chunks: Iterable[Batch]) -> int:
    """Append all chunks to the arrays (labels.npy and so on) in a folder; return the number of rows.

    The first chunk says how many columns each array has, and whether there are lists and weights. Raises DataError for
    a chunk with others, and for a label, id or offset that the type of its array cannot hold."""
    lengths, widths, files = dict[str, int](), dict[str, tuple[int, ...]](), dict[str, BinaryIO]()
    with ExitStack() as stack:
        for chunk in chunks:
            found = _appended(chunk, lengths.get("values", 0))
            if not files:
                lengths, widths = dict.fromkeys(found, 0), {name: array.shape[1:] for name, array in found.items()}
                files = {name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in found}
                _write_headers(files, {name: (0, *width) for name, width in widths.items()})
                if "offsets" in files:
                    files["offsets"].write(bytes(8))
                    lengths["offsets"] = 1
            if widths != (own := {name: array.shape[1:] for name, array in found.items()}):
                raise DataError(f"A chunk has arrays with rows of the shapes {own}, the first chunk {widths}.")
            for name, array in found.items():
                files[name].write(_stored(name, array).tobytes())
                lengths[name] += len(array)
        _write_headers(files, {name: (lengths[name], *width) for name, width in widths.items()})
    return lengths.get("labels", 0)


def allocate(folder: Path, schema: Schema, rows: int, values: int) -> Batch:
    """Create writable memory-mapped arrays for a known number of rows, and of `values` values of multi-valued fields.

    Raises DataError where the disk is too small.
    """
    lists = len(schema.lists)
    shapes = {
        "labels": (rows,), "numeric": (rows, schema.numeric), "ids": (rows, schema.columns),
        "offsets": (rows * lists + 1,), "values": (values,), "weights": (values,),
    }  # fmt: skip
    size = sum(DTYPES[name].itemsize * math.prod(shapes[name]) for name in schema.arrays)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"The data takes {size / 1e9:,.1f} GB, of which {folder.parent} has {free / 1e9:,.1f} free; type a smaller "
            "data.rows_per_day or data.days, or set data.cache to another folder."
        )
    make = np.lib.format.open_memmap
    made = {name: make(folder / f"{name}.npy", "w+", DTYPES[name], shapes[name]) for name in schema.arrays}
    return Batch.of(made, lists)


class Clock:
    """Times of all rows, in a file; tells whether they are in order, and counts the rows of each day."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.in_order, self.counts = True, Counter[int]()
        self._last = np.iinfo(np.int64).min
        path.touch()

    def add(self, times: NDArray[np.int64], days: NDArray[np.int64] | None = None) -> None:
        """Add the times of the next rows and, to count them, their day numbers."""
        if not len(times):
            return
        self.in_order &= bool(times[0] >= self._last and (np.diff(times) >= 0).all())
        self._last = times[-1]
        with self.path.open("ab") as file:
            file.write(times.tobytes())
        if days is not None:
            found, counts = np.unique(days, return_counts=True)
            self.counts.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def order(self) -> Order:
        """Return the row numbers sorted by time; None if the rows already are in order."""
        return None if self.in_order else np.argsort(np.fromfile(self.path, np.int64), kind="stable")

    def splits(self, name: Callable[[int], str]) -> list[tuple[str, int, int]]:
        """Return the rows of each day, in order of time, as (name, first, end); `name` makes names of day numbers."""
        days = sorted(self.counts)
        return splits_between(np.cumsum([self.counts[day] for day in days]).tolist(), map(name, days))


def put_in_order(
    staged: Path, folder: Path, schema: Schema, order: Order, progress: Progress,
    change: Callable[[Batch], Batch] | None = None,
) -> None:  # fmt: skip
    """Move the arrays in the folder `staged` to `folder`, in the given order; `change`: see `reorder`."""
    if order is None and change is None:
        for path in staged.glob("*.npy"):
            path.rename(folder / path.name)
        return
    progress("transforming" if order is None else "sorting by time", 1.0)
    reorder(map_arrays(staged, schema), folder, order, change)


def reorder(whole: Batch, folder: Path, order: Order, change: Callable[[Batch], Batch] | None = None) -> None:
    """Write a batch's arrays into a folder with the rows in the given order, a chunk at a time.

    `order`: places of the rows in the order in which they are copied; None: as they are. `change` is applied to each
    chunk; it keeps the lists. A chunk has fewer rows where these have long lists."""
    rows, chunk = len(whole), AT_ONCE
    if whole.jagged is not None:
        chunk = max(1, chunk // (1 + len(whole.jagged.values) // max(1, rows)))

    def copied(lo: int, hi: int) -> Batch:
        found = whole.slice(lo, hi) if order is None else whole.take(order[lo:hi])
        return found if change is None else change(found)

    write_all(folder, (copied(lo, min(lo + chunk, rows)) for lo in range(0, max(1, rows), chunk)))


def equal_days(rows: int, days: int | None) -> list[tuple[str, int, int]]:
    """Divide rows into `days` (default 7) equal days; returns (name, first, end). Raises DataError for too few rows."""
    count = days or DEFAULT_DAYS
    if rows < count:
        raise DataError(f"The data has {rows} rows, which cannot be cut into data.days={count}; set fewer days.")
    return splits_between([rows * (i + 1) // count for i in range(count)])


def splits_between(ends: Sequence[int], names: Iterable[str] | None = None) -> list[tuple[str, int, int]]:
    """Return consecutive splits as (name, first, end), from the end row of each; without `names` day0, day1, ..."""
    called = names or (f"day{i}" for i in range(len(ends)))
    return [(name, start, end) for name, (start, end) in zip(called, pairwise([0, *ends]), strict=True)]

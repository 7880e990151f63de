"""Prepared data set: memory-mapped arrays, the row ranges of its days or splits, checksums, and the sample order.

Opening a data set reads meta.json and a few sampled pages (about a millisecond). A slice is a view, so a worker
copies and parses nothing. Memory is the page cache's, shared by all workers of a host.

The sample order is a keyed pseudo-random permutation of range(n); any range of it costs only that range's memory. It is
a Feistel network over the next power of two, applied again until the value falls below n (cycle walking): fewer than
two passes on average, about 60 ns a position. The coordinator and every worker compute the same order from (key, n)
without exchanging it.

A sampled digest reads at most 3 MiB of a file whatever its size; the full CRC reads all of it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.data.remote_files import RemoteFile, SourceFile
from gbactl.errors import DataError
from gbactl.hashing import MASK64, mix, mix_int

Progress = Callable[[str, float], None]  # stage in words, and its fraction done
META = "meta.json"
FORMAT = 1
ARRAYS = ("labels", "numeric", "ids")
KEYS = {
    "name", "fingerprint", "kind", "numeric", "cardinalities", "shared_ids", "splits", "numeric_names",
    "field_names", "bad_lines", "best_auc", "files",
}  # fmt: skip
USER = "user"  # name of the field that tells whose sample it is
DAYS_BY_ROWS = "The days are cut by row count, as the data have no time."
ROUNDS = 8


@dataclass(frozen=True)
class Schema:
    """Shape of a data set's rows: numeric features, and categorical fields with their cardinalities.

    `cardinalities[f]` bounds the ids of field f. With `shared_ids` all fields draw from one id space.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    shared_ids: bool = False

    @property
    def fields(self) -> int:
        """Number of categorical fields."""
        return len(self.cardinalities)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return the first row of each field in the fused embedding table, int64[F]; all 0 with shared ids."""
        ends = np.cumsum(self.cardinalities, dtype=np.int64)
        return np.zeros_like(ends) if self.shared_ids else ends - np.array(self.cardinalities, np.int64)

    @property
    def rows(self) -> int:
        """Number of rows of the fused embedding table."""
        return max(self.cardinalities, default=0) if self.shared_ids else sum(self.cardinalities)


@dataclass(frozen=True)
class Batch:
    """Batch of samples: labels uint8[n], numeric float32[n, N], ids int32[n, F].

    A batch from `Split.slice` is read-only (it is the cache itself); `torch.tensor(batch.numeric)` copies it.
    """

    labels: NDArray[np.uint8]
    numeric: NDArray[np.float32]
    ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Split:
    """One day or one split (such as test) of the data set: a range of rows of the mapped arrays."""

    name: str
    whole: Batch

    @property
    def rows(self) -> int:
        """Number of samples in the split."""
        return len(self.whole)

    def slice(self, lo: int, hi: int) -> Batch:
        """Return rows lo..hi as views. Raises IndexError outside 0 <= lo <= hi <= rows."""
        if not 0 <= lo <= hi <= self.rows:
            raise IndexError(f"rows {lo}..{hi} of split {self.name}, which has {self.rows}")
        return Batch(self.whole.labels[lo:hi], self.whole.numeric[lo:hi], self.whole.ids[lo:hi])

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Copy the rows at the positions `index` (int64[n]) of the split. Raises IndexError for an invalid position."""
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= self.rows):
            raise IndexError(f"an index outside split {self.name}, which has {self.rows} rows")
        return Batch(self.whole.labels[index], self.whole.numeric[index], self.whole.ids[index])


@dataclass(frozen=True)
class Dataset:
    """Data set as a list of splits in time order: days, or train, validation and test.

    kind "days": train on day d, evaluate on d+1; "splits": train, validation, test; "parts": train on all but the last
    split in turn, and evaluate each time on the last."""

    schema: Schema
    splits: tuple[Split, ...]
    kind: str
    fingerprint: str
    best_auc: dict[str, float]
    path: Path
    meta: dict[str, Any]

    @property
    def user_field(self) -> int | None:
        """Place of the categorical field that its source has named USER, for metrics by user; None without one."""
        names = self.meta["field_names"]
        return names.index(USER) if USER in names else None

    @property
    def days_by_rows(self) -> bool:
        """Whether its days are cut by number of rows, as the source has no time; false for an older cache."""
        return bool(self.meta.get("days_by_rows"))

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    @property
    def rows(self) -> int:
        """Number of samples in all splits."""
        return sum(split.rows for split in self.splits)

    def split(self, name: str) -> Split:
        """Return the split with this name. Raises KeyError."""
        return {split.name: split for split in self.splits}[name]


def read_meta(path: Path) -> dict[str, Any]:
    """Read meta.json of a cache directory. Raises DataError if it is missing, unreadable or of an old format."""
    try:
        meta = json.loads((path / META).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a complete data cache ({error}); prepare it again.") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or KEYS - meta.keys():
        raise DataError(f"{path} was written in another cache format; prepare it again.")
    return meta


def _map(path: Path) -> Batch:
    try:
        labels, numeric, ids = (np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); prepare it again.") from None
    return Batch(labels.view(np.ndarray), numeric.view(np.ndarray), ids.view(np.ndarray))


def open_dataset(path: Path, *, full: bool = False) -> Dataset:
    """Memory-map the data set in a cache directory made by `prepare`. Raises DataError if it is damaged.

    Sizes and sampled pages are checked; `full` reads every byte (about 1 GB/s).
    """
    path = Path(path)
    meta = read_meta(path)
    if set(meta["files"]) != {f"{name}.npy" for name in ARRAYS}:
        raise DataError(f"{path / META} names files that are not those of a data cache; prepare it again.")
    check_files(path, meta["files"], full=full)
    mapped = Split("", _map(path))
    schema = Schema(meta["numeric"], tuple(meta["cardinalities"]), meta["shared_ids"])
    splits = tuple(Split(s["name"], mapped.slice(s["lo"], s["hi"])) for s in meta["splits"])
    return Dataset(schema, splits, meta["kind"], meta["fingerprint"], meta["best_auc"], path, meta)


def _encrypt(x: NDArray[np.uint64], bits: int, keys: list[int]) -> NDArray[np.uint64]:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = x & low_mask, x >> low_bits
    for i in range(0, ROUNDS, 2):
        high = high ^ (mix(low ^ np.uint64(keys[i])) & high_mask)
        low = low ^ (mix(high ^ np.uint64(keys[i + 1])) & low_mask)
    return (high << low_bits) | low


def permuted(lo: int, hi: int, n: int, key: int) -> NDArray[np.int64]:
    """Return elements lo..hi of the pseudorandom permutation of range(n) with key `key`, int64.

    Raises ValueError unless 0 <= lo <= hi <= n.
    """
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"positions {lo}..{hi} of a permutation of {n}")
    bits = max(2, (n - 1).bit_length())
    keys = [mix_int((key + i * 0x9E3779B97F4A7C15) & MASK64) for i in range(ROUNDS)]
    result = _encrypt(np.arange(lo, hi, dtype=np.uint64), bits, keys)
    outside = np.flatnonzero(result >= n)
    while len(outside):
        walked = _encrypt(result[outside], bits, keys)
        result[outside] = walked
        outside = outside[walked >= n]
    return result.astype(np.int64)


SAMPLE = 1 << 16
SAMPLES = 48
SMALL = 64 << 20


def _sample(path: Path, size: int) -> str:
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= SAMPLE * SAMPLES:
            digest.update(file.read())
        else:
            for i in range(SAMPLES):
                file.seek((size - SAMPLE) * i // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def describe_file(path: Path) -> dict[str, Any]:
    """Compute a file's size, sampled digest and CRC, {size, sample, crc}, for `check_files`."""
    size = path.stat().st_size
    return {"size": size, "sample": _sample(path, size), "crc": _crc(path)}


def check_files(folder: Path, files: dict[str, dict[str, Any]], *, full: bool) -> None:
    """Compare the files of a cache with their stored descriptions. Raises DataError with the damaged file's name."""
    for name, expected in files.items():
        path = folder / name
        if path.is_symlink():
            raise DataError(f"{path} leads out of its folder; prepare the data again.")
        try:
            size = path.stat().st_size
            same = size == expected["size"] and _sample(path, size) == expected["sample"]
            same = same and (not full or _crc(path) == expected["crc"])
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); prepare the data again.") from None
        if not same:
            raise DataError(f"{path} is damaged; prepare the data again.")


def fingerprint(path: SourceFile) -> str:
    """Hash the content of a source file to identify it independently of its path.

    Above 64 MiB of size, time and samples; of a remote file what its storage says of it.
    """
    if isinstance(path, RemoteFile):
        return path.fingerprint()
    stat = path.stat()
    if stat.st_size <= SMALL:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return f"{stat.st_size}-{stat.st_mtime_ns}-{_sample(path, stat.st_size)}"

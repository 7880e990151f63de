"""Prepared data set: memory-mapped arrays, the row ranges of its days or splits, checksums, and the sample order.

A field with one id a sample is a column of `ids`. The multi-valued fields, which have a list of ids for each sample,
are stored together as one jagged array: the lists of a sample lie side by side, so that reading a sample touches one
place, also in shuffled order.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gbactl.data.remote_files import RemoteFile, SourceFile
from gbactl.errors import DataError
from gbactl.hashes_and_random_numbers import GOLDEN, MASK64, mix, mix_int

Progress = Callable[[str, float], None]  # stage in words, and its fraction done
META = "meta.json"
FORMAT = 2
ARRAYS = ("labels", "numeric", "ids")
JAGGED = ("offsets", "values")  # further arrays of data with multi-valued fields
WEIGHTS = "weights"  # further array of data whose values have weights
EVERY_ARRAY = (*ARRAYS, *JAGGED, WEIGHTS)
Pooling = Literal["sum", "mean", "max"]
POOLINGS = get_args(Pooling)
KEYS = {
    "name", "fingerprint", "kind", "numeric", "cardinalities", "tables", "lists", "weighted", "splits", "numeric_names",
    "field_names", "bad_lines", "days_by_rows", "best_auc", "files",
}  # fmt: skip
USER = "user"  # name of the field that tells whose sample it is
DAYS_BY_ROWS = "The days are cut by row count, as the data have no time."
ROUNDS = 8


@dataclass(frozen=True)
class ListField:
    """Multi-valued field: the length of its longest list, and how a list's rows are pooled to one (sum, mean, max).

    A list is pooled after its values' weights, if there are any, have scaled the rows. `mean` divides by the sum of the
    weights. An empty list gives zeros."""

    max_length: int
    pooling: str = "mean"

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise DataError(f"A multi-valued field has the pooling {self.pooling}; it can be {', '.join(POOLINGS)}.")


@dataclass(frozen=True)
class Schema:
    """Shape of a data set's rows: numeric features, and categorical fields with their cardinalities.

    The categorical fields are the columns of `ids`, followed by the multi-valued fields `lists`. `cardinalities[f]`
    bounds the ids of field f, which draws from the embedding table number `tables[f]`; fields with the same number
    share a table. Without `tables` each field has its own. `weighted`: the values of the lists have weights."""

    numeric: int
    cardinalities: tuple[int, ...]
    tables: tuple[int, ...] = ()
    lists: tuple[ListField, ...] = ()
    weighted: bool = False

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Schema:
        """Read a schema from the values that `stored_values` gives."""
        sizes = tuple(int(size) for size in stored["cardinalities"])
        lists = tuple(ListField(int(length), str(pooling)) for length, pooling in stored["lists"])
        return cls(int(stored["numeric"]), sizes, tuple(stored["tables"]), lists, bool(stored["weighted"]))

    def stored_values(self) -> dict[str, Any]:
        """Return the schema in plain containers, for a cache's meta.json and a checkpoint's manifest."""
        lists = [[each.max_length, each.pooling] for each in self.lists]
        sizes, tables = [int(size) for size in self.cardinalities], [int(table) for table in self.tables]
        return {
            "numeric": self.numeric, "cardinalities": sizes, "tables": tables, "lists": lists, "weighted": self.weighted
        }  # fmt: skip

    @property
    def fields(self) -> int:
        """Number of categorical fields, one vector each for a model."""
        return len(self.cardinalities)

    @property
    def columns(self) -> int:
        """Number of fields with one id a sample, which are the columns of `ids`."""
        return len(self.cardinalities) - len(self.lists)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays in a cache of data with this schema."""
        return (*ARRAYS, *(JAGGED if self.lists else ()), *((WEIGHTS,) if self.lists and self.weighted else ()))

    @cached_property
    def table_of(self) -> tuple[int, ...]:
        """Index of each field's embedding table."""
        return self.tables or tuple(range(len(self.cardinalities)))

    @cached_property
    def list_targets(self) -> tuple[int | None, ...]:
        """For each multi-valued field, the index of the field with one id a sample whose table it shares, or None.

        Such a list is a history of what that field tells of the present (the target item)."""
        of_columns = self.table_of[: self.columns]
        lists = self.table_of[self.columns :]
        return tuple(of_columns.index(table) if table in of_columns else None for table in lists)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Range of rows (low, high) of each table in the fused embedding table."""
        sizes = [0] * (max(self.table_of, default=-1) + 1)
        for table, size in zip(self.table_of, self.cardinalities, strict=True):
            sizes[table] = max(sizes[table], int(size))
        return list(pairwise(accumulate(sizes, initial=0)))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return the first row of each field in the fused embedding table, int64[fields]."""
        return np.array([self.spans[table][0] for table in self.table_of], np.int64)

    @property
    def rows(self) -> int:
        """Number of rows of the fused embedding table."""
        return self.spans[-1][1] if self.spans else 0


@dataclass(frozen=True)
class Jagged:
    """Lists of ids of the `lists` multi-valued fields, for a range of samples.

    List i, with i = sample * lists + field, is values[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]. values:
    int32[values]; offsets: int64[samples * lists + 1], which need not begin at 0; weights, if there are any:
    float32[values]."""

    lists: int
    offsets: NDArray[np.int64]
    values: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None

    @classmethod
    def joined(cls, fields: Sequence[Jagged]) -> Jagged:
        """Join Jagged objects of one list each, over the same samples, into one in which each sample has all lists."""
        lengths = np.stack([np.diff(field.offsets) for field in fields], axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
        weighted = any(field.weights is not None for field in fields)
        values = np.empty(offsets[-1], np.int32)
        weights = np.ones(offsets[-1], np.float32) if weighted else None
        for place, field in enumerate(fields):
            at = positions(offsets[place :: len(fields)][: len(lengths)], lengths[:, place])
            values[at] = field.values
            if weights is not None and field.weights is not None:
                weights[at] = field.weights
        return cls(len(fields), offsets, values, weights)

    def slice(self, lo: int, hi: int) -> Jagged:
        """Return the lists of samples lo..hi as views."""
        offsets = self.offsets[lo * self.lists : hi * self.lists + 1]
        low, high = int(offsets[0] - self.offsets[0]), int(offsets[-1] - self.offsets[0])
        weights = None if self.weights is None else self.weights[low:high]
        return Jagged(self.lists, offsets, self.values[low:high], weights)

    def take(self, index: NDArray[np.int64]) -> Jagged:
        """Copy the lists of the samples at the positions `index`."""
        first, last = self.offsets[index * self.lists], self.offsets[(index + 1) * self.lists]
        lists = (index[:, None] * self.lists + np.arange(self.lists)).reshape(-1)
        lengths = self.offsets[lists + 1] - self.offsets[lists]
        at = positions(first - self.offsets[0], last - first)
        weights = None if self.weights is None else self.weights[at]
        return Jagged(self.lists, np.concatenate([[0], np.cumsum(lengths)]), self.values[at], weights)

    def of_field(self, field: int) -> Jagged:
        """Copy the lists of one of the fields."""
        every = np.diff(self.offsets)
        lengths = every[field :: self.lists]
        chosen = np.repeat(np.arange(len(every)) % self.lists == field, every)
        weights = None if self.weights is None else self.weights[chosen]
        return Jagged(1, np.concatenate([[0], np.cumsum(lengths)]), self.values[chosen], weights)

    def checked_lengths(self, schema: Schema) -> NDArray[np.int64]:
        """Return the length of each list, int64[samples * lists].

        Raises DataError unless lengths and values are within the bounds of the schema."""
        lengths = np.diff(self.offsets)
        longest = np.tile([field.max_length for field in schema.lists], len(lengths) // self.lists)
        sizes = np.array(schema.cardinalities[schema.columns :], np.int64)
        hint = "the data cache is damaged, or its reader wrote it wrongly; prepare the data again"
        if (lengths < 0).any() or lengths.sum() != len(self.values):
            raise DataError(f"The offsets of the multi-valued fields do not match their values: {hint}.")
        if (lengths > longest).any():
            at = int(np.argmax(lengths > longest))
            most = f"{lengths[at]} values, more than {longest[at]}"
            raise DataError(f"A list of multi-valued field {at % self.lists} has {most}: {hint}.")
        bounds = np.repeat(np.tile(sizes, len(lengths) // self.lists), lengths)
        outside = (self.values < 0) | (self.values >= bounds)
        if outside.any():
            at = int(np.argmax(outside))
            raise DataError(f"A multi-valued field has the id {self.values[at]}, not one below {bounds[at]}: {hint}.")
        if self.weights is not None and not (np.isfinite(self.weights) & (self.weights >= 0)).all():
            raise DataError(f"The weights of the multi-valued fields are not all finite and at least 0: {hint}.")
        return lengths


def positions(first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions first[i], first[i] + 1, ... of `lengths[i]` elements for each i, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(int(lengths.sum()))


@dataclass(frozen=True)
class Batch:
    """Batch of samples: labels uint8[n], numeric float32[n, N], ids int32[n, columns], lists of multi-valued fields.

    A batch from `Split.slice` is read-only (it is the cache itself); `torch.tensor(batch.numeric)` copies it.
    """

    labels: NDArray[np.uint8]
    numeric: NDArray[np.float32]
    ids: NDArray[np.int32]
    jagged: Jagged | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], lists: int) -> Batch:
        """Make a batch from a cache's arrays, by name; `lists`: number of multi-valued fields."""
        jagged = Jagged(lists, arrays["offsets"], arrays["values"], arrays.get(WEIGHTS)) if lists else None
        return cls(arrays["labels"], arrays["numeric"], arrays["ids"], jagged)

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, lo: int, hi: int) -> Batch:
        """Return rows lo..hi as views."""
        jagged = None if self.jagged is None else self.jagged.slice(lo, hi)
        return Batch(self.labels[lo:hi], self.numeric[lo:hi], self.ids[lo:hi], jagged)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Copy the rows at the positions `index`, int64[n]."""
        jagged = None if self.jagged is None else self.jagged.take(index)
        return Batch(self.labels[index], self.numeric[index], self.ids[index], jagged)


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
        return self.whole.slice(lo, hi)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Copy the rows at the positions `index` (int64[n]) of the split. Raises IndexError for an invalid position."""
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= self.rows):
            raise IndexError(f"an index outside split {self.name}, which has {self.rows} rows")
        return self.whole.take(index)


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
        """Index of the field that the data source has named USER, for metrics by user; None without such a field."""
        names = self.meta["field_names"][: self.schema.columns]
        return names.index(USER) if USER in names else None

    @property
    def days_by_rows(self) -> bool:
        """Whether the days are cut by number of rows, as the source has no time."""
        return bool(self.meta["days_by_rows"])

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    @property
    def rows(self) -> int:
        """Number of samples in all splits."""
        return sum(split.rows for split in self.splits)

    @property
    def ids_of_sample(self) -> int:
        """Rarely exceeded number of ids in a sample: its columns, plus twice the mean number of its list values."""
        jagged = [split.whole.jagged for split in self.splits]
        values = sum(len(each.values) for each in jagged if each is not None)
        most = sum(field.max_length for field in self.schema.lists)
        return self.schema.columns + min(most, -(-2 * values // max(1, self.rows)))


def read_meta(path: Path) -> dict[str, Any]:
    """Read meta.json of a cache directory. Raises DataError if it is missing, unreadable or of an old format."""
    try:
        meta = json.loads((path / META).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a complete data cache ({error}); prepare it again.") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or KEYS - meta.keys():
        raise DataError(f"{path} was written in another cache format; prepare it again.")
    return meta


def map_arrays(path: Path, schema: Schema) -> Batch:
    """Memory-map a schema's arrays in a folder. Raises DataError."""
    try:
        found = {name: np.load(path / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in schema.arrays}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); prepare it again.") from None
    whole = Batch.of(found, len(schema.lists))
    if whole.jagged is not None and len(whole.jagged.offsets) != len(whole) * len(schema.lists) + 1:
        problem = "offsets.npy does not fit the rows of labels.npy"
        raise DataError(f"{path} is damaged ({problem}); prepare it again.")
    return whole


def open_dataset(path: Path, *, full: bool = False) -> Dataset:
    """Memory-map the data set in a cache directory made by `prepare`. Raises DataError if it is damaged.

    Sizes and sampled pages are checked; `full` reads every byte (about 1 GB/s).
    """
    path = Path(path)
    meta = read_meta(path)
    schema = Schema.from_stored(meta)
    if set(meta["files"]) != {f"{name}.npy" for name in schema.arrays}:
        raise DataError(f"{path / META} names files that are not those of a data cache; prepare it again.")
    check_files(path, meta["files"], full=full)
    whole = map_arrays(path, schema)
    if not all(0 <= s["lo"] <= s["hi"] <= len(whole) for s in meta["splits"]):
        raise DataError(f"{path / META} names rows that the arrays do not have; prepare the data again.")
    splits = tuple(Split(s["name"], whole.slice(s["lo"], s["hi"])) for s in meta["splits"])
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
    keys = [mix_int((key + i * GOLDEN) & MASK64) for i in range(ROUNDS)]
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

"""Cache of prepared data: built once from a data source, reused while source and options are the same.

A cache is built in a temporary folder beside its final place, under a file lock, and renamed when complete, so a folder
with its final name is complete. Before a reuse every byte is read once for its checksum (1 GB/s); of a cache above 4
GiB, only samples are read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from gbactl.atomic_files import sync_to_disk
from gbactl.configured_classes import own_code_told
from gbactl.data.cache_writer import DTYPES, WrittenArrays
from gbactl.data.dataset import (
    FORMAT,
    META,
    Progress,
    describe_file,
    fingerprint,
    map_arrays,
    open_dataset,
    read_meta,
)  # fmt: skip
from gbactl.data.readers import Source, make_source
from gbactl.data.remote_files import SourceFile
from gbactl.errors import DataError

NAMING = 1  # part of what a cache is named after, and so of its fingerprint, unless a reader has an `arrays_version`
LATER: dict[str, Any] = {"user_field": None, "lists": 0, "list_length": 10, "history_length": 0, "pooling": "mean"}
CHECKED_ROWS = 1 << 16
READ_ALL = 4 << 30  # bytes of a cache that is read whole before it is reused
PATHS = ("path", "patterns")  # of files that `sources` lists
KINDS = ("days", "splits", "parts")  # of data, as `Dataset` explains them
OWN_PATHS = ("schema", "train", "validation", "test")  # of readers of gbactl; what another one means by them is unknown


def cache_root(cfg_data: Mapping[str, Any]) -> Path:
    """Return the folder of all caches: data.cache, else $GBACTL_CACHE, else ~/.cache/gbactl/data."""
    chosen = cfg_data.get("cache") or os.environ.get("GBACTL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "gbactl" / "data"


def _foreign_code(source: Source) -> list[Path]:
    """Return the source file of a user's own reader class, on which the cache depends; [] for a reader of gbactl."""
    module = type(source).__module__
    file = getattr(sys.modules[module], "__file__", None)  # a notebook has none
    return [] if module.startswith("gbactl.") or file is None else [Path(file)]


def _key(cfg_data: Mapping[str, Any], source: Source) -> str:
    name = cfg_data.get("target") or cfg_data.get("name")
    code = _foreign_code(source)
    left_out = PATHS if code else (*PATHS, *OWN_PATHS)
    options = {k: v for k, v in dataclasses.asdict(source).items() if k not in left_out}  # type: ignore[call-overload]
    for late, default in LATER.items():  # as before these were options, so that the cache keeps its name
        if options.get(late) == default:
            options.pop(late, None)
    with own_code_told():
        sources = source.sources()
    if not (isinstance(sources, Sequence) and all(isinstance(path, SourceFile) for path in sources)):
        problem = f"{type(source).__module__}.{type(source).__qualname__}.sources returns {sources!r}"
        raise DataError(f"{problem}, not a list of paths; gbactl.data.text_files.find makes one.")
    try:
        files = [fingerprint(path) for path in (*sources, *code)]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}).") from None
    version = getattr(source, "arrays_version", NAMING)
    text = json.dumps([version, name, options, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        size = sum(file["size"] for file in read_meta(path)["files"].values())
        open_dataset(path, full=size <= READ_ALL)
    except (DataError, KeyError, TypeError, ValueError):
        return False
    return True


def _meta(name: str, key: str, built: WrittenArrays, folder: Path) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": name,
        "fingerprint": key,
        "kind": built.kind,
        **built.schema.stored_values(),
        "splits": [{"name": split, "lo": lo, "hi": hi} for split, lo, hi in built.splits],
        "numeric_names": built.numeric_names,
        "field_names": built.field_names,
        "bad_lines": built.bad_lines,
        "days_by_rows": built.days_by_rows,
        "best_auc": built.best_auc,
        "files": {f"{array}.npy": describe_file(folder / f"{array}.npy") for array in built.schema.arrays},
    }


def _check_arrays(folder: Path, built: WrittenArrays, reader: str) -> None:
    """Raise DataError if a reader has written arrays that its schema does not allow."""
    for name in built.schema.arrays:
        if not (path := folder / f"{name}.npy").exists():
            raise DataError(f"{reader} writes no {name}.npy; gbactl.data.cache_writer.write_all writes all arrays.")
        array, axes = np.load(path, mmap_mode="r"), 2 if name in ("numeric", "ids") else 1
        if (array.dtype, array.ndim) != (DTYPES[name], axes):
            written = f"{name}.npy of {array.dtype} and shape {list(array.shape)}"
            raise DataError(f"{reader} writes {written}, not {DTYPES[name]} with {axes} axes.")
    schema, whole, columns = built.schema, map_arrays(folder, built.schema), built.schema.columns
    shape = whole.numeric.shape[1], whole.ids.shape[1], len(built.field_names)
    if shape != (wanted := (schema.numeric, columns, schema.fields)):
        counts = "%d numeric features, %d columns of ids and %d names of fields"
        raise DataError(f"{reader} writes {counts % shape}, but its schema has {counts % wanted}.")
    labels, numeric, ids = len(whole.labels), len(whole.numeric), len(whole.ids)
    if not labels == numeric == ids:
        raise DataError(f"{reader} writes {labels} labels, {numeric} rows of numeric features and {ids} rows of ids.")
    _check_tables_and_splits(built, labels, reader)
    for low in range(0, len(whole), CHECKED_ROWS):
        chunk = whole.slice(low, min(low + CHECKED_ROWS, len(whole)))
        if chunk.jagged is not None:
            chunk.jagged.checked_lengths(schema)
        bad = {
            "a label other than 0 and 1": chunk.labels > 1,
            "a numeric feature that is NaN or infinite": ~np.isfinite(chunk.numeric).all(axis=1),
        }
        for name, ids, size in zip(built.field_names, chunk.ids.T, schema.cardinalities, strict=False):
            bad[f"an id of the field {name} that is not from 0 to {size - 1}"] = (ids < 0) | (ids >= size)
        for what, rows in bad.items():
            if rows.any():
                raise DataError(f"{reader} writes {what}, in row {low + int(np.argmax(rows))}.")


def _check_tables_and_splits(built: WrittenArrays, rows: int, reader: str) -> None:
    """Raise DataError unless each field has a table, and the splits fit their kind and lie within the `rows`."""
    tables, fields, splits = built.schema.table_of, built.schema.fields, built.splits
    if len(tables) != fields or set(tables) != set(range(len(set(tables)))):
        problem = "each field needs the number of its table, from 0 on without gaps"
        raise DataError(f"{reader} gives the tables {tables} to its {fields} fields; {problem}.")
    if built.kind not in KINDS:
        raise DataError(f"{reader} writes data of kind {built.kind!r}, not one of {', '.join(KINDS)}.")
    if built.kind == "splits" and len(splits) != 3:
        problem = "data of kind splits have three: train, validation and test"
        raise DataError(f"{reader} writes {len(splits)} splits; {problem}.")
    for split, first, end in splits:
        if not 0 <= first <= end <= rows:
            raise DataError(f"{reader} writes {rows} rows, and says that {split} has those from {first} to {end}.")
        if first == end:
            raise DataError(f"{reader} writes no rows of {split}; leave it out.")


def _build(name: str, key: str, source: Source, place: Path, progress: Progress) -> None:
    folder = place.with_name(place.name + ".partial")
    for stale in (folder, place):
        shutil.rmtree(stale, ignore_errors=True)
    folder.mkdir()
    try:
        with own_code_told():
            built = source.build(folder, progress)
        reader = f"{type(source).__module__}.{type(source).__qualname__}"
        if not isinstance(built, WrittenArrays):
            raise DataError(f"{reader}.build returns {built!r}, not gbactl.data.cache_writer.WrittenArrays.")
        try:
            if _foreign_code(source) or built.schema.lists:
                _check_arrays(folder, built, reader)
        except (AttributeError, TypeError, ValueError) as error:
            problem = f"{reader}.build returns WrittenArrays with a value of a wrong type"
            raise DataError(f"{problem} ({type(error).__name__}: {error}).") from error
        progress("checksums", 1.0)
        (folder / META).write_text(json.dumps(_meta(name, key, built, folder), indent=1), "utf-8")
        for path in (*folder.iterdir(), folder):
            sync_to_disk(path)
        folder.rename(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def data_fingerprint(cfg_data: Mapping[str, Any]) -> str:
    """Return the fingerprint of the configured data and their cache: a hash of the options and the sources' content.

    Raises ConfigError and DataError."""
    return _key(cfg_data, make_source(cfg_data))


def _locked(path: Path, progress: Progress) -> AbstractContextManager[Any]:
    """Wait for a file lock, and return a context that releases it at its end."""
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares the same data", 0.0)
        return lock.acquire()


def prepare(cfg_data: Mapping[str, Any], progress: Progress | None = None) -> Path:
    """Build the cache of the configured data unless it exists and is intact; return its directory.

    `progress` gets a stage in words and a fraction. Raises ConfigError and DataError, and then leaves no cache.
    """
    tell = progress or (lambda stage, fraction: None)
    source = make_source(cfg_data)
    name, root = str(cfg_data["name"]), cache_root(cfg_data)
    key = _key(cfg_data, source)
    place = root / f"{name}-{key[:20]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{place.name}.lock", tell):
            if not _is_whole(place):
                _build(name, key, source, place, tell)
    except OSError as error:
        raise DataError(
            f"The data cache {root} cannot be written ({error.strerror or error}); "
            "set data.cache or GBACTL_CACHE to another folder."
        ) from None
    return place

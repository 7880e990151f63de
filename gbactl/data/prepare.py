"""Build a data cache, or reuse it: keyed by the contents of the source files and every option.

A cache is built in a temporary folder beside its final place, under a file lock, and renamed when complete, so a folder
with its final name is complete. Reuse reads every byte once for its checksum (1 GB/s) up to 4 GiB, samples beyond.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gbactl.data.dataset import ARRAYS, FORMAT, META, open_dataset, read_meta
from gbactl.data.files import Progress
from gbactl.data.integrity import describe_file, fingerprint
from gbactl.data.sources import Source, make_source
from gbactl.data.writer import WrittenArrays, sync_folder
from gbactl.errors import DataError

READ_ALL = 4 << 30
PATHS = ("path", "patterns", "train", "validation", "test")


def cache_root(cfg_data: Mapping[str, Any]) -> Path:
    """Folder of all caches: data.cache, else $GBACTL_CACHE, else ~/.cache/gbactl/data."""
    chosen = cfg_data.get("cache") or os.environ.get("GBACTL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "gbactl" / "data"


def _key(name: str, source: Source) -> str:
    options = {k: v for k, v in dataclasses.asdict(source).items() if k not in PATHS}  # type: ignore[call-overload]
    try:
        files = [fingerprint(path) for path in source.sources()]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}).") from None
    text = json.dumps([FORMAT, name, options, files], sort_keys=True)
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
        "numeric": built.schema.numeric,
        "cardinalities": list(built.schema.cardinalities),
        "shared_ids": built.schema.shared_ids,
        "splits": [{"name": split, "lo": lo, "hi": hi} for split, lo, hi in built.splits],
        "numeric_names": built.numeric_names,
        "field_names": built.field_names,
        "bad_lines": built.bad_lines,
        "best_auc": built.best_auc,
        "files": {f"{array}.npy": describe_file(folder / f"{array}.npy") for array in ARRAYS},
    }


def _build(name: str, key: str, source: Source, place: Path, progress: Progress) -> None:
    folder = place.with_name(place.name + ".partial")
    for stale in (folder, place):
        shutil.rmtree(stale, ignore_errors=True)
    folder.mkdir()
    try:
        built = source.build(folder, progress)
        progress("checksums", 1.0)
        (folder / META).write_text(json.dumps(_meta(name, key, built, folder), indent=1), "utf-8")
        sync_folder(folder)
        folder.rename(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares the same data", 0.0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def prepare(cfg_data: Mapping[str, Any], progress: Progress | None = None) -> Path:
    """Return the cache directory of the data that `cfg_data` describes; build it unless it exists and is intact.

    `progress` gets a stage in words and a fraction. Raises ConfigError and DataError, and then leaves no cache.
    """
    tell = progress or (lambda stage, fraction: None)
    source = make_source(cfg_data)
    name, root = str(cfg_data["name"]), cache_root(cfg_data)
    key = _key(name, source)
    place = root / f"{name}-{key[:20]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f"{place.name}.lock", tell):
            if not _is_whole(place):
                _build(name, key, source, place, tell)
    except OSError as error:
        raise DataError(
            f"The data cache {root} cannot be written ({error.strerror or error}); "
            "set data.cache or GBACTL_CACHE to another folder."
        ) from None
    return place

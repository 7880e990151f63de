"""Prepared data on an agent's host: found by fingerprint, or received from the launcher's cache in pieces.

Received data get their final name once every byte is there and the checksums match.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

from gbactl.data.dataset import ARRAYS, META, open_dataset
from gbactl.data.prepare import cache_root
from gbactl.errors import DataError, WireError

FILES = (*(f"{name}.npy" for name in ARRAYS), META)


class HostData:
    """Prepared data of one host."""

    def __init__(self) -> None:
        self.place: Path | None = None
        self._partial: Path | None = None
        self._wanted: dict[str, Any] = {}

    def find(self, path: str, fingerprint: str, cache: str | None) -> bool:
        """Find the data where the launcher has them (a shared file system), or in this host's cache.

        Returns whether they were found."""
        self._wanted = {"path": path, "fingerprint": fingerprint, "cache": cache}
        own = cache_root({"cache": cache}) / Path(path).name
        for place in (Path(path), own):
            with contextlib.suppress(DataError, KeyError, TypeError, ValueError):
                if open_dataset(place).fingerprint == fingerprint:
                    self.place = place
                    return True
        return False

    def take(self, name: str, data: bytes, first: bool) -> None:
        """Write a received piece of a data file. Raises WireError for an unknown file name."""
        if name not in FILES:
            raise WireError(f"A host is given a file {name[:40]!r}, which no data cache has.")
        if self._partial is None:
            self._partial = self._begin()
        with (self._partial / name).open("wb" if first else "ab") as file:
            file.write(data)

    def _begin(self) -> Path:
        root = cache_root({"cache": self._wanted["cache"]})
        root.mkdir(parents=True, exist_ok=True)
        partial = root / f"{Path(self._wanted['path']).name}.partial-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        return partial

    def whole(self) -> None:
        """Verify and publish the received data. Raises DataError where they are not what was announced."""
        partial, self._partial = self._partial, None
        if partial is None:
            raise DataError("nothing of the data has arrived")
        place = partial.with_name(Path(self._wanted["path"]).name)
        try:
            found = open_dataset(partial, full=True)
            if found.fingerprint != self._wanted["fingerprint"]:
                raise DataError("other data arrived than were announced")
            del found
            with FileLock(place.with_name(f"{place.name}.lock")):
                shutil.rmtree(place, ignore_errors=True)
                partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.place = place

    def drop(self) -> None:
        """Remove incompletely received data."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)

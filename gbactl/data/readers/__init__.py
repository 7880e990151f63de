"""Data sources: their interface, and the readers of click-log formats, one module each.

A source is a frozen dataclass of its options with the methods of `Source`, named by `data.target`. A reader's module is
imported when it is asked for: most readers parse text with polars, whose import takes a quarter of a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gbactl.checked_dataclasses import build
from gbactl.configured_classes import found_class
from gbactl.data.cache_writer import WrittenArrays
from gbactl.data.dataset import Progress
from gbactl.data.remote_files import SourceFile

COMMON = ("name", "target", "cache")  # keys that all sources have


class Source(Protocol):
    """Data source: options that find their source files and write the cache's arrays.

    A reader that makes other arrays than before of the same files and options raises its `arrays_version` (an int
    ClassVar; 1 where there is none), so that no cache of an earlier version is reused."""

    def sources(self) -> list[SourceFile]:
        """Find the source files. Raises ConfigError or DataError."""

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the arrays (labels.npy, numeric.npy and ids.npy at least) into the folder. Raises DataError."""


def options_class(name: str, target: str | None = None) -> type[Any]:
    """Return a data source's options class: `target` if given, else the class of source `name`. Raises ConfigError."""

    def fits(found: Any) -> bool:
        return dataclasses.is_dataclass(found) and hasattr(found, "sources") and hasattr(found, "build")

    return found_class("data", name, target, "a reader, a dataclass with the methods sources and build", fits)


def make_source(cfg_data: Mapping[str, Any]) -> Source:
    """Build the data source that the configuration group `data` selects. Raises ConfigError for an unknown one."""
    name = str(cfg_data.get("name"))
    own = {key: value for key, value in cfg_data.items() if key not in COMMON}
    source: Source = build(options_class(name, cfg_data.get("target")), own, "data.", f"data={name}")
    return source

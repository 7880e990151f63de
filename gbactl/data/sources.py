"""The data sources by name. A new one is a module with an options class like these, and a line here.

A module is imported when its source is asked for: most read text with polars, which takes a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from gbactl.data.files import Progress
from gbactl.data.options import fill
from gbactl.data.writer import Built
from gbactl.errors import ConfigError


class Source(Protocol):
    """Options of a source, which knows its files and writes the arrays."""

    def sources(self) -> list[Path]:
        """Source files. Raises ConfigError, DataError."""

    def build(self, folder: Path, progress: Progress) -> Built:
        """Write labels.npy, numeric.npy and ids.npy into the folder. Raises DataError."""


SOURCES = {
    "synthetic": "gbactl.data.synthetic:Synthetic",
    "criteo": "gbactl.data.readers.criteo:Criteo",
    "avazu": "gbactl.data.readers.avazu:Avazu",
    "libfm": "gbactl.data.readers.libfm:Libfm",
    "movielens": "gbactl.data.readers.movielens:Movielens",
}


def options_class(name: str) -> type[Any]:
    """The options dataclass of a source in SOURCES."""
    found: type[Any] = resolve_name(SOURCES[name])
    return found


def make_source(cfg_data: Mapping[str, Any]) -> Source:
    """The source that `cfg_data` (the `data` group) describes. Raises ConfigError that lists the names."""
    name = cfg_data.get("name")
    if name not in SOURCES:
        raise ConfigError(f"data.name={name} is not known; it is one of: {', '.join(SOURCES)}.")
    source: Source = fill(options_class(name), cfg_data)
    return source

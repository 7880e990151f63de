"""Registry of the data sources and their options. To add one, write a module with an options class and list it here.

Options are a frozen dataclass beside the reader, filled from the `data` group. Every mistake is a ConfigError that
names the key, what was expected and what there is. A module is imported when its source is asked for: most read text
with polars, which takes a quarter of a second to import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, TypeVar, get_type_hints

from gbactl.config_types import default_of, expect
from gbactl.data.files import Progress
from gbactl.data.writer import WrittenArrays
from gbactl.errors import ConfigError

T = TypeVar("T")
COMMON = ("name", "cache")


class Source(Protocol):
    """Data source: options that know their files and write the cache arrays."""

    def sources(self) -> list[Path]:
        """Find the source files. Raises ConfigError, DataError."""

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write labels.npy, numeric.npy and ids.npy into the folder. Raises DataError."""


SOURCES = {
    "synthetic": "gbactl.data.synthetic:Synthetic",
    "criteo": "gbactl.data.readers.criteo:Criteo",
    "avazu": "gbactl.data.readers.avazu:Avazu",
    "libfm": "gbactl.data.readers.libfm:Libfm",
    "movielens": "gbactl.data.readers.movielens:Movielens",
}


def options_class(name: str) -> type[Any]:
    """Options dataclass of a source in SOURCES."""
    found: type[Any] = resolve_name(SOURCES[name])
    return found


def make_source(cfg_data: Mapping[str, Any]) -> Source:
    """Make the source that `cfg_data` (the `data` group) describes. Raises ConfigError that lists the known names."""
    name = cfg_data.get("name")
    if name not in SOURCES:
        raise ConfigError(f"data.name={name} is not known; it is one of: {', '.join(SOURCES)}.")
    source: Source = fill(options_class(name), cfg_data)
    return source


def fill(cls: type[T], values: Mapping[str, Any]) -> T:
    """Fill an options dataclass from the `data` group. Raises ConfigError on bad keys and types."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given = {key: value for key, value in values.items() if key not in COMMON}
    for key, value in given.items():
        if key not in fields:
            raise ConfigError(f"data={values.get('name')} has no option data.{key}; it has: {', '.join(fields)}.")
        expect(f"data.{key}", value, hints[key], default_of(fields[key]))
    return cls(**given)


def require(ok: bool, message: str) -> None:
    """Raise ConfigError(message) unless ok."""
    if not ok:
        raise ConfigError(message)

"""The data sources by name. A new one is a module with an options class like these, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gbactl.data.files import Progress
from gbactl.data.options import fill
from gbactl.data.readers.avazu import Avazu
from gbactl.data.readers.criteo import Criteo
from gbactl.data.readers.libfm import Libfm
from gbactl.data.readers.movielens import Movielens
from gbactl.data.synthetic import Synthetic
from gbactl.data.writer import Built
from gbactl.errors import ConfigError


class Source(Protocol):
    """Options of a source, which knows its files and writes the arrays."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""

    def sources(self) -> list[Path]:
        """Source files. Raises ConfigError, DataError."""

    def build(self, folder: Path, progress: Progress) -> Built:
        """Write labels.npy, numeric.npy and ids.npy into the folder. Raises DataError."""


SOURCES: dict[str, type[Any]] = {
    "synthetic": Synthetic,
    "criteo": Criteo,
    "avazu": Avazu,
    "libfm": Libfm,
    "movielens": Movielens,
}


def make_source(cfg_data: Mapping[str, Any]) -> Source:
    """The source that `cfg_data` (the `data` group) describes. Raises ConfigError that lists the names."""
    name = cfg_data.get("name")
    if name not in SOURCES:
        raise ConfigError(f"data.name={name} is not known; it is one of: {', '.join(SOURCES)}.")
    source: Source = fill(SOURCES[name], cfg_data)
    source.check()
    return source

"""Where a run's processes are, as an object that is asked what can be done there; nothing asks for the name.

A place is the constant PLACE of gbactl/engine/NAME.py, beside conf/cluster/NAME.yaml. The module is loaded by its name:
the configuration stands below the engines, and to add one no file here is touched. Such a module imports what starts
processes when it starts them (see engine/base.py), so that every process may ask.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gbactl.config.build import build, require
from gbactl.config.groups import ClusterConfig
from gbactl.errors import ConfigError
from gbactl.paths import conf_dir

ENGINES = "gbactl.engine"


@dataclass(frozen=True)
class PlaceOptions:
    """Keys of conf/cluster/NAME.yaml beside those that all places have. A place with some subclasses this."""


class Place:
    """Where the processes of a run are; unless a subclass says otherwise, real ones on this host."""

    #: its own keys
    Options: ClassVar[type[PlaceOptions]] = PlaceOptions

    #: whether its processes are an operating system's; else they are modelled, in this one, and so is their time
    real: ClassVar[bool] = True
    #: whether all of them share this host's memory
    one_host: ClassVar[bool] = True

    @property
    def here(self) -> bool:
        """Whether its processes are some of this host, whose cores they share."""
        return self.real and self.one_host

    @property
    def clock(self) -> str:
        """What measures a run's seconds."""
        return "wall" if self.real else "virtual"

    def workers(self, cluster: Mapping[str, Any]) -> int | None:
        """How many there are where the keys of `cluster` do not say; None where they have to."""
        return None

    def options(self, cluster: ClusterConfig) -> PlaceOptions:
        """Its own keys. Raises ConfigError for one that it does not have or a bad value."""
        common, own = ([f.name for f in dataclasses.fields(kind)] for kind in (ClusterConfig, self.Options))
        strange = sorted(set(cluster.options) - set(own))
        keys = [*(key for key in common if key != "options"), *own]
        require(not strange, f"cluster={cluster.name} has no key {', '.join(strange)}; keys are: {', '.join(keys)}.")
        made: PlaceOptions = build(self.Options, cluster.options, "cluster.")
        return made

    def check(self, cluster: ClusterConfig, workers: int) -> None:
        """Raise ConfigError, with the key to type, on keys that cannot work with so many workers."""

    def threads(self, cluster: ClusterConfig, computing: int) -> int:
        """OpenMP threads of one worker, where so many threads compute at a time."""
        return cluster.threads or max(1, (os.cpu_count() or 1) // computing)


@functools.cache
def place_of(name: str) -> Place:
    """The place of a cluster's name. Raises ConfigError that lists the places."""
    module = f"{ENGINES}.{name}"
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        found = getattr(importlib.import_module(module), "PLACE", None)
        if isinstance(found, Place):
            return found
    known = sorted(path.stem for path in (conf_dir() / "cluster").glob("*.yaml"))
    raise ConfigError(f"cluster={name} is not known; type cluster= one of: {', '.join(known)}.")

"""Interface of an engine, which runs a run's processes: on this host, on several hosts, or simulated.

An engine says what is possible in it, so that no code tests its name. It is the constant ENGINE of
gbactl/engine/NAME.py, beside conf/cluster/NAME.yaml. The module is loaded by its name, as the configuration is a layer
below the engines; a new engine changes no file here. Such a module imports its launching code only when it starts
processes (see engine/local_processes.py), so that every process can load it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gbactl.checked_dataclasses import build
from gbactl.conf_catalogue import conf_dir
from gbactl.config.groups import ClusterConfig, common_keys
from gbactl.errors import ConfigError
from gbactl.host_limits import usable_cores

ENGINES = "gbactl.engine"
AUTO = "auto"  # cluster=auto: the engine of the surroundings


@dataclass(frozen=True)
class EngineOptions:
    """Options of one engine, in addition to the keys of `cluster` that all engines have.

    An engine with keys of its own in conf/cluster/NAME.yaml subclasses this."""


class EngineInterface:
    """Engine of a run: real processes on this host, unless a subclass overrides that."""

    #: dataclass of the options of this engine
    Options: ClassVar[type[EngineOptions]] = EngineOptions

    #: whether its processes are real; else they and their time are simulated in this process
    real: ClassVar[bool] = True
    #: whether all processes share this host's memory
    one_host: ClassVar[bool] = True
    #: keys of `cluster` that a resumed run takes anew, as typed or by default, not from the run that it goes on with
    not_resumed: ClassVar[tuple[str, ...]] = ()
    #: environment variables that are all set where its scheduler runs a command, and what that place is called
    signs: ClassVar[tuple[str, ...]] = ()
    surroundings: ClassVar[str] = "no scheduler"

    @property
    def here(self) -> bool:
        """Whether the run's processes are on this host and share its cores."""
        return self.real and self.one_host

    @property
    def clock(self) -> str:
        """Clock by which a run's seconds are counted: wall or virtual."""
        return "wall" if self.real else "virtual"

    def defaults(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return values for the keys that `cluster` leaves unset, as far as this engine can determine them."""
        return {}

    def options(self, cluster: ClusterConfig) -> EngineOptions:
        """Build the options of this engine. Raises ConfigError for an unknown key or an invalid value."""
        owner = f"cluster={cluster.name}"
        return build(self.Options, cluster.options, "cluster.", owner, common_keys(ClusterConfig))

    def check(self, cluster: ClusterConfig, workers: int) -> None:
        """Raise ConfigError, with the key to type, if the options do not fit the number of workers."""

    def threads(self, cluster: ClusterConfig, computing: int) -> int:
        """Return the number of OpenMP threads of a worker if `computing` compute threads share the host."""
        return cluster.threads or max(1, usable_cores() // computing)

    def train(self, launch: Any) -> None:
        """Run the training to its end; `launch`: its LaunchContext (engine/local_processes.py). Raises GbactlError."""
        raise NotImplementedError


@functools.cache
def engine_named(name: str) -> EngineInterface:
    """Return the engine that `cluster=NAME` selects. Raises ConfigError with the valid names."""
    if name == AUTO:
        return engine_named(detected_engine(os.environ))
    module = f"{ENGINES}.{name}"
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        found = getattr(importlib.import_module(module), "ENGINE", None)
        if isinstance(found, EngineInterface):
            return found
    raise ConfigError(f"cluster={name} is not known; type cluster= one of: {', '.join(_options())}.")


def _options() -> list[str]:
    return sorted(path.stem for path in (conf_dir() / "cluster").glob("*.yaml"))


def detected_engine(environment: Mapping[str, str]) -> str:
    """Return the engine whose scheduler has set these environment variables, such as "slurm"; else "local"."""
    for name in _options():
        signs = () if name == AUTO else engine_named(name).signs
        if signs and all(environment.get(sign) for sign in signs):
            return name
    return ClusterConfig.name

"""Implementation of `gbactl train resume=RUN|PATH`: find the checkpoint, change its configuration, make the run dir.

Finding the checkpoint reads it completely, to verify it.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbactl.atomic_files import CONFIG, read_result
from gbactl.checkpoint.folder import (
    CHECKPOINTS,
    CUT,
    CheckpointChain,
    CheckpointFolder,
    identity,
    number_of,
    shared_values,
)
from gbactl.config import RunConfig, to_dict
from gbactl.config.engine_interface import engine_named
from gbactl.config.groups import ClusterConfig
from gbactl.configured_classes import in_files
from gbactl.coordinator.state import JobPosition, config_at
from gbactl.data.dataset import Dataset
from gbactl.errors import CheckpointError, EventLogError, UsageError
from gbactl.launch import run_dir as run_dirs
from gbactl.tracking.metrics_and_tags import config_hash

KEY = "resume"
# keys with commands that run here or on the hosts
COMMANDS = ("cluster.ssh", "cluster.exec", "cluster.python", "cluster.forward")
TARGET = "target"  # key of a class that is imported here, in groups and in the modes of a schedule
KEYS = re.compile(r"\$\{([\w.]+)\}")  # keys of the configuration within a value
EXPECTED = ("interval", "full_overhead", "partial_overhead", "expected_pls")  # logged fields of the estimate


def run_of(chain: CheckpointChain) -> Path:
    """Return the run directory that a checkpoint belongs to."""
    return chain.folder.parent.resolve()


@functools.lru_cache(maxsize=4)
def find(name: str) -> CheckpointChain:
    """Return the checkpoint to resume from: a run's newest valid one, or the one at a path.

    `name`: a checkpoint's path, a run's path, or the start of a run's name or MLflow id. Invalid checkpoints are
    reported on standard error. Raises CheckpointError where none is valid, UsageError for an unknown run."""
    path = Path(name)
    if CUT.fullmatch(path.name) and path.is_dir():
        return CheckpointFolder(path.parent.resolve()).verified(path.name)
    return own_checkpoints(name).newest(lambda why: print(f"gbactl: {why}", file=sys.stderr))


def own_checkpoints(name: str) -> CheckpointFolder:
    """Open a run's checkpoint folder so that checkpoints of other runs in it are ignored. Raises UsageError."""
    path = folder_of(name)
    return CheckpointFolder(path, identity_of(path.parent))


def identity_of(run: Path) -> str:
    """Read, from a run directory's event logs, the identity that the run's checkpoints carry.

    "" where no log has it."""
    from gbactl.coordinator import event_log

    for path in sorted(run.glob("events*.log")):
        try:
            header = next(iter(event_log.read(path)))
            if isinstance(header, event_log.InfoRecord) and header.kind == event_log.HEADER:
                return identity(header.fields["config"], header.fields["data"])
        except (EventLogError, KeyError, TypeError, StopIteration):  # a session without a first step
            continue
    return ""


def folder_of(name: str) -> Path:
    """Return the checkpoint folder of a run, given by its name or path. Raises UsageError."""
    path = Path(name)
    if path.name == CHECKPOINTS and path.is_dir():
        return path.resolve()
    return run_dirs.find(name, holding=CONFIG).resolve() / CHECKPOINTS


def named(arguments: Iterable[str]) -> str | None:
    """Return the value of the override `resume=` among the arguments; None without one.

    In a sweep, with ${KEY} in it, it is that of the sweep's first run."""
    typed = dict(text.split("=", 1) for text in arguments if "=" in text)
    value = typed.get(KEY, "").strip("'\"")
    value = KEYS.sub(lambda key: typed.get(key[1], key[0]).partition(",")[0], value)
    return None if value in ("", "null") else value


def group_choices(arguments: Sequence[str], conf: Path) -> list[str]:
    """Return overrides with the resumed run's option of each configuration group that the user has not typed.

    The keys of these groups can then be typed. Raises UsageError for overrides that cannot stand beside resume=."""
    name = named(arguments)
    if name is None:
        return []
    typed = set(map(overridden_key, arguments))
    files = {(path.parent.name, path.stem) for path in conf.glob("*/*.yaml")}
    if "experiment" in typed:
        raise UsageError("resume= goes on with that run's own configuration; leave experiment= out.")
    config = find(name).last.config
    stored = {group: values.get("name") for group, values in config.items() if isinstance(values, dict)}
    return [
        f"{group}={option}" for group, option in stored.items()
        if group not in typed and (group, str(option)) in files
    ]  # fmt: skip


def resumed(values: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """Build the configuration of the resumed run at its checkpoint, with the `typed` changes.

    `values`: the composed configuration, which names the run under resume."""
    chain = find(str(values[KEY]))
    stored = config_at(chain)
    for text in typed:
        key = overridden_key(text).replace(".options.", ".")
        if text.startswith("~"):
            raise UsageError(f"resume= takes no {text}; type KEY=VALUE.")
        _take_over(stored, values, key.split("."))
        if key == "switch.schedule":
            _take_over(stored, values, ("switch", "modes"))
    for key in engine_named(str(stored["cluster"]["name"])).not_resumed:
        _take_over(stored, values, ("cluster", key))
    _refuse_commands(stored, values)
    stored[KEY] = str(chain.folder.resolve() / chain.last.name)
    return stored


def overridden_key(override: str) -> str:
    """Return the key of an override, left of "="."""
    return override.lstrip("+").partition("=")[0]


def _refuse_commands(stored: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise UsageError for a stored shell command or foreign class that the user has neither configured nor typed.

    Its author's code would run here. `values`: the configuration from this machine's files and the typed overrides."""
    for key in COMMANDS:
        group, name = key.split(".")
        given, own = stored.get(group, {}), values.get(group, {})
        if name in given and given[name] != own.get(name, getattr(ClusterConfig(), name, None)):
            raise UsageError(
                f"The run that resume= names has {key}={given[name]!r}, which says what is run, or told to hosts; if "
                f"you trust it, type {key}=VALUE beside resume=."
            )
    if unknown := set(_targets(stored)) - set(_targets(values)) - in_files():
        raise UsageError(
            f"The run that resume= names has target={min(unknown)}, which is not gbactl's; if you trust it, type its "
            "model.target=, mode.target= or data.target=, or the hydra.searchpath= of its file, beside resume=."
        )


def _targets(values: Any) -> Iterator[str]:
    """Yield every `target` (import path of a user's class) in a configuration, at any depth."""
    for key, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        if isinstance(value, Mapping | list):
            yield from _targets(value)
        elif key == TARGET and value is not None:
            yield str(value)


def _take_over(stored: dict[str, Any], values: Mapping[str, Any], path: Sequence[str]) -> None:
    """Copy the key or group at `path` from the composed configuration into the stored one."""
    for key in path[:-1]:
        if not isinstance(values.get(key), Mapping):
            return
        stored, values = stored.setdefault(key, {}), values[key]
    if path[-1] in values:
        stored[path[-1]] = copy.deepcopy(values[path[-1]])


def check(chain: CheckpointChain, config: Mapping[str, Any], data: str, rounds: int) -> None:
    """Raise CheckpointError unless a run (configuration, data, number of rounds) can resume from checkpoint `chain`.

    `data`: the data's fingerprint."""
    name, last = chain.folder / chain.last.name, chain.last
    now, then = shared_values(config, data), shared_values(last.config, data)
    changed = [key for key in now if now[key] != then[key]]
    if identity(config, data) != last.identity:
        what = " and ".join(changed or ["set of data"])
        raise CheckpointError(f"{name} was saved with another {what}; type the same as then.")
    position = JobPosition.read(last.position)
    if position.round >= rounds or position.stopped_early(config["train"]["patience"]):
        raise CheckpointError(f"{name} is the end of a finished run: nothing is left to train.")


def _unchanged(cfg: RunConfig, chain: CheckpointChain) -> bool:
    """Whether a configuration is that of a checkpoint, but for what a later start may have otherwise."""

    def kept(config: dict[str, Any]) -> str:
        cluster = {key: value for key, value in config["cluster"].items() if key not in cfg.engine.not_resumed}
        return config_hash({**config, "cluster": cluster, KEY: None})

    return kept(to_dict(cfg)) == kept(config_at(chain))


@dataclass
class StartingPoint:
    """Checkpoint that a run starts from, if any, and the run's directory.

    `chain`: the checkpoint, None for a new run. `same_run`: it continues in its own directory. `tracked`: the MLflow
    run that it continues, "" if unknown (yet). `earlier`: the result of its last start, if it continues in its own
    directory and no start has changed anything: then it is compared as if it had not stopped, with its config.yaml."""

    chain: CheckpointChain | None = None
    same_run: bool = False
    tracked: str = ""
    earlier: dict[str, Any] | None = None

    @classmethod
    def of(cls, cfg: RunConfig, dataset: Dataset, rounds: int) -> StartingPoint:
        """Find the starting point of a configured run. Raises CheckpointError if it cannot resume."""
        if cfg.resume is None:
            return cls()
        chain = find(cfg.resume)
        check(chain, to_dict(cfg), dataset.fingerprint, rounds)
        own = run_of(chain)
        if cfg.run_dir is not None and Path(cfg.run_dir).resolve() != own:
            return cls(chain)
        earlier = read_result(own)
        same = "origin" in earlier and not any(own.glob(run_dirs.CHANGED)) and _unchanged(cfg, chain)
        return cls(chain, True, str(earlier.get("run_id") or ""), earlier if same else None)

    def run_dir(self, cfg: RunConfig) -> Path:
        """Return the run's directory: the resumed run's, or a new one."""
        return run_of(self.chain) if self.chain is not None and self.same_run else run_dirs.create(cfg)

    def modes(self, cfg: RunConfig) -> str:
        """Return the names of the modes that the run has used, including the one that it starts in now."""
        mode = cfg.mode.name
        return mode if self.chain is None else JobPosition.read(self.chain.last.position).modes_with(mode)

    @property
    def origin(self) -> str:
        """Name of the checkpoint, equal for all seeds: hash of its configuration without seed and data, and its step.

        The data are those of the run, which its own configuration names; another seed may have others."""
        if self.chain is None:
            return ""
        if self.earlier is not None:
            return self.earlier["origin"] or ""
        config = {key: value for key, value in self.chain.last.config.items() if key not in ("seed", "data")}
        return f"{config_hash(config)}@step{JobPosition.read(self.chain.last.position).step}"

    def begin(self, path: Path, cfg: RunConfig) -> None:
        """Prepare the directory of a run that continues in it: rename earlier files, remove newer checkpoints."""
        if self.chain is None or not self.same_run:
            return
        find.cache_clear()  # the run's newest checkpoint changes from now on
        run_dirs.reopen(path, cfg, unchanged=self.earlier is not None)
        folder = CheckpointFolder(self.chain.folder)
        folder.sweep()
        for name in folder.names():
            if number_of(name) > self.chain.last.number:
                folder.remove(name)


def checkpoint_sentence(fields: dict[str, Any]) -> str:
    """Describe an event about checkpoints in one line of text."""
    if fields["state"] == "failed":
        why = f"The checkpoint of step {fields['step']} failed: {fields['why'].rstrip('.')}"
        return f"{why}; training goes on, the next one tries again."
    return str(fields["sentence"])

"""Parts of a run's configuration that can change a result, and the keys that differ between runs. Pure.

A key that an older run has not logged takes its current default.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gbactl.config import RunConfig, flatten, to_dict
from gbactl.config.engine_interface import engine_named
from gbactl.errors import ConfigError
from gbactl.policies.policy import names, policy_class
from gbactl.switching.switch_texts import each_mode, from_listed
from gbactl.tracking.metrics_and_tags import ORIGIN
from gbactl.tracking.mlflow_store import Run
from gbactl.tracking.run_description import MODE_TAG, rounded, short

TAGS = "tags."
OF_THE_MODE = ("mode", "mode.", "switch.", "collective.")
LABELLED = ("faults", "cost")  # groups whose name stands for all of their keys
_IRRELEVANT = (
    "run_dir", "tracking.", "cluster.start_timeout", "cluster.stop_seconds", "cluster.bind", "cluster.ssh",
    "cluster.exec", "cluster.python", "cluster.forward",
    "data.cache", "data.user_field", "switch.modes", "train.on_divergence", *(f"{group}.name" for group in LABELLED),
)  # fmt: skip
Configuration = frozenset[tuple[str, str]]
Settings = Mapping[str, str]


class DifferingKeys(NamedTuple):
    """Values of the configuration keys in which a run differs from others.

    `beyond`: of keys other than the mode's. `own`: of the mode's own keys. `labels`: all of them as key=value."""

    beyond: tuple[str, ...]
    own: tuple[str, ...]
    labels: tuple[str, ...]


def value_of(run: Run, key: str) -> str:
    """Return a run's value of a parameter, or of a tag (tags.NAME); `-` if it has none.

    `mode` is the modes run: sync>gba@day2.
    """
    if key.startswith(TAGS):
        return run.tags.get(key.removeprefix(TAGS), "-")
    own = run.params.get(key, run.params.get(f"{key}.name", "-"))
    if key not in ("mode", "mode.name"):
        return own
    return run.tags.get(MODE_TAG) or from_listed(run.tags.get("gbactl.phases", own))


def shown_value_of(run: Run, key: str) -> str:
    """Return a run's value of a parameter or tag, shortened for a report.

    A list such as a fault plan is named by its content: "constant W1 x4"."""
    return short(value_of(run, key))


def without(found: Settings, listed: Iterable[str]) -> dict[str, str]:
    """Copy a mapping without the keys in `listed` and without keys that begin with an entry ending in a dot."""
    exact = frozenset(listed)
    prefixes = tuple(each for each in exact if each.endswith("."))
    return {key: value for key, value in found.items() if key not in exact and not key.startswith(prefixes)}


@functools.cache
def _defaults() -> Settings:
    values = flatten(to_dict(RunConfig()))
    return without({key: str(value) for key, value in values.items()}, ("mode.", "data", "seed"))


def settings(run: Run) -> dict[str, str]:
    """Return the parameters of a run, defaults included, that can change its result.

    Runs that began from checkpoints of runs that differ in the seed alone have the same value of `resume`."""
    found = {**_defaults(), **run.params}
    found["resume"] = run.tags.get(ORIGIN, found["resume"])
    return without(found, (*_IRRELEVANT, *_unused(found, value_of(run, "mode"))))


def _unused(found: Settings, mode: str) -> list[str]:
    """List the configuration keys and prefixes that have no effect on a run with this mode and cluster."""
    modelled = is_modelled(found["cluster.name"])
    skipped = [] if modelled else ["cost."]
    if modelled or not any(_collects(each) for each in each_mode(mode)):
        skipped.append("collective.")
    if found["faults.plans"] == "[]":
        skipped.append("faults.seed")
    if found["checkpoint.name"] == "none":
        skipped += [key for key in found if key.startswith("checkpoint.") and key != "checkpoint.name"]
    return skipped


def is_modelled(cluster: str) -> bool:
    """Return whether a run's processes were simulated; false for an unknown cluster name."""
    with contextlib.suppress(ConfigError):
        return not engine_named(cluster).real
    return False


def _collects(mode: str) -> bool:
    return mode not in names() or policy_class(mode).collective


def configuration(run: Run, free: Iterable[str]) -> Configuration:
    """Return the parameters that can change a run's result; keys or prefixes in `free` may differ and are left out."""
    return frozenset(without(settings(run), free).items())


def values_of(found: Iterable[Settings]) -> dict[str, set[str]]:
    """Collect the set of values that each key has in the configurations `found`."""
    values: dict[str, set[str]] = defaultdict(set)
    for each in found:
        for key, value in each.items():
            values[key].add(value)
    return values


def _varying(found: Iterable[Settings]) -> list[str]:
    """List the keys with different values in `found`, except the seed and the seeds that equal it in every run."""
    known = list(found)
    names = (key for key, values in values_of(known).items() if len(values) > 1)
    return sorted(key for key in names if not _follows_seed(key, known))


def _follows_seed(key: str, found: Iterable[Settings]) -> bool:
    """Return whether a key is the seed, or a seed that equals it in every run: data.seed=${seed}."""
    return key.rpartition(".")[2] == "seed" and all(each.get(key) == each.get("seed") for each in found)


def _beyond(found: Settings) -> Settings:
    return without(found, OF_THE_MODE)


def _within(found: Settings) -> Settings:
    return without(found, ("mode", "mode.name", *_beyond(found)))


def differing(runs: Sequence[Run]) -> list[DifferingKeys]:
    """Find how each run's configuration differs from others.

    Keys beyond the mode are compared with all runs, the mode's own keys with the runs of the same mode.
    """
    found, modes = [settings(run) for run in runs], [value_of(run, "mode") for run in runs]
    beyond = _varying(_beyond(each) for each in found)
    own = {name: _varying(map(_within, each)) for name, each in _grouped(found, modes).items()}
    texts = _texts(found)
    labels = {group: _labels(group, runs, found, beyond, texts) for group in LABELLED}
    made = []
    for place, (each, mode) in enumerate(zip(found, modes, strict=True)):
        tokens = [token for group in LABELLED for token in labels[group][place]]
        plain = [key for key in (*beyond, *own[mode]) if key.split(".")[0] not in LABELLED and key in each]
        tokens += [f"{key.removesuffix('.name')}={texts[key][each[key]]}" for key in plain]
        values = [tuple(each.get(key, "") for key in keys) for keys in (beyond, own[mode])]
        made.append(DifferingKeys(values[0], values[1], tuple(tokens)))
    return made


def _texts(found: Sequence[Settings]) -> dict[str, dict[str, str]]:
    """Map each key's values to short texts for labels; numbers are rounded unless that makes two values equal."""
    texts = dict[str, dict[str, str]]()
    for key, values in values_of(found).items():
        exact = {value: short(value) for value in values}
        brief = {value: short(rounded(value)) for value in values}
        texts[key] = brief if len({*brief.values()}) == len({*exact.values()}) else exact
    return texts


def _grouped(found: Sequence[Settings], called: Sequence[str]) -> dict[str, list[Settings]]:
    grouped: dict[str, list[Settings]] = defaultdict(list)
    for each, name in zip(found, called, strict=True):
        grouped[name].append(each)
    return grouped


def _labels(
    group: str, runs: Sequence[Run], found: Sequence[Settings], beyond: Sequence[str],
    texts: Mapping[str, Mapping[str, str]],
) -> list[list[str]]:  # fmt: skip
    """Label the values that each run has in one group of keys, such as faults.

    A label is the group's name, and the keys that differ among runs with that name."""
    keys = [key for key in beyond if key.startswith(f"{group}.")]
    called = [_name(group, run, each) for run, each in zip(runs, found, strict=True)]
    namesakes, made = _grouped(found, called), []
    own = {name: [key for key in _varying(all_) if key in keys] if name else keys for name, all_ in namesakes.items()}
    for name, each in zip(called, found, strict=True):
        mine = [f"{group}={name}"] if name and len(namesakes) > 1 and keys else []
        made.append([*mine, *(f"{key}={texts[key][each[key]]}" for key in own[name] if key in each)])
    return made


def _name(group: str, run: Run, found: Settings) -> str:
    """Return the name of the option that a run chose for a group of keys; "" if it has no name.

    Fault plans typed by hand, or of an older run, have none."""
    if not any(key.startswith(f"{group}.") for key in found):
        return ""
    name = run.params.get(f"{group}.name", "")
    if group != "faults":
        return name
    if found["faults.plans"] == "[]":
        return "none"
    return "" if name == "none" else name


def mixed(runs: Sequence[Run]) -> list[str]:
    """List the keys in which runs of one row of the report's table differ.

    Keys of a group are listed if the group's name does not tell the runs apart.
    """
    names = {token.partition("=")[0] for each in differing(runs) for token in each.labels}
    return sorted(name for name in names if not any(each.startswith(f"{name}.") for each in names if name in LABELLED))

"""Configuration tree conf/: where it is, its groups, their options and keys, and the comments that explain these.

The files of a user's folders come before those of conf/, which is beside the package or, in a wheel, inside it. PyYAML
is imported only when a file is read: most processes only look whether a file exists.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gbactl.checked_dataclasses import did_you_mean

if TYPE_CHECKING:
    import yaml

HERE = "@_here_"  # in the defaults of an option's file: a file in a folder below, whose keys are the option's too
COMMENT = re.compile(r"\s#\s*(.*)$")
PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")  # characters that need no quotes on Hydra's command line
ROOT = "train.yaml"
GROUPS = {
    "mode": "The training mode: where dense parameters are, when a gradient is applied, and with what weight.",
    "train": "Batches, epochs and evaluation.",
    "data": "The data set. Each kind of data has keys of its own.",
    "model": "The click model.",
    "optim": "The optimizer of the dense parameters and of the embedding rows.",
    "cluster": "Processes, their hosts, and what happens when one of them fails.",
    "transport": "Encryption and number format of the messages of a run.",
    "collective": "The all-reduce of `mode=sync` and of the modes that average replicas.",
    "switch": "Changes of the mode within a run.",
    "checkpoint": "What a checkpoint saves, how often, and which processes load it after a server failure.",
    "faults": "The fault plan: a list of faults, each with a `kind`.",
    "cost": "Hardware of a virtual cluster, and how long work takes on it. Only `cluster=virtual` reads this group.",
    "tracking": "Where and how runs are logged to MLflow.",
}
MOST_USED = (
    "seed", "train.global_batch", "train.days", "mode.local_batch", "mode.iota", "mode.prefetch", "cluster.workers",
    "cluster.servers", "cluster.transport", "data.path", "data.rows_per_day", "model.dim", "model.hidden", "optim.lr",
    "optim.row_lr", "precision", "switch.schedule", "checkpoint.interval_seconds", "resume", "run_dir",
)  # fmt: skip
_SEARCHED: list[Path] = []


def conf_dir() -> Path:
    """Return the directory of the Hydra configuration tree, which is a link to conf/ in a checkout."""
    return (Path(__file__).parent / "conf").resolve()


def set_search_folders(folders: list[Path]) -> None:
    """Set the folders that this process searches for configuration files before gbactl's own."""
    _SEARCHED[:] = folders


def option_files(group: str) -> dict[str, Path]:
    """Return the files that GROUP=OPTION chooses, by option in alphabetical order."""
    folders = [conf_dir(), *reversed(_SEARCHED)]
    found = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


class Entry(NamedTuple):
    """Key of a configuration file: its value there, as written, and the comment on its line."""

    value: Any
    comment: str

    @property
    def typed(self) -> str:
        """Value as it is typed on the command line."""
        if isinstance(self.value, list):
            return as_yaml(self.value)  # Hydra takes no keys in quotes
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


@functools.cache
def entries(path: Path) -> dict[str, Entry]:
    """Read the keys of a configuration file and its bases by their dotted names, without Hydra's own keys."""
    import yaml

    text = path.read_text()
    lines, root = text.splitlines(), yaml.compose(text)
    found: dict[str, Entry] = {}

    def walk(node: yaml.Node, prefix: str) -> None:
        for key, value in node.value:
            name, line, end = prefix + key.value, key.start_mark.line, value.end_mark
            if isinstance(value, yaml.MappingNode) and value.value:
                walk(value, f"{name}.")
                continue
            comment = COMMENT.search(lines[line], end.column if end.line == line else 0)
            found[name] = Entry(yaml.safe_load(yaml.serialize(value)), comment[1] if comment else "")

    assert root is not None, path
    walk(root, "")
    for base in bases(path.parent, found["defaults"].value if "defaults" in found else ()):
        found = {**found, **{key: entry for key, entry in entries(base).items() if key not in found}}
    return {name: entry for name, entry in found.items() if name != "defaults" and not name.startswith("hydra.")}


def bases(folder: Path, defaults: Iterable[Any]) -> list[Path]:
    """List the files in or below `folder` that a file with these Hydra `defaults` inherits keys from."""
    texts = [each for each in defaults if isinstance(each, str) and each.endswith(HERE)]
    return [folder / f"{each.removesuffix(HERE)}.yaml" for each in texts]


def options(group: str) -> list[str]:
    """List the options of a group: GROUP=OPTION chooses conf/GROUP/OPTION.yaml."""
    return list(option_files(group))


def default_option(group: str) -> str:
    """Return a group's option in the defaults of conf/train.yaml; "" if they have none."""
    chosen = _defaults(conf_dir() / ROOT)
    return next((str(each[group]) for each in chosen if isinstance(each, dict) and group in each), "")


@functools.cache
def _defaults(path: Path) -> list[Any]:
    import yaml

    found: list[Any] = yaml.safe_load(path.read_text())["defaults"]
    return found


def group_files(group: str) -> dict[str, dict[str, Entry]]:
    """Read a group's keys as {option: {key: entry}}; a group without options has its keys from conf/train.yaml at "".

    An option for the whole tree, of data, counts with its group's part."""
    if not options(group):
        found = {"": entries(conf_dir() / ROOT)}
        return {"": {key.removeprefix(f"{group}."): e for key, e in found[""].items() if key.startswith(f"{group}.")}}
    return {
        name: {key.removeprefix(f"{group}."): entry for key, entry in keys.items() if "/" not in key}
        for name, keys in ((each, entries(path)) for each, path in option_files(group).items())
    }


def single_keys() -> dict[str, Entry]:
    """Read the keys that belong to no group."""
    return {key: entry for key, entry in entries(conf_dir() / ROOT).items() if "." not in key}


def headline(group: str, option: str) -> str:
    """Return the first comment of an option's file, which describes the option."""
    lines = option_files(group)[option].read_text().splitlines()
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    comments = [line for line in comments if not line.startswith(("@package", "gbactl ", "GBACTL_DATA"))]
    return comments[0] if comments else ""


def entries_of(key: str) -> dict[str, Entry]:
    """Return the entries of a dotted key by the options that have it; {} for an unknown key."""
    group, dot, rest = key.partition(".")
    if not dot:
        found = single_keys().get(key)
        return {} if found is None else {"": found}
    files = group_files(group) if group in GROUPS else {}
    return {option: keys[rest] for option, keys in files.items() if rest in keys}


def default_of(key: str) -> Entry:
    """Return a key's entry in its group's default option, else in another option that has it. Raises KeyError."""
    found = entries_of(key)
    return found.get(default_option(key.partition(".")[0])) or found[next(iter(found), key)]


def all_keys() -> list[str]:
    """List the dotted names of all keys, including those that belong to no group."""
    grouped = (f"{group}.{key}" for group in GROUPS for keys in group_files(group).values() for key in keys)
    return [*dict.fromkeys(grouped), *single_keys()]


def as_yaml(value: Any) -> str:
    """Format a value as YAML on one line; a text such as 2026-11-26 is quoted, as YAML would read another type."""
    import yaml

    style = '"' if isinstance(value, str) and "\n" in value else None
    written: str = yaml.safe_dump(
        value, default_style=style, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True
    )
    return written.removesuffix("\n...\n").removesuffix("\n")


def as_override(value: Any) -> str:
    """Format a value as Hydra's command line takes it; a text that Hydra could read otherwise is in quotes."""
    if not isinstance(value, str):
        return "null" if value is None else json.dumps(value)
    if PLAIN.fullmatch(value) and value.lower() not in ("null", "true", "false") and not _is_number(value):
        return value
    # in quotes, Hydra takes a backslash as it is unless a quotation mark follows; OmegaConf does, unless ${ follows
    return '"' + re.sub(r'(\\*)("|\$\{|\Z)', lambda found: 2 * found[1] + (found[2] and f"\\{found[2]}"), value) + '"'


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def unknown(word: str) -> str:
    """Return an error text for an unknown group, option or key: similar words, or the command that lists all."""
    chosen = [f"{group}={option}" for group in GROUPS for option in options(group)]
    group = word.partition(".")[0]
    listed = f"gbactl config {group} for its keys" if group in GROUPS else "gbactl config for all groups"
    meant = did_you_mean(word, [*GROUPS, "experiment", *chosen, *all_keys()])
    return f"There is no key {word}. {meant or f'Type {listed}.'}"

"""Implementation of `gbactl config` and `--cfg job`: explain any group or key, from conf/ and the schema."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml

from gbactl import conf_catalogue
from gbactl.checked_dataclasses import default_of, shown
from gbactl.conf_catalogue import GROUPS, Entry
from gbactl.config import RunConfig
from gbactl.config.engine_interface import engine_named
from gbactl.config.run_config import effective_keys, when_effective
from gbactl.data.readers import options_class
from gbactl.errors import UsageError
from gbactl.faults.fault_kinds import KINDS, Workers, typed_name
from gbactl.policies.policy import names, policy_class
from gbactl.switching.switch_schedule import FIELDS

WIDTH = 80
CHOSEN = "the chosen option; type {}=OPTION, which sets the keys of the option too"


def sweep_hints() -> dict[str, Any]:
    """Return the type annotations of the keys of a sweep."""
    from gbactl.launch.sweep_parent_run import SweepOptions

    return get_type_hints(SweepOptions, include_extras=True)


def single_hints() -> dict[str, Any]:
    """Return the type annotations of the top-level keys of a run and of a sweep, which belong to no group."""
    return get_type_hints(RunConfig, include_extras=True) | sweep_hints()


def hints_of(group: str, source: str) -> dict[str, Any]:
    """Return the type annotation of each key of a group; group `data` has the keys of the data source `source`."""
    found: dict[str, Any] = {}

    def add(cls: type[Any], prefix: str = "") -> None:
        hints = get_type_hints(cls, include_extras=True)
        for each in dataclasses.fields(cls):
            if dataclasses.is_dataclass(hints[each.name]):
                add(hints[each.name], f"{prefix}{each.name}.")
            elif each.name != "options":
                found.setdefault(f"{prefix}{each.name}", hints[each.name])

    if group == "data":
        add(options_class(source))
        return found
    add(get_type_hints(RunConfig)[group])
    if group == "mode":
        for mode in names():
            add(policy_class(mode).Options)
    if group == "cluster":
        for engine in conf_catalogue.options("cluster"):
            add(engine_named(engine).Options)
    return found


def hint_of(hints: dict[str, Any], group: str, name: str, key: str) -> Any:
    """Return a key's annotation, from `hints` or, for a model's option, from the model's class; else None."""
    if key not in hints and group == "model":
        from gbactl.models import option_hints  # imports torch

        return option_hints(name).get(key)
    return hints.get(key)


class FaultKey(NamedTuple):
    """Key of a kind of fault: its meaning, its default (MISSING if it is needed), and its annotation."""

    kind: str
    key: str
    meaning: str
    default: Any
    hint: Any


def fault_keys(kind: str) -> list[FaultKey]:
    """List the keys of a kind of fault; their meanings are the comments of conf/faults/."""
    told, hints = _fault_comments(), get_type_hints(KINDS[kind], include_extras=True)
    found = []
    for each in dataclasses.fields(KINDS[kind]):
        key = typed_name(each.name)
        meaning = next(filter(None, (told.get((other, key)) for other in (kind, "kill", *sorted(KINDS)))), "")
        found.append(FaultKey(kind, key, meaning, default_of(each), hints[each.name]))
    return found


def _fault_comments() -> dict[tuple[str, str], str]:
    """Read the comments of keys in conf/faults/, by kind of fault and key."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted((conf_catalogue.conf_dir() / "faults").glob("*.yaml")):
        kind = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"\s+(?:- |# )?(\w+): (.*?)\s+#\s*(.*)$", line):
                found.setdefault((kind, match[1]), match[3])
            elif match := re.match(r"\s+- kind: (\w+)", line):
                kind = match[1]
    return found


def names_processes(hint: Any) -> bool:
    """Whether an annotation belongs to a fault's key `workers` or `servers`."""
    return Workers in get_args(hint) or hint in (Workers, Workers | None)


def explain(word: str | None) -> str:
    """Explain a group, an option of a group, or a key; None: list them all. Raises UsageError if unknown."""
    if word is None:
        return _overview()
    group, equals, option = word.partition("=")
    if equals and option in conf_catalogue.options(group):
        return "\n".join([*_wrapped(f"{word}: ", conf_catalogue.headline(group, option)), "", *_keys(group, option)])
    if word in GROUPS:
        return _group(word)
    if word == "experiment":
        return "\n".join(["experiment: Named combinations of the groups.", "", *_options(word)])
    word = "switch.schedule" if word in FIELDS else word
    found = conf_catalogue.entries_of(word)
    if found:
        return _key(word, found)
    parts = [key for key in conf_catalogue.all_keys() if key.endswith(f".{word}") or key.startswith(f"{word}.")]
    told = [_key(key, conf_catalogue.entries_of(key)) for key in parts] + _of_faults(word.removeprefix("faults.plans."))
    if told:
        return "\n\n".join(told)
    raise UsageError(conf_catalogue.unknown(word))


def filled_in(overrides: list[str]) -> str:
    """Compose a configuration, and write those keys that have an effect as YAML. Raises UsageError, ConfigError."""
    from gbactl.launch.hydra_config import compose

    return yaml.safe_dump(effective_keys(compose(overrides)), sort_keys=False)


def _wrapped(first: str, text: str) -> list[str]:
    """Wrap a text into lines, the first one after the prefix `first` and the others indented accordingly."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * min(len(first), WIDTH // 2), break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]  # fmt: skip


def _overview() -> str:
    lines = ["Groups; type gbactl config GROUP for the keys of one, gbactl config KEY for a key:", ""]
    for group, text in GROUPS.items():
        options = conf_catalogue.options(group)
        choices = f" {' | '.join(options)}" if len(options) > 1 else ""
        lines += _wrapped(f"  {group:<12}", f"{text.replace('`', '')}{choices}")
    lines += _wrapped(
        f"  {'experiment':<12}", f"Named combinations. {' | '.join(conf_catalogue.options('experiment'))}"
    )
    lines += ["", "Single keys:", ""]
    for key, entry in conf_catalogue.single_keys().items():
        lines += _wrapped(f"  {key}={entry.typed}".ljust(18) + "  ", entry.comment)
    return "\n".join(lines)


def _options(group: str) -> list[str]:
    return [
        line for each in conf_catalogue.options(group)
        for line in _wrapped(f"  {group}={each}".ljust(28) + "  ", conf_catalogue.headline(group, each))
    ]  # fmt: skip


def _group(group: str) -> str:
    lines = _wrapped(f"{group}: ", GROUPS[group].replace("`", ""))
    if len(conf_catalogue.options(group)) > 1:
        lines += ["", *_options(group)]
    if group != "data":
        lines += ["", *_keys(group, None)]
    return "\n".join(lines)


def _keys(group: str, option: str | None) -> list[str]:
    """List the keys of a group or option with meanings and defaults; for a group, the default option's defaults."""
    files = conf_catalogue.group_files(group)
    first = conf_catalogue.default_option(group) if option is None else option
    keys = dict[str, Entry]()
    for found in (files.get(first, {}), *(files.values() if option is None else ())):
        keys |= {key: entry for key, entry in found.items() if key not in keys}
    prefix = "" if group == "experiment" else f"{group}."  # an experiment's keys are of all groups
    return [
        line for key, entry in keys.items() if key != "name" and (key != "plans" or option is not None)
        for line in _wrapped(f"  {prefix}{key}={entry.typed}".ljust(38) + "  ", entry.comment)
    ]  # fmt: skip


def _key(key: str, found: dict[str, Entry]) -> str:
    """Explain one key: meaning, type and bounds, defaults by option, and when it has an effect."""
    group, dot, rest = key.partition(".")
    option = next(iter(found))  # its name can be another: data=frappe has the name libfm
    named = conf_catalogue.entries_of(f"{group}.name").get(option)
    name = named.value if named and dot else ""
    hints = hints_of(group, name) if dot else single_hints()
    hint = hint_of(hints, group, name, rest or key)
    kind = "text, or null" if hint is None else shown(hint)
    if rest == "name" and len(found) > 1:
        kind = f"one of {', '.join(found)}"
    defaults, meanings = dict[str, list[str]](), dict[str, list[str]]()
    for option, entry in found.items():
        defaults.setdefault(entry.typed, []).append(option)
        meanings.setdefault(CHOSEN.format(group) if rest == "name" else entry.comment, []).append(option)
    everywhere = not dot or len(found) == max(1, len(conf_catalogue.options(group)))
    acts = when_effective(key) if dot or key not in sweep_hints() else "in a sweep"
    if not everywhere:  # a condition beyond that of the option is one on another key of the group
        more = f" and {acts.removeprefix('with ')}" if acts.startswith(f"with {group}.") else ""
        acts = f"with {group}= {' | '.join(found)}{more}"
    lines = [key]
    for text, having in meanings.items():
        lines += _wrapped("  ", f"{text}{_of(group, having, len(meanings))}")
    lines += _wrapped("  type     ", re.sub(r"\d{5,}", lambda match: f"{int(match[0]):,}", kind))
    defaults_text = "; ".join(f"{value}{_of(group, options, len(defaults))}" for value, options in defaults.items())
    return "\n".join([*lines, *_wrapped("  default  ", defaults_text), *_wrapped("  acts     ", acts)])


def _of_faults(key: str) -> list[str]:
    """Explain a key of the faults in faults.plans, once for all kinds of fault in which it is the same."""
    kinds = dict[tuple[str, ...], list[str]]()
    for each in (each for kind in sorted(KINDS) for each in fault_keys(kind) if each.key == key):
        default = "needed" if each.default is dataclasses.MISSING else Entry(each.default, "").typed
        values = "indexes, all, random, a number, or a share" if names_processes(each.hint) else shown(each.hint)
        kinds.setdefault((each.meaning, values, default), []).append(each.kind)
    return [
        "\n".join([
            f"{key}, of a fault in faults.plans", *_wrapped("  ", meaning), *_wrapped("  type     ", values),
            *_wrapped("  default  ", default), *_wrapped("  acts     ", f"with kind: {' | '.join(having)}"),
        ]) for (meaning, values, default), having in kinds.items()
    ]  # fmt: skip


def _of(group: str, options: list[str], several: int) -> str:
    return f" ({group}= {' | '.join(options)})" if several > 1 else ""

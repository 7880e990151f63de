"""A switch schedule: from which round (day or epoch) on a run trains in which mode. Pure.

An entry is {at: {day: N}, to: MODE, set: {KEY: VALUE}}; `set` changes keys of conf/mode/MODE.yaml.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gbactl.errors import ConfigError

FIELDS = ("at", "to", "set")
UNITS = ("day", "epoch")


@dataclass(frozen=True)
class Entry:
    """From round `start` on, mode `to` with `changes`."""

    start: int
    to: str
    changes: Mapping[str, Any]


def entries(schedule: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Read a schedule. Raises ConfigError that names the entry that is wrong."""
    found = [_entry(number, raw) for number, raw in enumerate(schedule)]
    for number, (before, after) in enumerate(itertools.pairwise(found), 1):
        if after.start <= before.start:
            raise ConfigError(
                f"switch.schedule[{number}] starts at {after.start}, not after the one before it; list them in order."
            )
    return found


def _entry(number: int, raw: Mapping[str, Any]) -> Entry:
    where = f"switch.schedule[{number}]"
    example = "type {at: {day: 2}, to: gba}"
    if not isinstance(raw, Mapping) or not {"at", "to"} <= set(raw) <= set(FIELDS):
        raise ConfigError(f"{where} needs `at` and `to` and may have `set`; {example}.")
    at, changes = raw["at"], raw.get("set") or {}
    if not isinstance(at, Mapping) or len(at) != 1 or next(iter(at)) not in UNITS:
        raise ConfigError(f"{where}.at is {at}, which is no day or epoch; {example}.")
    start = next(iter(at.values()))
    if type(start) is not int or start < 1:
        raise ConfigError(f"{where}.at is {start}; the first mode is mode=, switches come from day 1 on; {example}.")
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where}.set is {changes}; type set: {{KEY: VALUE}}, keys as in conf/mode/{raw['to']}.yaml.")
    return Entry(start, str(raw["to"]), dict(changes))


def current(schedule: Sequence[Entry], number: int) -> int:
    """Index of the entry that rules round `number`; -1 while the first mode does."""
    return sum(entry.start <= number for entry in schedule) - 1

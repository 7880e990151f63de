"""Switch schedule: the points at which a run changes its mode. Pure.

An entry is {at: {UNIT: X}, to: MODE, set: {KEY: VALUE}}; `set` changes keys of conf/mode/MODE.yaml. Units: day (or
epoch), counted from 0; samples handed out, global step, seconds of training, fraction of all samples. Hand-out goes on
from such a point to the next whole global batch, so that no step is left partial. With fresh_optimizer: true the
optimizer's state is reset there, as after a restart that kept the parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gbactl.errors import ConfigError

FIELDS = ("at", "to", "set", "fresh_optimizer")
UNITS = ("day", "epoch", "samples", "step", "seconds", "fraction")
_FAMILY = {"epoch": "day"}
_EXAMPLE = "type {at: {day: 2}, to: gba}"


@dataclass(frozen=True)
class ScheduleEntry:
    """Entry of a schedule: mode `to` with `changes` from `value` `unit`s on; `fresh`: reset the optimizer's state."""

    unit: str
    value: float
    to: str
    changes: Mapping[str, Any]
    fresh: bool = False

    @property
    def point(self) -> str:
        """Point of the switch in one word, for the name of the run: day2, step100, 60s, 80%."""
        if self.unit == "fraction":
            return f"{100 * self.value:g}%"
        return f"{self.value:g}s" if self.unit == "seconds" else f"{self.unit}{self.value:.0f}"


def entries(schedule: Sequence[Mapping[str, Any]]) -> list[ScheduleEntry]:
    """Parse a schedule. Raises ConfigError that names the wrong entry."""
    found = [_entry(number, raw) for number, raw in enumerate(schedule)]
    last: dict[str, float] = {}
    for number, entry in enumerate(found):
        family = _FAMILY.get(entry.unit, entry.unit)
        if entry.value <= last.get(family, 0):
            raise ConfigError(
                f"{name(number)} starts at {entry.value:g}, not after the one before it; list them in order."
            )
        last[family] = entry.value
    return found


def name(number: int) -> str:
    """Return the name by which errors call an entry."""
    return f"switch.schedule[{number}]"


def _entry(number: int, raw: Mapping[str, Any]) -> ScheduleEntry:
    where = name(number)
    if not isinstance(raw, Mapping) or not {"at", "to"} <= set(raw) <= set(FIELDS):
        raise ConfigError(f"{where} needs `at` and `to` and may have `set` and `fresh_optimizer`; {_EXAMPLE}.")
    at, changes, fresh = raw["at"], raw.get("set") or {}, raw.get("fresh_optimizer", False)
    if not isinstance(at, Mapping) or len(at) != 1 or next(iter(at)) not in UNITS:
        raise ConfigError(f"{where}.at is {at}, which is none of: {', '.join(UNITS)}; {_EXAMPLE}.")
    unit, value = next(iter(at.items()))
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where}.set is {changes}; type set: {{KEY: VALUE}}, keys as in conf/mode/{raw['to']}.yaml.")
    if type(fresh) is not bool:
        raise ConfigError(f"{where}.fresh_optimizer is {fresh}; type true or false.")
    return ScheduleEntry(str(unit), _value(where, str(unit), value), str(raw["to"]), dict(changes), fresh)


def _value(where: str, unit: str, value: Any) -> float:
    number = value if type(value) in (int, float) else -1
    if unit == "fraction":
        if not 0 < number < 1:
            raise ConfigError(f"{where}.at is a fraction of {value}; type one between 0 and 1, as {{fraction: 0.5}}.")
        return float(number)
    if unit == "seconds":
        if not 0 < number <= 1e9:
            raise ConfigError(f"{where}.at is {value} seconds; type a positive number, as {{seconds: 600}}.")
        return float(number)
    if not 1 <= number < 1 << 53 or number != int(number):
        raise ConfigError(
            f"{where}.at is {value}; the first mode is mode=, switches come from {unit} 1 on; {_EXAMPLE}."
        )
    return int(number)


def located(found: Sequence[ScheduleEntry], rows: Sequence[int]) -> list[int | None]:
    """Convert each entry's point to samples of the run, whose rounds have `rows` samples; None for steps and seconds.

    Raises ConfigError, with the entry's name, for a point past the end or before that of an earlier entry."""
    points = [_point(entry, rows) for entry in found]
    total, last = sum(rows), 0
    for number, (entry, point) in enumerate(zip(found, points, strict=True)):
        if point is None:
            continue
        told = f"{name(number)} is at {entry.unit} {entry.value:g}"
        if point >= total:
            raise ConfigError(f"{told}, but the run ends after {len(rows)} days or epochs, {total} samples.")
        if point <= last:
            raise ConfigError(f"{told}, sample {point} of the run, not after the one before it; list them in order.")
        last = point
    return points


def _point(entry: ScheduleEntry, rows: Sequence[int]) -> int | None:
    if entry.unit in ("day", "epoch"):
        return sum(rows[: int(entry.value)]) if entry.value < len(rows) else sum(rows)
    if entry.unit == "samples":
        return int(entry.value)
    return max(1, round(entry.value * sum(rows))) if entry.unit == "fraction" else None

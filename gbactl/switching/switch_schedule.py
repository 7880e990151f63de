"""Schedule of a run's mode switches, and the plan that says when one is due. Pure.

An entry of the schedule is {at: {UNIT: X}, to: MODE, set: {KEY: VALUE}}; `set` changes keys of conf/mode/MODE.yaml.
Units: day (or epoch), counted from 0; samples handed out, global step, seconds of training, fraction of all samples.
Hand-out goes on from such a point to the next whole global batch, so that no step is left partial. With
fresh_optimizer: true the optimizer's state is reset there, as after a restart that kept the parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gbactl.errors import ConfigError
from gbactl.policies.policy import Policy

T = TypeVar("T")

FIELDS = ("at", "to", "set", "fresh_optimizer")
UNITS = ("day", "epoch", "samples", "step", "seconds", "fraction")
_FAMILY = {"epoch": "day"}
_EXAMPLE = "type {at: {day: 2}, to: gba}"


@dataclass(frozen=True)
class ScheduleEntry:
    """Entry of a switch schedule: from `value` `unit`s on, mode `to` with the configuration `changes`.

    `fresh`: the optimizer's state is reset."""

    unit: str
    value: float
    to: str
    changes: Mapping[str, Any]
    fresh: bool = False

    @property
    def point(self) -> str:
        """Switch point in one word, for the run's name: day2, step100, 60s, 80%."""
        if self.unit == "fraction":
            return f"{100 * self.value:g}%"
        return f"{self.value:g}s" if self.unit == "seconds" else f"{self.unit}{self.value:.0f}"


def entries(schedule: Sequence[Mapping[str, Any]]) -> list[ScheduleEntry]:
    """Parse a switch schedule. Raises ConfigError that names the wrong entry."""
    found = [_entry(number, raw) for number, raw in enumerate(schedule)]
    last: dict[str, float] = {}
    for number, entry in enumerate(found):
        family = _FAMILY.get(entry.unit, entry.unit)
        if entry.value <= last.get(family, 0):
            raise ConfigError(
                f"{name(number)} starts at {entry.value:g}, which is not after the entry before it; "
                "list the entries in order."
            )
        last[family] = entry.value
    return found


def name(number: int) -> str:
    """Return the name that error messages give a schedule's entry."""
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
    """Convert the switch points of a schedule to samples of the run; None for points in steps or seconds.

    `rows`: samples of each day or epoch.
    Raises ConfigError, with the entry's name, for a point past the end or before that of an earlier entry."""
    points = [_point(entry, rows) for entry in found]
    total, last = sum(rows), 0
    for number, (entry, point) in enumerate(zip(found, points, strict=True)):
        if point is None:
            continue
        problem = f"{name(number)} is at {entry.unit} {entry.value:g}"
        if point >= total:
            raise ConfigError(f"{problem}, but the run ends after {len(rows)} days or epochs, {total} samples.")
        if point <= last:
            raise ConfigError(
                f"{problem}, sample {point}, which is not after the entry before it; list the entries in order."
            )
        last = point
    return points


def _point(entry: ScheduleEntry, rows: Sequence[int]) -> int | None:
    if entry.unit in ("day", "epoch"):
        return sum(rows[: int(entry.value)]) if entry.value < len(rows) else sum(rows)
    if entry.unit == "samples":
        return int(entry.value)
    return max(1, round(entry.value * sum(rows))) if entry.unit == "fraction" else None


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run: its round (day or epoch), samples handed out, global step, seconds since its start."""

    round: int
    samples: int
    step: int
    seconds: float


class SwitchPlan(Generic[T]):
    """Plan of mode switches of one run: its schedule, whose entries are taken in order, and requests from outside.

    A request takes effect at once and does not change the entries after it. `phases`: configurations before and after
    each entry; `rows`: samples of each round. Raises ConfigError for an entry past the end, unless it is in steps or
    seconds."""

    def __init__(self, entries: Sequence[ScheduleEntry], phases: Sequence[T], rows: Sequence[int]) -> None:
        self.entries, self.phases = entries, phases
        self.points = located(self.entries, rows)
        self.requested: T | None = None
        self.fresh = False  # whether the last switch taken resets the optimizer's state
        self.point = ""  # scheduled point of the last switch taken; empty if it was requested
        self.taken = 0  # number of entries taken

    @property
    def next(self) -> ScheduleEntry | None:
        """Next entry of the schedule; None after the last."""
        return self.entries[self.taken] if self.taken < len(self.entries) else None

    def take(self, progress: RunProgress, reached: bool = False) -> T | None:
        """Remove the due switch (requested or scheduled). Returns the configuration after it; None if none is due.

        `reached`: the batch before which the next entry is due was the last one. If gradients were given up in the
        drain, the global step is lower than the entry's then."""
        chosen, self.fresh, self.point = None, False, ""
        while (entry := self.next) is not None and (reached or self._due(entry, progress)):
            reached = False
            self.taken, self.point = self.taken + 1, entry.point
            chosen, self.fresh = self.phases[self.taken], self.fresh or entry.fresh
        if self.requested is not None:
            chosen, self.requested, self.point = self.requested, None, ""
        return chosen

    def _due(self, entry: ScheduleEntry, progress: RunProgress) -> bool:
        if entry.unit in ("day", "epoch"):
            return entry.value <= progress.round
        if entry.unit == "step":
            return entry.value <= progress.step
        if entry.unit == "seconds":
            return entry.value <= progress.seconds
        point = self.points[self.taken]
        return point is not None and point <= progress.samples

    def must_end_phase(self, seconds: float) -> bool:
        """Whether the phase must end now because a switch was requested or is scheduled at this time."""
        entry = self.next
        return self.requested is not None or (entry is not None and entry.unit == "seconds" and entry.value <= seconds)

    def last_batch(self, policy: Policy, progress: RunProgress) -> int | None:
        """Batch, in a phase that began at `progress`, before which the next scheduled switch is due (None: unknown)."""
        entry, point = self.next, None if self.next is None else self.points[self.taken]
        if entry is None or entry.unit in ("day", "epoch"):
            return None
        if entry.unit == "step":
            return policy.batches_of(int(entry.value) - progress.step)
        return None if point is None else -(-(point - progress.samples) // policy.phase.local_batch)

    def due_step(self) -> int | None:
        """Global step at which the schedule's next entry is due; None if the entry is not given in steps."""
        entry = self.next
        return int(entry.value) if entry is not None and entry.unit == "step" else None

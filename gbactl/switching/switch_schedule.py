"""Mode switches of a run: its schedule, the plan of what is due, and descriptions of switches for users. Pure.

An entry of the schedule is {at: {UNIT: X}, to: MODE, set: {KEY: VALUE}}; `set` changes keys of conf/mode/MODE.yaml.
Units: day (or epoch), counted from 0; samples handed out, global step, seconds of training, fraction of all samples.
Hand-out goes on from such a point to the next whole global batch, so that no step is left partial. With
fresh_optimizer: true the optimizer's state is reset there, as after a restart that kept the parameters alone.

MLflow shows the modes of a run as a curve of numbers, as the run's name, and as a sentence that lists the phases. A
switched run is named by its modes: sync>gba@day2, where @ gives the point of the switch. `gbactl switch` prints
sentences and a short table.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from gbactl.errors import ConfigError, GbactlError
from gbactl.policies import Policy
from gbactl.policies.policy import names, policy_class

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
                f"{name(number)} starts at {entry.value:g}, not after the one before it; list them in order."
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
    each entry; `rows`: samples of each round. Raises ConfigError for an entry that is never reached."""

    def __init__(self, entries: Sequence[ScheduleEntry], phases: Sequence[T], rows: Sequence[int]) -> None:
        self.entries, self.phases = entries, phases
        self.points = located(self.entries, rows)
        self.asked: T | None = None
        self.fresh = False  # whether the last switch taken resets the optimizer's state
        self.point = ""  # scheduled point of the last switch taken; empty if it was requested
        self.taken = 0  # number of entries taken

    @property
    def next(self) -> ScheduleEntry | None:
        """Next entry of the schedule; None after the last."""
        return self.entries[self.taken] if self.taken < len(self.entries) else None

    def take(self, at: RunProgress) -> T | None:
        """Remove the due switch (requested or scheduled). Returns the configuration after it; None if none is due."""
        found, self.fresh, self.point = None, False, ""
        while (entry := self.next) is not None and self._due(entry, at):
            self.taken, self.point = self.taken + 1, entry.point
            found, self.fresh = self.phases[self.taken], self.fresh or entry.fresh
        if self.asked is not None:
            found, self.asked, self.point = self.asked, None, ""
        return found

    def _due(self, entry: ScheduleEntry, at: RunProgress) -> bool:
        if entry.unit in ("day", "epoch"):
            return entry.value <= at.round
        if entry.unit == "step":
            return entry.value <= at.step
        if entry.unit == "seconds":
            return entry.value <= at.seconds
        point = self.points[self.taken]
        return point is not None and point <= at.samples

    def called(self, seconds: float) -> bool:
        """Whether the phase must end now because a switch was requested or is scheduled at this time."""
        entry = self.next
        return self.asked is not None or (entry is not None and entry.unit == "seconds" and entry.value <= seconds)

    def last_batch(self, policy: Policy, at: RunProgress) -> int | None:
        """Batch, in a phase that began at `at`, before which the schedule's next switch is due; None if unknown."""
        entry, point = self.next, None if self.next is None else self.points[self.taken]
        if entry is None or entry.unit in ("day", "epoch"):
            return None
        if entry.unit == "step":
            return policy.batches_of(int(entry.value) - at.step)
        return None if point is None else -(-(point - at.samples) // policy.phase.local_batch)

    def due_step(self) -> int | None:
        """Global step at which the schedule's next entry is due; None if the entry is not given in steps."""
        entry = self.next
        return int(entry.value) if entry is not None and entry.unit == "step" else None


def mode_id(mode: str) -> float | None:
    """Return the number that stands for a mode in the metric `mode_id`; None for a mode without one."""
    number = vars(policy_class(mode)).get("number") if mode in names() else None
    return None if number is None else float(number)


def legend() -> str:
    """Describe which number stands for which mode in the metric `mode_id`."""
    numbered = sorted(
        (number, mode) for mode in names() if (number := vars(policy_class(mode)).get("number")) is not None
    )
    return ", ".join(f"{number} {mode}" for number, mode in numbered)


def switched(modes: str, to: str, point: str, fresh: bool = False) -> str:
    """Extend the list of modes in a run's name by a switch to `to`.

    `fresh`: with the optimizer's state reset."""
    return f"{modes}>{to}@{point}{'+fresh' if fresh else ''}"


def each_mode(name: str) -> list[str]:
    """Return the modes in a run's name, in order."""
    return [part.partition("@")[0] for part in name.split(">")]


def listed(first: str, switches: Iterable[Mapping[str, Any]]) -> str:
    """Describe a run's modes in a sentence: the first one, and where each later one starts."""
    told = [
        f"{each['to']} from {each['day']}, sample {each['first_sample']}"
        f"{', optimizer anew' if each.get('fresh_optimizer') else ''}"
        for each in switches
    ]
    return "; ".join([first, *told])


def from_listed(text: str) -> str:
    """Build the list of modes in a run's name from the sentence of `listed`."""
    name, *rest = text.split("; ")
    for each in rest:
        found = re.fullmatch(r"(\S+) from (\S+) (\d+), sample (\d+)(, optimizer anew)?", each)
        if found is None:
            return text
        to, unit, number, sample, fresh = found.groups()
        point = f"{unit}{number}" if sample == "0" else f"{unit}{number}:{sample}"
        name = switched(name, to, point, fresh is not None)
    return name


WIDTH = 80


def answer(found: dict[str, Any]) -> str:
    """Describe the outcome of a requested switch in a sentence. Raises GbactlError where it was refused or undone."""
    to, state = found.get("to", "that mode"), found["state"]
    if state == "refused":
        raise GbactlError(f"No switch: {found['why'].rstrip('.')}.")
    if state == "stayed":
        raise GbactlError(f"The run stays in {found.get('from', 'its mode')}: {found['why'].rstrip('.')}.")
    if state == "same":
        return f"The run is in {to} already, with these options; nothing was done."
    if state == "accepted":
        return f"The run goes on in {to} as soon as what is in flight has arrived."
    fresh = ", its optimizer's state begun anew" if found.get("fresh_optimizer") else ""
    dense = f", with the {found['dense']}" if found.get("dense") else ""
    return f"The run goes on in {to} from step {found['step']} on{_pause(found.get('pause_ms'))}{fresh}{dense}."


def _pause(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f", after a pause of {milliseconds:.0f} ms"


def status(run_dir: Path, found: dict[str, Any]) -> str:
    """Format the status of a run, in lines of at most 80 columns."""
    name = textwrap.shorten(run_dir.name, WIDTH - 10, placeholder="...")
    if "mode" not in found:
        return f"{name}: starting"
    lines = [name, *(f"  {what:<11}{value}" for what, value in _values(found))]
    return "\n".join(line for each in lines for line in textwrap.wrap(each, WIDTH, subsequent_indent=" " * 13))


def _values(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    share = 100.0 * found["round_finished"] / max(1, found["round_samples"])
    stale = found["staleness"]
    yield "mode", f"{found['mode']} ({found['label']} of {found['rounds']}, {share:.0f} % of it)"
    yield "step", f"{found['step']:,}"
    yield "samples", f"{found['samples']:,}"
    yield "samples/s", f"{found['round_eps']:,.0f}"
    yield "staleness", f"mean {stale['mean']:.2f}, p50 {stale['p50']:.0f}, p99 {stale['p99']:.0f} steps"
    lost = "".join(f", W{worker} is lost" for worker in found["lost"])
    yield "workers", f"{found['live']}{lost}"
    yield "each", " ".join(f"{name}:{rate:,.0f}" for name, rate in found["workers"].items()) or "-"
    if look := found.get("auto"):
        yield "auto", f"sync {look['sync']:,.0f}, gba {look['gba']:,.0f} samples/s: {look['reason']}"
    for each in found["switches"]:
        yield "switch", switch_sentence(each)


def switch_sentence(each: dict[str, Any]) -> str:
    """Describe a switch that was done, or why the mode stayed."""
    told = f"step {each['step']}: {each['from']} to {each['to']}"
    return f"{told}, not done: {each['why']}" if each["state"] == "stayed" else told + _pause(each.get("pause_ms"))

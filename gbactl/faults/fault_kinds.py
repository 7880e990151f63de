"""Kinds of faults in a fault plan's configuration: typed fields, their validation, slow-down factors.

A kind either slows batches by the factor that `factor_at` returns, or slows nothing (`slows` is False): `kill`
(SIGKILL) and `hang` (SIGSTOP) end or stop a process, which fault_plan.FaultInjector chooses. A fault that is not
permanent occurs at a global step, at a time, or repeatedly by a distribution with a mean time between failures. Random
values depend on a key alone. A query costs a comparison. To add a kind, write a dataclass with @kind("name"), here or
in a file that fault_plan.py imports.

The kind `trace` has slow-down factors of workers over time, recorded on a cluster or synthetic. Its file is CSV with
the columns seconds and factor, and worker where workers differ. The launcher reads it when it composes the
configuration; that is the only I/O here. Looking a factor up is a bisection, about a microsecond.
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from gbactl.checked_dataclasses import Bounds, Count, Interval, Natural, Processes, Seconds, SomeShare, expect, matches
from gbactl.errors import ConfigError, require
from gbactl.hashes_and_random_numbers import DISTRIBUTIONS, INTERVALS, uniform

Workers = list[int] | int | float | str
Slower = Annotated[float, Bounds(at_least=1, at_most=1e6)]  # 4: four times slower
Sigma = Annotated[float, Bounds(above=0, at_most=10)]
Shape = Annotated[float, Bounds(above=1, at_most=1000)]  # of a Pareto distribution that has a mean
Distribution = Literal["exponential", "lognormal", "pareto"]
KINDS: dict[str, type[Fault]] = {}
SHAPED = ("weibull", "gamma")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Base of all faults: one entry of the fault plan, with the workers and servers that it concerns.

    `workers`: indexes, "all", how many, or a share like 1/8; `servers` likewise.
    A plan that names servers and no workers is for servers alone."""

    kind: ClassVar[str] = ""
    slows: ClassVar[bool] = True
    workers: Workers | None = "all"
    servers: Workers | None = None

    def check(self, where: str) -> None:
        """Check the configured values. Raises ConfigError; `where` names the entry, for instance faults.plans[0]."""

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        """Return the slow-down factor, at least 1, of a worker's batch number `number`, begun `seconds` into training.

        `key` is the worker's own in this plan; random values depend on (key, number) alone."""
        return 1.0

    def of(self, worker: int) -> Fault:
        """Return the fault restricted to one worker; the fault itself if it is the same for all workers."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Encode the fault as in a configuration file, with the defaults filled in."""
        values = {typed_name(name): value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {"kind": self.kind, **values}


F = TypeVar("F", bound=type[Fault])


def kind(name: str) -> Callable[[F], F]:
    """Class decorator that registers a kind of fault under a name (`kind: name` in a fault plan)."""

    def register(cls: F) -> F:
        cls.kind = name
        KINDS[name] = cls
        return cls

    return register


def window(where: str, begin: float, end: float | None) -> None:
    require(end is None or end > begin, f"{where}.until={end} must be later than from={begin}, or null: to the end.")


def typed_name(field: str) -> str:
    """Return a field's name as users type it: `from` for `from_`."""
    return field.rstrip("_")


def drawn(where: str, distribution: str | None, sigma: float | None, shape: float | None) -> None:
    """Raise ConfigError if a parameter (sigma, shape) is given that the distribution, if any, does not have."""
    for name, value, owner in (("sigma", sigma, "lognormal"), ("shape", shape, "pareto")):
        require(value is None or distribution == owner, f"{where}.{name} belongs to distribution: {owner}.")


def random_factor(distribution: str, mean: float, parameter: float | None, key: int, number: int) -> float:
    """Draw the slow-down factor of a batch: 1 + (mean - 1) X with a random X >= 0 of mean 1."""
    draw = DISTRIBUTIONS[distribution]
    return 1.0 + (mean - 1.0) * draw(uniform(key, number), parameter)


@dataclass(frozen=True, kw_only=True)
class TimedFault(Fault):
    """Base of faults that occur at a `step`, at a `time` (seconds since training began) or at random (`mtbf`).

    `mtbf`: mean seconds between occurrences, of which there are at most `times`."""

    step: Annotated[int, Bounds(at_least=0, at_most=2**53)] | None = None
    time: Seconds | None = None
    mtbf: Interval | None = None
    distribution: Literal["exponential", "weibull", "gamma"] = "exponential"
    shape: Annotated[float, Bounds(at_least=0.1, at_most=1000)] | None = None
    times: Count | None = None

    @property
    def given(self) -> list[float]:
        """Values of `step`, `time` and `mtbf` that the configuration sets."""
        return [value for value in (self.step, self.time, self.mtbf) if value is not None]

    def check(self, where: str) -> None:
        require(len(self.given) <= 1, f"{where} (kind {self.kind}) takes only one of step, time and mtbf.")
        shaped = self.distribution in SHAPED
        require(self.shape is None or shaped, f"{where}.shape belongs to distribution: {' or '.join(SHAPED)}.")
        require(self.times is None or self.mtbf is not None, f"{where}.times belongs to mtbf.")

    def interval(self, u: float) -> float:
        """Convert a random number in (0, 1) to the seconds until the fault's next occurrence."""
        assert self.mtbf is not None
        return self.mtbf * INTERVALS[self.distribution](u, self.shape)


class NextOccurrence:
    """Next occurrence of a fault: its `step`, or its time in `seconds`; infinity if there is none.

    `occurrences`: their number so far."""

    def __init__(self, fault: TimedFault, key: int) -> None:
        self.fault, self.key, self.occurrences = fault, key, 0
        self.step = math.inf if fault.step is None else float(fault.step)
        self.seconds = math.inf if fault.time is None else fault.time
        self._left = 1 if fault.mtbf is None else math.inf if fault.times is None else fault.times
        if fault.mtbf is not None:
            self.seconds = fault.interval(uniform(key, 0))

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether the fault is due at the given global step and time since training began."""
        return self._left > 0 and (step >= self.step or seconds >= self.seconds)

    def next(self) -> None:
        """Advance to the fault's next occurrence."""
        self._left -= 1
        self.occurrences += 1
        if self.fault.mtbf is not None:
            self.seconds += self.fault.interval(uniform(self.key, 2 * self.occurrences))
        if not self._left:
            self.step = self.seconds = math.inf


@kind("constant")
@dataclass(frozen=True, kw_only=True)
class ConstantSlowdown(Fault):
    """Fault that slows every batch of a worker, or every message of a server, by `factor`."""

    factor: Slower

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        return self.factor


@kind("periodic")
@dataclass(frozen=True, kw_only=True)
class PeriodicSlowdown(Fault):
    """Fault that slows a process in the first `duty` share of each period of batches or of seconds."""

    factor: Slower
    period_batches: Count | None = None
    period_seconds: Interval | None = None
    duty: SomeShare = 0.5

    def check(self, where: str) -> None:
        given = [p for p in (self.period_batches, self.period_seconds) if p is not None]
        require(len(given) == 1, f"{where} needs one of period_batches and period_seconds.")

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        if self.period_batches is not None:
            slow = number % self.period_batches < self.duty * self.period_batches
        else:
            assert self.period_seconds is not None
            slow = seconds % self.period_seconds < self.duty * self.period_seconds
        return self.factor if slow else 1.0


@kind("random")
@dataclass(frozen=True, kw_only=True)
class RandomSlowdown(Fault):
    """Fault that slows every batch by a random factor 1 + (mean - 1) X, where X >= 0 has mean 1.

    The distribution of X is exponential, lognormal (with `sigma`) or Pareto (with `shape`)."""

    distribution: Distribution
    mean: Slower
    sigma: Sigma | None = None
    shape: Shape | None = None

    def check(self, where: str) -> None:
        drawn(where, self.distribution, self.sigma, self.shape)

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        return random_factor(self.distribution, self.mean, self.sigma or self.shape, key, number)


@kind("window")
@dataclass(frozen=True, kw_only=True)
class WindowSlowdown(Fault):
    """Fault that slows a process from `from` to `until` seconds after training began (until null: to the end)."""

    factor: Slower
    from_: Seconds = 0.0
    until: Seconds | None = None

    def check(self, where: str) -> None:
        window(where, self.from_, self.until)

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        return self.factor if self.from_ <= seconds < (math.inf if self.until is None else self.until) else 1.0


@kind("hog")
@dataclass(frozen=True, kw_only=True)
class CpuHog(Fault):
    """Competing processes that use CPU, on the given cores or on the cores of some workers."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    cores: list[Natural] | None = None
    processes: Processes = 1
    from_: Seconds = 0.0
    until: Seconds | None = None

    def check(self, where: str) -> None:
        require(self.servers is None, f"{where}: a hog is for the cores of workers, or for cores; servers have none.")
        require((self.workers is None) != (self.cores is None), f"{where} needs one of workers and cores.")
        require(self.cores is None or bool(self.cores), f"{where}.cores is a list of at least one core.")
        window(where, self.from_, self.until)


def _hints(cls: type[Fault]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {typed_name(field.name): hints[field.name] for field in dataclasses.fields(cls)}


def parse(plans: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Build and check the faults of a plan from plain containers. Raises ConfigError."""
    return [_one(values, f"faults.plans[{place}]") for place, values in enumerate(plans)]


def _one(values: Mapping[str, Any], where: str) -> Fault:
    cls = KINDS.get(str(values.get("kind")))
    if cls is None:
        raise ConfigError(f"{where} has kind {values.get('kind')!r}; type kind: one of: {', '.join(sorted(KINDS))}.")
    hints, given = _hints(cls), {name: value for name, value in values.items() if name != "kind"}
    unknown = sorted(set(given) - set(hints))
    require(not unknown, f"{where} (kind {cls.kind}) has no key {', '.join(unknown)}; keys are: {', '.join(hints)}.")
    for name, value in given.items():
        if name in ("workers", "servers"):
            sort = 'indices, a number, a share like 1/8, or "all"'
            require(matches(value, hints[name]), f"{where}.{name}={value!r} is not {sort}.")
        else:
            expect(f"{where}.{name}", value, hints[name])
    missing = [
        typed_name(field.name)
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and typed_name(field.name) not in given
    ]
    require(not missing, f"{where} (kind {cls.kind}) needs {', '.join(missing)}.")
    if "servers" in given:
        given = {"workers": None, **given}
    made = cls(**{f"{name}_" if name == "from" else name: value for name, value in given.items()})
    made.check(where)
    return made


@dataclass(frozen=True, kw_only=True)
class ProcessFailure(TimedFault):
    """Failure of all named or chosen processes at once; with `mtbf`, of one of them at a time, drawn at random."""

    slows: ClassVar[bool] = False
    workers: Workers | None = None
    coordinator: bool = False

    def check(self, where: str) -> None:
        named = self.workers is not None or self.servers is not None or self.coordinator
        require(named, f"{where} (kind {self.kind}) needs workers, servers, or coordinator: true.")
        require(bool(self.given), f"{where} (kind {self.kind}) needs one of step, time and mtbf.")
        super().check(where)


@kind("kill")
@dataclass(frozen=True, kw_only=True)
class Kill(ProcessFailure):
    """Failure of a process by SIGKILL; in virtual time the simulated process ends."""


@kind("hang")
@dataclass(frozen=True, kw_only=True)
class Hang(ProcessFailure):
    """Stop of a process by SIGSTOP; SIGCONT continues it `seconds` later (null: never)."""

    seconds: Interval | None = None


COLUMNS = ("seconds", "factor", "worker")


@kind("trace")
@dataclass(frozen=True, kw_only=True)
class LoadTrace(Fault):
    """Fault that slows workers by the factors of a load trace.

    `points`: a list of [seconds, factor], or of [seconds, factor, worker] where workers differ, in order of time. A
    factor holds until the next point; before the first point the factor is 1. The points are read from `file`, if that
    is given. `scale` multiplies the seconds of the trace, and the trace repeats after `period` of these seconds. With a
    `distribution`, the factor of each batch is random: 1 + (factor - 1) X, where X has mean 1."""

    file: str | None = None
    points: list[list[float]] | None = None
    scale: Annotated[float, Bounds(at_least=1e-6, at_most=1e6)] = 1.0
    period: Interval | None = None
    distribution: Distribution | None = None
    sigma: Sigma | None = None
    shape: Shape | None = None

    def check(self, where: str) -> None:
        require(bool(self.points), f"{where} needs points [[seconds, factor], ...], or file: a CSV of these.")
        for number, point in enumerate(self.points or ()):
            entry = f"{where}.points[{number}]"
            require(len(point) in (2, 3), f"{entry}={point} is not [seconds, factor] or [seconds, factor, worker].")
            expect(f"{entry}.seconds", point[0], Seconds)
            expect(f"{entry}.factor", point[1], Slower)
            named = len(point) == 2 or point[2] in range(2**16)
            require(named, f"{entry} is of no worker ({point[-1]}); type the number of one, from 0.")
        times = [(*point[2:], point[0]) for point in self.points or ()]
        last: dict[tuple[float, ...], float] = {}
        for number, (*worker, seconds) in enumerate(times):
            require(seconds > last.get(tuple(worker), -1.0), f"{where}.points[{number}] is not after the one before.")
            last[tuple(worker)] = seconds
        of_workers = any(worker for *worker, _ in times)
        require(not (self.servers and of_workers), f"{where} has points of workers; leave servers out.")
        drawn(where, self.distribution, self.sigma, self.shape)

    def of(self, worker: int) -> Fault:
        own = [point for point in self.points or () if len(point) == 2 or point[2] == worker]
        return dataclasses.replace(self, points=sorted(own, key=lambda point: point[0]))

    @functools.cached_property
    def _times(self) -> list[float]:
        return [point[0] for point in self.points or ()]

    def mean(self, seconds: float) -> float:
        """Return the slow-down factor of the trace at a time in seconds."""
        at = seconds / self.scale if self.period is None else seconds / self.scale % self.period
        place = bisect.bisect_right(self._times, at) - 1
        return self.points[place][1] if self.points and place >= 0 else 1.0

    def factor_at(self, key: int, number: int, seconds: float) -> float:
        mean = self.mean(seconds)
        if self.distribution is None or mean == 1.0:
            return mean
        return random_factor(self.distribution, mean, self.sigma or self.shape, key, number)


def read_trace(path: Path) -> list[list[float]]:
    """Read a trace file with [seconds, factor] or [seconds, factor, worker] per line. Raises ConfigError."""
    try:
        with path.open(newline="") as file:
            return _points(path, csv.reader(line for line in file if not line.startswith("#")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The load trace {path} cannot be read ({error}).") from error


def _points(path: Path, rows: Iterable[list[str]]) -> list[list[float]]:
    lines = [[cell.strip() for cell in row] for row in rows if row]
    header = tuple(lines[0]) if lines else ()
    if sorted(header) not in (sorted(COLUMNS[:2]), sorted(COLUMNS)):
        raise ConfigError(f"The load trace {path} must begin with a line seconds,factor or worker,seconds,factor.")
    order = [header.index(name) for name in COLUMNS if name in header]
    found = []
    for line in lines[1:]:
        try:
            found.append([float(line[place]) for place in order])
        except (ValueError, IndexError):
            raise ConfigError(f"The load trace {path} has a line {','.join(line)}; type {','.join(header)}.") from None
    return found


def with_traces(plans: Any) -> Any:
    """Return the faults `plans`, each load trace with the points read from its file. Raises ConfigError."""
    if not isinstance(plans, list):
        return plans
    return [_filled(plan) if isinstance(plan, dict) and plan.get("kind") == "trace" else plan for plan in plans]


def _filled(plan: dict[str, Any]) -> dict[str, Any]:
    if plan.get("points") is not None or not isinstance(plan.get("file"), str):
        return plan
    return {**plan, "points": read_trace(Path(plan["file"]).expanduser())}

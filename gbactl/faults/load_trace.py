"""Load trace: slow-down factors of workers over time, recorded on a cluster or synthetic.

It is CSV with the columns seconds and factor, and worker where workers differ. The launcher reads the file when it
composes the configuration. Looking a factor up is pure: a bisection, about a microsecond.
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gbactl.checked_dataclasses import Bounds, Interval, Seconds, expect
from gbactl.errors import ConfigError
from gbactl.faults.fault_kinds import Fault, Shape, Sigma, Slower, drawn, kind, random_factor, require

COLUMNS = ("seconds", "factor", "worker")


@kind("trace")
@dataclass(frozen=True, kw_only=True)
class LoadTrace(Fault):
    """Fault that slows workers by the factors of a load trace.

    `points`: [seconds, factor], or [seconds, factor, worker] where workers differ, in order of time. A factor holds
    until the next point; before the first it is 1. They are read from `file`, if that is given. `scale` stretches its
    seconds; after `period` of them it repeats. With a `distribution`, the factor is random for every batch: 1 + (factor
    - 1) X, X of mean 1."""

    file: str | None = None
    points: list[list[float]] | None = None
    scale: Annotated[float, Bounds(at_least=1e-6, at_most=1e6)] = 1.0
    period: Interval | None = None
    distribution: str | None = None
    sigma: Sigma | None = None
    shape: Shape | None = None

    def check(self, where: str) -> None:
        require(bool(self.points), f"{where} needs points [[seconds, factor], ...], or file: a CSV of these.")
        for number, point in enumerate(self.points or ()):
            here = f"{where}.points[{number}]"
            require(len(point) in (2, 3), f"{here}={point} is not [seconds, factor] or [seconds, factor, worker].")
            expect(f"{here}.seconds", point[0], Seconds)
            expect(f"{here}.factor", point[1], Slower)
            named = len(point) == 2 or point[2] in range(2**16)
            require(named, f"{here} is of no worker ({point[-1]}); type the number of one, from 0.")
        times = [(*point[2:], point[0]) for point in self.points or ()]
        last: dict[tuple[float, ...], float] = {}
        for number, (*worker, seconds) in enumerate(times):
            require(seconds > last.get(tuple(worker), -1.0), f"{where}.points[{number}] is not after the one before.")
            last[tuple(worker)] = seconds
        if self.distribution is not None:
            drawn(where, self.distribution, self.sigma, self.shape)

    def of(self, worker: int) -> Fault:
        return dataclasses.replace(self, points=[p for p in self.points or () if len(p) == 2 or p[2] == worker])

    @functools.cached_property
    def _times(self) -> list[float]:
        return [point[0] for point in self.points or ()]

    def mean(self, seconds: float) -> float:
        """Return the slow-down factor of the trace at a time in seconds."""
        at = seconds / self.scale if self.period is None else seconds / self.scale % self.period
        place = bisect.bisect_right(self._times, at) - 1
        return self.points[place][1] if self.points and place >= 0 else 1.0

    def at(self, key: int, turn: int, seconds: float) -> float:
        mean = self.mean(seconds)
        if self.distribution is None or mean == 1.0:
            return mean
        return random_factor(self.distribution, mean, self.sigma or self.shape, key, turn)


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
    """Return the faults with the files of their load traces read. Raises ConfigError."""
    if not isinstance(plans, list):
        return plans
    return [_filled(plan) if isinstance(plan, dict) and plan.get("kind") == "trace" else plan for plan in plans]


def _filled(plan: dict[str, Any]) -> dict[str, Any]:
    if plan.get("points") is not None or not isinstance(plan.get("file"), str):
        return plan
    return {**plan, "points": read_trace(Path(plan["file"]).expanduser())}

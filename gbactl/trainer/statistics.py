"""What a trainer notes of its exchanges in one phase, and what the notes of all trainers come to. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.coordinator.statistics import quantiles
from gbactl.errors import WireError
from gbactl.kernels.base import Floats

SPACING = 1.1  # distances are taken at exchanges 1, 2, 3, ... 10, 12, 14, ...: a hundred in ten thousand
POINTS = 20
MOST_DIGITS = 20
_COUNTS, _TIMES = ("iterations", "exchanges"), ("seconds", "foreground", "sent")


@dataclass
class Notes:
    """One trainer's. Times are seconds, `gaps` counts local iterations between two exchanges; those that it only
    answers, because it is `idle`, make no gap."""

    iterations: int = 0
    exchanges: int = 0
    seconds: float = 0.0
    foreground: float = 0.0
    sent: float = 0.0
    gaps: Counter[int] = field(default_factory=Counter)
    distances: list[tuple[float, float]] = field(default_factory=list)
    idle: bool = False
    _last: int = 0
    _next: float = 1.0

    def distance(self, at: float, replica: Floats, other: Floats) -> None:
        """At `at` seconds of the phase f32[n] replica is so far (L2) from the mean or centre; not always taken."""
        if self.exchanges + 1 >= self._next:
            self._next = max(self._next + 1, self._next * SPACING)
            self.distances.append((at, float(np.linalg.norm(replica - other))))

    def met(self, iterations: int, seconds: float, sent: float) -> None:
        """An exchange that took so many seconds and bytes, when the trainer has done so many iterations."""
        self.exchanges += 1
        if iterations > self._last or not self.idle:
            self.gaps[iterations - self._last] += 1
        self._last = iterations
        self.seconds += seconds
        self.sent += sent

    def fields(self) -> dict[str, Any]:
        """As a message carries them."""
        return {
            "iterations": self.iterations, "exchanges": self.exchanges, "seconds": self.seconds,
            "foreground": self.foreground, "sent": self.sent,
            "gaps": {str(gap): count for gap, count in sorted(self.gaps.items())},
            "distances": [list(point) for point in self.distances],
        }  # fmt: skip


def require(told: Mapping[str, Any]) -> None:
    """Raise WireError unless a message carries what `fields` makes."""
    counts = [told.get(key) for key in _COUNTS]
    times = [told.get(key) for key in _TIMES]
    gaps, distances = told.get("gaps"), told.get("distances")
    right = (
        all(_count(value) for value in counts) and all(_number(value) for value in times)
        and isinstance(gaps, dict) and all(_gap(gap) and _count(count) for gap, count in gaps.items())
        and isinstance(distances, list) and all(_point(point) for point in distances)
    )  # fmt: skip
    if not right:
        raise WireError("A trainer's notes are not what notes are.")


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _gap(value: Any) -> bool:
    return type(value) is str and value.isdecimal() and len(value) < MOST_DIGITS


def _point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, int | float) for part in value)


def total(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The trainers' notes (or totals of them) together: sums, all gaps, all distances in order of time."""
    told = list(found)
    gaps: Counter[str] = Counter()
    for each in told:
        gaps.update(each["gaps"])
    sums = {key: sum(each[key] for each in told) for key in (*_COUNTS, *_TIMES)}
    return {**sums, "gaps": dict(gaps), "distances": sorted(point for each in told for point in each["distances"])}


def summary(notes: Mapping[str, Any]) -> dict[str, Any]:
    """What result.json says of a total: milliseconds an exchange, bytes, distance over time in at most 20 points."""
    exchanges = notes["exchanges"]
    gaps = Counter({int(gap): count for gap, count in notes["gaps"].items()})
    return {
        "sync_gap": quantiles(gaps),
        "exchanges": exchanges,
        "exchange_ms": 1000.0 * notes["seconds"] / exchanges if exchanges else 0.0,
        "foreground_seconds": notes["foreground"],
        "bytes_exchanged": int(notes["sent"]),
        "distance": curve(notes["distances"]),
    }


def curve(points: list[list[float]]) -> list[list[float]]:
    """(seconds, distance) points in order, thinned to at most 20 means of neighbours."""
    if not points:
        return []
    parts = np.array_split(np.array(points, np.float64), min(POINTS, len(points)))
    return [[float(x) for x in part.mean(axis=0)] for part in parts]

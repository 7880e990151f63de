"""Workers' time by phase: totals, and bins of the run's time that are merged in pairs when there are too many.

Memory is bounded for any length of the run. A gradient costs about 3 microseconds of CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gbactl.wire.messages import WAITS

PHASES = ("compute", *WAITS)
MOST_BINS = 64
MOST_WORKERS = 64  # of more workers, only totals are kept
Row = list[float]  # batches, then seconds of each of PHASES


def _add(rows: dict[int, Row], worker: int, row: Sequence[float]) -> None:
    found = rows.get(worker)
    rows[worker] = list(row) if found is None else [a + b for a, b in zip(found, row, strict=True)]


def _rounded(told: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in told.items()}


def _named(rows: dict[int, Row]) -> dict[str, dict[str, float]]:
    return {
        f"W{worker}": {"batches": int(row[0])} | _rounded(dict(zip(PHASES, row[1:], strict=True)))
        for worker, row in sorted(rows.items())
    }


@dataclass
class PhaseTimes:
    """Seconds of every worker by phase; a gradient's times count where it was announced."""

    width: float = 1.0
    began: float | None = None
    bins: list[dict[int, Row]] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)  # of each bin, the mode of its last gradient
    totals: dict[int, Row] = field(default_factory=dict)
    recent: dict[int, Row] = field(default_factory=dict)
    told: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))  # sums at the last call of `take_shares`

    def add(self, now: float, worker: int, compute: float, waits: Sequence[float], mode: str) -> None:
        """Add a gradient's seconds of computation and of waits (in the order of WAITS) in a mode; reports without
        waits are ignored."""
        row = [1.0, compute, *waits]
        if len(waits) != len(WAITS) or not all(0.0 <= each < math.inf for each in row):
            return
        _add(self.totals, worker, row)
        _add(self.recent, worker, row)
        self.began = now if self.began is None else self.began
        while (place := int(max(0.0, now - self.began) / self.width)) >= MOST_BINS:
            self._merge()
        if len(self.totals) <= MOST_WORKERS:
            self.bins.extend({} for _ in range(place + 1 - len(self.bins)))
            self.modes.extend([mode] * (place + 1 - len(self.modes)))
            _add(self.bins[place], worker, row)
            self.modes[place] = mode

    def _merge(self) -> None:
        """Double the width of the bins."""
        self.width *= 2.0
        self.modes = [pair[-1] for pair in (self.modes[place : place + 2] for place in range(0, len(self.modes), 2))]
        pairs = [self.bins[place : place + 2] for place in range(0, len(self.bins), 2)]
        self.bins = [pair[0] for pair in pairs]
        for kept, pair in zip(self.bins, pairs, strict=True):
            for worker, row in pair[1].items() if len(pair) > 1 else ():
                _add(kept, worker, row)

    def take_recent(self) -> dict[str, dict[str, float]]:
        """Times since the last call, by worker and phase; empty for more than MOST_WORKERS."""
        recent, self.recent = self.recent, {}
        return _named(recent) if len(recent) <= MOST_WORKERS else {}

    def take_shares(self) -> dict[str, float]:
        """Share of all workers' time in each phase since the last call; empty where no time has passed."""
        before, self.told = self.told, [sum(row[n] for row in self.totals.values()) for n in range(1, len(PHASES) + 1)]
        seconds = [now - then for now, then in zip(self.told, before, strict=True)]
        total = sum(seconds)
        return {name: each / total for name, each in zip(PHASES, seconds, strict=True)} if total > 0 else {}

    def summary(self, began: float, servers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Field `time` of result.json; `began`: when the run began, on the clock of `add`.

        `servers`: seconds of each server by activity."""
        bins = self.bins if len(self.totals) <= MOST_WORKERS else []
        return {
            "processes": _named(self.totals) | {name: _rounded(told) for name, told in sorted(servers.items())},
            "bin_seconds": self.width,
            "first_second": 0.0 if self.began is None else self.began - began,
            "bins": [_named(each) for each in bins],
            "modes": self.modes if bins else [],
        }

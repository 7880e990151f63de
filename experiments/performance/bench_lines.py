"""Line of the benchmark: two sides measured in alternating rounds, and a target for their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ratio_sides import Side

Tell = Callable[[str], None]


@dataclass
class Line:
    """Measured line: `values` one a round; the target is met when the median is at least (or at most) the target."""

    name: str
    what: str
    values: list[float]
    target: float | None = None
    at_least: bool = True
    percent: bool = False
    note: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


@dataclass(frozen=True)
class Pair:
    """Ratio variant / base, to be at least (or at most) `target`; `unit` of the two sides' rates."""

    name: str
    what: str
    variant: Side
    base: Side
    target: float
    at_least: bool = True
    unit: str = "samples/s"

    def measure(self, rounds: int, tell: Tell) -> Line:
        """Measure the two sides in alternation, base first."""
        line = Line(self.name, self.what, [], self.target, self.at_least)
        for number in range(rounds):
            base = self.base()
            variant = self.variant()
            ratio = variant["rate"] / base["rate"]
            line.values.append(ratio)
            line.rounds.append({"base": base, "variant": variant, "ratio": ratio})
            sides = f"{figure(variant['rate'])} / {figure(base['rate'])}"
            tell(f"{self.name} {number + 1}/{rounds}: {sides} = {ratio:.3f}")
        rates = [statistics.median(r[side]["rate"] for r in line.rounds) for side in ("variant", "base")]
        line.note = f"{figure(rates[0])} / {figure(rates[1])} {self.unit}"
        return line


def figure(value: float) -> str:
    """Format a side's rate: whole where it is large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

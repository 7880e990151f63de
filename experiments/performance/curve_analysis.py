"""Analysis of a curve: its slope on logarithmic scales, and a rule for the bottleneck of each point. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROLES = {"W": "workers", "S": "servers", "C": "coordinator"}
BUSY = 0.9
FOREIGN = 0.1  # cores used by other processes
COLUMNS = (
    "x", "samples/s", "slope from the last", "us of a core a sample", "cores busy: workers / servers / coordinator",
    "bound by",
)  # fmt: skip
RULES = ("---:", "---:", "---:", "---:", "---", "---")


@dataclass(frozen=True)
class Point:
    """Measured point: samples a second at x with so many workers, or the reason why it was not measured.

    `used`: CPU seconds of each role in `seconds` of the training. `others`: those of all processes outside the run.
    """

    x: int
    rate: float = 0.0
    seconds: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    others: float = 0.0
    workers: int = 1
    why: str = ""

    @property
    def cores(self) -> dict[str, float]:
        """Cores that each role kept busy."""
        return {role: spent / self.seconds for role, spent in self.used.items()} if self.seconds else {}

    @property
    def micros(self) -> float:
        """CPU time per sample of all processes together, in microseconds."""
        return 1e6 * sum(self.cores.values()) / self.rate if self.rate else math.nan


@dataclass(frozen=True)
class Curve:
    """Points ordered by x."""

    name: str
    what: str
    points: list[Point]

    @property
    def measured(self) -> list[Point]:
        """Points that were not refused."""
        return [point for point in self.points if not point.why]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Slope of log y over log x, by least squares: 1 is proportional, 0 is constant; None below two points."""
    if len(set(xs)) < 2:
        return None
    return statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope


def bound(point: Point, machine_cores: int) -> str:
    """Bottleneck of a point: a process that fills its core, the machine's cores, the number of workers, or waiting.

    The workers share the cores; a server or the coordinator is one process.
    """
    cores = point.cores
    if not cores:
        return ""
    for role in ("S", "C"):
        if cores.get(role, 0.0) >= BUSY:
            return f"{ROLES[role]}: a core is full"
    total, others = sum(cores.values()), point.others / point.seconds
    if total + others >= BUSY * machine_cores:
        role = max(cores, key=lambda each: cores[each])
        foreign = f"; other processes had {others:.1f} of {machine_cores}" if others >= FOREIGN else ""
        return f"the cores: {ROLES[role]} use {cores[role] / total:.0%} of the run's{foreign}"
    few = cores.get("W", 0.0) >= BUSY * min(point.workers, machine_cores)
    return f"{'too few workers' if few else 'waiting'}: {total:.1f} of {machine_cores} cores busy"


def table(curve: Curve, machine_cores: int) -> list[str]:
    """Markdown of a curve: one line a point, with the slope from the point before."""
    lines = [f"## {curve.name}: {curve.what}", "", *("| " + " | ".join(row) + " |" for row in (COLUMNS, RULES))]
    before: Point | None = None
    for point in curve.points:
        if point.why:
            lines.append(f"| {point.x:,} | - | - | - | - | {point.why} |")
            continue
        local = None if before is None else slope([before.x, point.x], [before.rate, point.rate])
        shares = " / ".join(f"{point.cores.get(role, 0.0):.2f}" for role in ROLES)
        told = "" if local is None else f"{local:+.2f}"
        limit = bound(point, machine_cores)
        lines.append(f"| {point.x:,} | {point.rate:,.0f} | {told} | {point.micros:.1f} | {shares} | {limit} |")
        before = point
    return [*lines, "", summary(curve), ""]


def summary(curve: Curve) -> str:
    """Sentence on the slopes over the whole curve."""
    xs = [point.x for point in curve.measured]
    of_rate = slope(xs, [point.rate for point in curve.measured])
    of_cost = slope(xs, [point.micros for point in curve.measured])
    if of_rate is None or of_cost is None:
        return "Too few points for a slope."
    return f"Slope over all points (log-log): samples/s {of_rate:+.2f}, CPU per sample {of_cost:+.2f}."


def text(curves: Sequence[Curve], machine: dict[str, Any], command: str) -> str:
    """Text of curves.md."""
    versions = ", ".join(f"{name} {machine['versions'].get(name, 'none')}" for name in ("python", "torch", "gbactl"))
    head = [
        "# How cost grows", "", f"Written by `{command}`. A curve varies one thing; each point is one short run.", "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB. Versions: {versions}.", "",
        "A slope of 1 is proportional, 0 is no change. The last column says what limits a point, by a rule from the "
        "cores that each role kept busy between two moments of the training. The limit is a server or the coordinator "
        "if it uses .9 of a core or more. Otherwise the limit is the cores if .9 of them are busy; the column then "
        "also says how many of them other processes used. Otherwise the run has too few workers to fill the cores, or "
        "waits.", "",
    ]  # fmt: skip
    return "\n".join([*head, *(line for curve in curves for line in table(curve, machine["cores"]))]).rstrip() + "\n"

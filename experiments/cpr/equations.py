"""Overhead equations against emulated jobs without training (study 2), and for other settings (study 5).

Costs 20 seconds. Seeded: the same tables every time. Part of write_cpr.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from emulation import EmulationResult, emulate  # scripts of this folder and its parent, not packages
from report_tables import markdown

from gbactl.checkpoint.costs_and_interval import JobCosts, SaveSchedule, costs_of, estimate
from gbactl.config import CheckpointConfig

SERVERS, TARGET = 8, 0.035
REFERENCE = costs_of(CheckpointConfig(), SERVERS)
WITHIN = 0.05
FAILURES, JOBS = 10_000, 2_000
DISTRIBUTIONS: tuple[tuple[str, float | None], ...] = (("exponential", None), ("weibull", 0.7), ("gamma", 2.0))


@dataclass(frozen=True)
class Setting:
    """Line of a table: costs, target, `parts` saves in an interval, a whole save every `base_every` of them."""

    name: str
    variant: str
    costs: JobCosts = REFERENCE
    target: float = TARGET
    parts: int = 1
    base_every: int = 0

    def expected(self) -> tuple[float, float]:
        """Overhead and PLS by the equations, for this variant even where another one is cheaper."""
        found = estimate("cpr", self.costs, self.target)
        if self.variant == "full":
            return found.full_overhead, 0.0
        return found.partial_overhead, self.target

    def rhythm(self) -> SaveSchedule:
        """Save schedule of this variant."""
        found = estimate("cpr", self.costs, self.target)
        interval = found.full_interval if self.variant == "full" else found.partial_interval
        return SaveSchedule(self.parts, interval, None, self.base_every)

    def emulated(self, seed: int, distribution: str = "exponential", shape: float | None = None) -> EmulationResult:
        """Emulate one job."""
        recovery = "full" if self.variant == "full" else "partial"
        return emulate(self.costs, self.rhythm(), recovery, seed, distribution, shape)

    def long(self, failures: int) -> Setting:
        """Setting with `failures` failures in one job, so that the job's ends do not matter."""
        return replace(self, costs=replace(self.costs, job=failures * self.costs.between_failures))


VARIANTS = (
    Setting("full", "full"),
    Setting("cpr", "cpr"),
    Setting("scar, mfu, ssu", "cpr", parts=8),
    Setting("scar, mfu, ssu; a base every 8 intervals", "cpr", parts=8, base_every=8),
)


def of_clock(outcome: EmulationResult) -> float:
    """Overhead as a share of the wall-clock time, saves and failures included."""
    return outcome.overhead / (1.0 + outcome.overhead)


def ratio(found: float, expected: float) -> str:
    """Format found / expected; bold where it is within the target."""
    if not expected:
        return "-"
    text = f"{found / expected:.3f}"
    return f"**{text}**" if abs(found / expected - 1) <= WITHIN else text


def against(failures: int, jobs: int) -> str:
    """Table of study 2: a line for each variant and distribution."""
    heads = ("variant, failures", "expected %", "of the job %", "/ expected", "of the clock %", "/ expected",
             "PLS expected", "emulated", "/ expected", "56 h: overhead %", "56 h: PLS")  # fmt: skip
    rows = []
    for distribution, shape in DISTRIBUTIONS:
        for setting in VARIANTS:
            name = f"{setting.name}, {distribution}" + ("" if shape is None else f" {shape:g}")
            rows.append([name, *_line(setting, distribution, shape, failures, jobs)])
    notes = (
        f"Each line is one emulated job of {failures:,} failures; the columns `56 h` are means of {jobs:,} jobs of the "
        "reference length.",
        "of the job: the overhead as a share of the time that the training takes; of the clock: as a share of the "
        "whole time of the job.",
        "The equations are of the first order: they leave out that a job with failures lasts longer, and that a "
        "failure loses less while a checkpoint of all rows is saved.",
        "A job of 56 h has 3.57 save intervals of cpr: it saves 3 times, and a failure in the last, shorter interval "
        "loses less.",
        f"bold: within {100 * WITHIN:g} % of the expected value.",
    )
    return markdown(heads, rows, *notes)


def _line(setting: Setting, distribution: str, shape: float | None, failures: int, jobs: int) -> list[str]:
    overhead, pls = setting.expected()
    found = setting.long(failures).emulated(1, distribution, shape)
    short = [setting.emulated(seed, distribution, shape) for seed in range(jobs)]
    clock = of_clock(found)
    return [
        f"{100 * overhead:.3f}", f"{100 * found.overhead:.3f}", ratio(found.overhead, overhead),
        f"{100 * clock:.3f}", ratio(clock, overhead), f"{pls:.4f}", f"{found.pls:.4f}",
        ratio(found.pls, pls), f"{100 * mean(short, 'overhead'):.3f}", f"{mean(short, 'pls'):.4f}",
    ]  # fmt: skip


def mean(outcomes: Sequence[EmulationResult], name: str) -> float:
    """Mean of one number over several jobs."""
    return statistics.fmean(getattr(each, name) for each in outcomes)


def others() -> Iterator[tuple[str, JobCosts, float]]:
    """Settings of study 5: the reference, and variations of one cost at a time."""
    yield "reference", REFERENCE, TARGET
    names = {"save": "O_s", "load": "O_l", "reschedule": "O_r", "between_failures": "T_f", "servers": "N"}
    for key, name in names.items():
        for factor in (0.25, 0.5, 2, 4):
            value = type(getattr(REFERENCE, key))(getattr(REFERENCE, key) * factor)
            yield f"{name} x {factor:g}", replace(REFERENCE, **{key: value}), TARGET
    for target in (0.001, 0.005, 0.01, 0.02, 0.05, 0.1):
        yield f"PLS {target:g}", REFERENCE, target


def sensitivity(failures: int) -> str:
    """Table of study 5: a line for each setting, with one long emulated job for comparison."""
    heads = ("setting", "full: T_s h", "full %", "emulated %", "partial: T_s h", "partial %", "emulated %",
             "PLS emulated", "full / partial", "chosen")  # fmt: skip
    rows = []
    for name, costs, target in others():
        found = estimate("cpr", costs, target)
        whole = Setting(name, "full", costs, target).long(failures).emulated(2)
        part = Setting(name, "cpr", costs, target).long(failures).emulated(2)
        rows.append([
            name, f"{found.full_interval / 3600:.2f}", f"{100 * found.full_overhead:.2f}",
            f"{100 * whole.overhead:.2f}", f"{found.partial_interval / 3600:.2f}",
            f"{100 * found.partial_overhead:.2f}", f"{100 * part.overhead:.2f}", f"{part.pls:.4f}",
            f"{found.full_overhead / found.partial_overhead:.1f}", found.recovery,
        ])  # fmt: skip
    notes = (
        "reference: a save takes 5.4 min (O_s), loading 2 min (O_l) and the start of a process 1 min (O_r); the mean "
        "time between failures is 28 h (T_f); a job has 8 servers (N) and a target PLS of .035. Each other line "
        "changes one of these values.",
        f"emulated: the overhead of one job of {failures:,} failures, as a share of the time that its training takes.",
    )
    return markdown(heads, rows, *notes)

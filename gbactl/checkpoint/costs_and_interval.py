"""Plan of a job's checkpoints: the estimated costs, the interval, and full or partial recovery. Pure.

The estimate is the cost of saves and failures by the equations of partial recovery (following the idea of CPR). All
times, the overheads among them, are in one unit, whichever it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from gbactl.checked_dataclasses import Bounds, Count, Interval, Natural, Seconds, SomeShare

CHOOSING = ("cpr_scar", "cpr_mfu", "cpr_ssu")  # a checkpoint saves chosen rows of the largest tables
PARTIAL = ("cpr", *CHOOSING)


@dataclass
class CheckpointConfig:
    """Configuration of checkpoints, and the costs of saves and server failures in seconds.

    T, T_f, O_s, O_l and O_r of the equations are job, mtbf, save, load and reschedule. An interval that is not
    configured is computed from them."""

    name: Literal["none", "full", "cpr", "cpr_scar", "cpr_mfu", "cpr_ssu"] = "none"
    target_pls: Annotated[float, Bounds(above=0, below=1)] = 0.035
    interval_seconds: Interval | None = None
    interval_steps: Count | None = None
    job_seconds: Interval = 201600.0
    mtbf_seconds: Interval = 100800.0
    save_seconds: Seconds = 324.0
    load_seconds: Seconds = 120.0
    reschedule_seconds: Seconds = 60.0
    share: Annotated[float, Bounds(at_least=0.001, at_most=1)] = 0.125
    large_tables: SomeShare = 0.9
    base_every: Natural = 8
    keep: Count = 2
    memory_mb: Count = 256
    mb_per_second: Literal[0] | Annotated[float, Bounds(at_least=0.01, at_most=1e6)] = 10.0
    dtype: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True)
class CostEstimate:
    """Expected checkpoint costs of a job under full and partial recovery, and the chosen recovery.

    `recovery`: full (every server goes back) or partial (the lost server alone). Overheads are shares of the job's
    length, intervals are in the unit of the costs."""

    recovery: str
    interval: float
    full_interval: float
    full_overhead: float
    partial_interval: float
    partial_overhead: float
    expected_pls: float

    def sentence(self, steps: int | None = None, expected: bool = True) -> str:
        """Describe the chosen recovery and save interval and, if `expected`, the expected overheads.

        `steps`: the interval where it is configured in steps, whose seconds are not known yet."""
        part, whole = f"{100 * self.partial_overhead:.2f} %", f"{100 * self.full_overhead:.2f} %"
        often, where = _seconds(self.interval), ""
        if steps is not None:
            often, where = f"{steps} steps", ", not at those but at the intervals that follow from the costs"
            part, whole = f"{part} at {_seconds(self.partial_interval)}", f"{whole} at {_seconds(self.full_interval)}"
        cheaper = ", the cheaper one" if self.full_overhead <= self.partial_overhead else ""
        choice = f"{self.recovery} recovery{cheaper}, saved every {often}"
        if not expected:
            return choice
        pls = f", expected PLS {self.expected_pls:.3g}" if self.recovery == "partial" else ""
        return f"{choice} (expected overhead{where}: partial recovery {part}, full {whole}{pls})"


def _seconds(value: float) -> str:
    """Format seconds; the short intervals of virtual runs get three significant digits."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"


def estimate(
    variant: str, costs: JobCosts, target_pls: float, interval: float | None = None, parts: int = 1, base_every: int = 0
) -> CostEstimate:
    """Estimate the costs of full and partial recovery, and choose the cheaper one that the variant allows.

    Each has its own interval, or both have `interval`. `parts` and `base_every`: of partial recovery's SaveSchedule;
    the cost of its whole saves is added to the equations' and changes no interval."""
    whole = interval or best_full_interval(costs)
    part = interval or interval_for(costs, target_pls)
    saved = partial_overhead(costs, part) + bases(costs, part, parts, base_every)
    overheads = full_overhead(costs, whole) / costs.job, saved / costs.job
    pays = variant in PARTIAL and overheads[1] < overheads[0]
    chosen = part if pays else whole
    return CostEstimate(
        "partial" if pays else "full", chosen, whole, overheads[0], part, overheads[1],
        expected_pls(costs, part) if pays else 0.0,
    )  # fmt: skip


@dataclass(frozen=True)
class SaveSchedule:
    """Schedule of a job's checkpoint saves: their interval, and which rows each of them contains.

    `parts`: saves in an interval (1/r where rows are chosen, else 1). `every_steps`: steps in an interval, a multiple
    of `parts`, where it is configured in steps. A whole save comes every `base_every` intervals (0: never, but for the
    last)."""

    parts: int
    seconds: float
    every_steps: int | None
    base_every: int

    def kind(self, number: int) -> str:
        """Return which rows save `number` (from 1) contains: "whole", "chosen" or "rest".

        Whole: all rows; chosen: the chosen rows of the large tables; rest: these and all rows of the small tables."""
        if self.parts == 1 or (self.base_every and number % (self.parts * self.base_every) == 0):
            return "whole"
        return "rest" if number % self.parts == 0 else "chosen"

    @property
    def steps_between(self) -> int | None:
        """Steps between two saves; None unless the interval is configured in steps."""
        return None if self.every_steps is None else self.every_steps // self.parts

    @property
    def seconds_between(self) -> float:
        """Seconds between two saves."""
        return self.seconds / self.parts


def costs_of(config: CheckpointConfig, servers: int) -> JobCosts:
    """Read the costs in the equations from a configuration.

    The configured save_seconds are those of fp32."""
    c, part = config, 0.5 if config.dtype == "bf16" else 1.0
    return JobCosts(c.job_seconds, c.mtbf_seconds, servers, part * c.save_seconds, c.load_seconds, c.reschedule_seconds)


def job_named(config: CheckpointConfig) -> bool:
    """Return whether the configuration sets the job's length or its time between failures."""
    default = type(config)()
    return (config.job_seconds, config.mtbf_seconds) != (default.job_seconds, default.mtbf_seconds)


def estimate_of(config: CheckpointConfig, servers: int) -> CostEstimate:
    """Estimate a job's checkpoint costs from a configuration."""
    costs, parts = costs_of(config, servers), _parts(config)
    return estimate(config.name, costs, config.target_pls, config.interval_seconds, parts, config.base_every)


def _parts(config: CheckpointConfig) -> int:
    """Return the number of saves in one interval under partial recovery."""
    return max(1, round(1 / config.share)) if config.name in CHOOSING else 1


def save_schedule_of(config: CheckpointConfig, servers: int) -> SaveSchedule:
    """Compute the save schedule of a configuration.

    Rows are chosen where the variant does that and partial recovery pays."""
    found = estimate_of(config, servers)
    parts = _parts(config) if found.recovery == "partial" else 1
    steps = config.interval_steps and max(1, config.interval_steps // parts) * parts
    return SaveSchedule(parts, found.interval, steps, config.base_every)


@dataclass(frozen=True)
class JobCosts:
    """Costs of saves and failures of a job, the variables of the equations.

    `job` (T): length of the job. `between_failures` (T_f): of all `servers` (N) together. `save` (O_s): training time
    lost a whole save. `load` (O_l): that of loading all servers. `reschedule` (O_r): that of placing the new process.
    """

    job: float
    between_failures: float
    servers: int
    save: float
    load: float
    reschedule: float

    @property
    def failures(self) -> float:
        """Expected number of failures in the job: its length T / mean time between failures T_f."""
        return self.job / self.between_failures


def full_overhead(costs: JobCosts, interval: float) -> float:
    """Compute the overhead of full recovery (all servers reload): O_s T/T_s + (O_l + O_r + T_s/2) T/T_f.

    T_s is the interval; JobCosts has the other symbols."""
    return _saves(costs, interval) + (costs.load + costs.reschedule + interval / 2) * costs.failures


def partial_overhead(costs: JobCosts, interval: float) -> float:
    """Compute the overhead of partial recovery (one server reloads): O_s T/T_s + (O_l/N + O_r) T/T_f.

    Nothing is computed again."""
    return _saves(costs, interval) + (costs.load / costs.servers + costs.reschedule) * costs.failures


def _saves(costs: JobCosts, interval: float) -> float:
    return costs.save * costs.job / interval


def bases(costs: JobCosts, interval: float, parts: int, every: int) -> float:
    """Compute the extra cost of whole saves (all rows) under partial recovery; the published equations lack it.

    It is (1 - 1/parts) O_s floor(T / (every T_s)). Each of the `parts` saves in an interval has a part of the rows;
    the last one in `every` intervals has all of them (0: never); see SaveSchedule."""
    return costs.save * (1 - 1 / parts) * (costs.job // (every * interval)) if every else 0.0


def best_full_interval(costs: JobCosts) -> float:
    """Compute the interval with the least overhead of full recovery, sqrt(2 O_s T_f).

    The job's length where O_s is 0."""
    return math.sqrt(2 * costs.save * costs.between_failures) or costs.job


def expected_pls(costs: JobCosts, interval: float) -> float:
    """Compute the expected PLS at an interval, T_s / (2 N T_f).

    Each failure loses half an interval on one of N servers."""
    return interval / (2 * costs.servers * costs.between_failures)


def interval_for(costs: JobCosts, pls: float) -> float:
    """Compute the interval at which the expected PLS is `pls`: 2 PLS N T_f."""
    return 2 * pls * costs.servers * costs.between_failures

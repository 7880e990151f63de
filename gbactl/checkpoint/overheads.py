"""What saving and failures cost a job, by the equations of partial recovery (following the idea of CPR). Pure.

Times are in any one unit; the overheads come out in the same. Costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gbactl.errors import ConfigError


@dataclass(frozen=True)
class Costs:
    """A job of length `job` (T) on `servers` (N) with `between_failures` (T_f, all servers together).

    `save` (O_s) is training time lost a whole save, `load` (O_l) that of loading all servers, `reschedule` (O_r) that
    of finding a place for the new process."""

    job: float
    between_failures: float
    servers: int
    save: float
    load: float
    reschedule: float

    def __post_init__(self) -> None:
        numbers = [getattr(self, field.name) for field in fields(self)]
        if not all(math.isfinite(n) and n >= 0 for n in numbers) or min(self.job, self.between_failures) <= 0:
            raise ConfigError("The times of a checkpoint's costs are finite and 0 or more, the job's and MTBF above 0.")
        if self.servers < 1:
            raise ConfigError("A checkpoint's costs are those of at least 1 server.")

    @property
    def failures(self) -> float:
        """Expected in a job: T / T_f."""
        return self.job / self.between_failures


def full(costs: Costs, interval: float) -> float:
    """Everybody goes back: O_s T/T_s + (O_l + O_r + T_s/2) T/T_f."""
    return _saves(costs, interval) + (costs.load + costs.reschedule + interval / 2) * costs.failures


def partial(costs: Costs, interval: float) -> float:
    """The lost server alone goes back: O_s T/T_s + (O_l/N + O_r) T/T_f; nothing is computed again."""
    return _saves(costs, interval) + (costs.load / costs.servers + costs.reschedule) * costs.failures


def _saves(costs: Costs, interval: float) -> float:
    if not interval > 0:
        raise ConfigError("A checkpoint's interval must be positive.")
    return costs.save * costs.job / interval


def bases(costs: Costs, interval: float, parts: int, every: int) -> float:
    """gbactl's own, not of the equations: where each of the `parts` saves in an interval has a part of the rows, the
    last one in `every` intervals has all of them (0: never): (1 - 1/parts) O_s floor(T / (every T_s)); see Rhythm."""
    return costs.save * (1 - 1 / parts) * (costs.job // (every * interval)) if every else 0.0


def best_full_interval(costs: Costs) -> float:
    """T_s = sqrt(2 O_s T_f), where `full` is smallest; the job's length where saving costs nothing to think of."""
    return math.sqrt(2 * costs.save * costs.between_failures) or costs.job


def expected_pls(costs: Costs, interval: float) -> float:
    """E[PLS] = T_s / (2 N T_f): half an interval lost on one of N servers at each failure."""
    return interval / (2 * costs.servers * costs.between_failures)


def interval_for(costs: Costs, pls: float) -> float:
    """T_s = 2 PLS N T_f, the interval at which a portion `pls` of the samples is expected to be lost."""
    if not 0 < pls < 1:
        raise ConfigError(f"checkpoint.target_pls={pls} is no portion of samples; type one above 0 and below 1.")
    return 2 * pls * costs.servers * costs.between_failures

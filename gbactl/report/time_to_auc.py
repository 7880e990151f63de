"""Table of the time and samples until runs reached an AUC, with runs that never reached it. Pure.

A run is at an AUC from its first evaluation with at least this AUC. One that never gets there is censored: its time is
known to be longer than the run. The median counts it so, and is a lower bound where it falls on such runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from gbactl.report.paired_statistics import Key
from gbactl.report.run_curves import Curves


@dataclass(frozen=True)
class CensoredMedian:
    """Median of times of which some are lower bounds; `bound`: it is a lower bound itself. `range`: of the times."""

    value: float
    bound: bool
    range: tuple[float, float] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TimeLine:
    """Line of the table: `reached` of a group's `n` runs had the AUC, and medians of seconds and samples until then.

    `auc`: the AUC, as the mean over the runs."""

    key: Key
    n: int
    reached: int
    auc: float
    seconds: CensoredMedian
    samples: CensoredMedian


def censored_median(times: Sequence[tuple[float, bool]]) -> CensoredMedian:
    """Compute the median of times (value, reached); a value that was not reached counts as longer than all others."""
    found = median(value if reached else math.inf for value, reached in times)
    values = [value for value, _ in times]
    bound = not math.isfinite(found)
    return CensoredMedian(median(values) if bound else found, bound, (min(values), max(values)))


def times_to_auc(
    against: Mapping[Key, Key | None], curves: Mapping[Key, Sequence[Curves]], auc: float | None, less: float = 0.0
) -> tuple[TimeLine, ...]:
    """Make a line for each group whose runs have an AUC to reach, from the curves of each group's runs.

    `auc`: the same for all, or None for the last AUC, less `less`, of the runs with the same seed in the group of the
    baseline, which `against` names for each group (None: no such group)."""
    lasts: dict[tuple[Key, str], list[float]] = defaultdict(list)
    for key, runs in curves.items():
        for run in runs:
            lasts[key, run.seed] += run.auc[-1:]
    made = []
    for key, reference in against.items():
        aims = list[tuple[Curves, float]]()
        for run in curves.get(key, ()):
            targets = [auc] if auc is not None else [] if reference is None else lasts[reference, run.seed]
            if run.auc and targets:
                aims.append((run, fmean(targets) - less))
        if aims:
            made.append(_line(key, aims))
    return tuple(made)


def _line(key: Key, aims: Sequence[tuple[Curves, float]]) -> TimeLine:
    places = [next((i for i, found in enumerate(run.auc) if found >= aim), None) for run, aim in aims]
    medians = []
    for values in ([run.seconds for run, _ in aims], [run.samples for run, _ in aims]):
        times = [(each[-1 if i is None else i], i is not None) for each, i in zip(values, places, strict=True)]
        medians.append(censored_median(times))
    reached = sum(place is not None for place in places)
    return TimeLine(key, len(aims), reached, fmean(aim for _, aim in aims), *medians)

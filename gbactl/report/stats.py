"""Statistics over seeds: mean and deviation, and the paired t interval of a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stat:
    """Mean over n runs; sd is the sample standard deviation, None for one run."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of n paired differences; `half` is half the 95 % interval's width, None for one pair."""

    mean: float
    half: float | None
    n: int


def stat(values: Sequence[float]) -> Stat | None:
    """Compute mean and sample deviation; None for no values."""
    if not values:
        return None
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Difference | None:
    """Compute the mean of second minus first with a Student's t interval over the pairs; None for no pairs."""
    if not pairs:
        return None
    differences = [second - first for first, second in pairs]
    mean, n = statistics.fmean(differences), len(differences)
    if n == 1:
        return Difference(mean, None, 1)
    from scipy.stats import t  # type: ignore[import-untyped]

    quantile = float(t.ppf(0.5 + confidence / 2, n - 1))
    return Difference(mean, quantile * statistics.stdev(differences) / math.sqrt(n), n)
